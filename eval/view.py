"""``ds4-eval view LOG [QUESTION]``: show the report of a log, some of its samples, or one question in full."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.console.common import columns, is_tty, say
from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import parser
from ds4ref.errors import UsageError

from .keep import notes
from .log import Log, LogHeader, Sample, read
from .packs import EXAM, LETTERS, Question
from .plan import chosen
from .report import log_report, outcome
from .scores import is_exhausted, summarize

OUTCOMES = ("right", "wrong", "ambiguous", "missing", "failed", "stopped", "exhausted")


PROG = "ds4-eval view"


def view(argv: Sequence[str]) -> int:
    """Run ``ds4-eval view LOG [QUESTION]``; return the exit code."""
    made = parser(
        PROG, "Show the report of a log, or one question in full.", "LOG [QUESTION] [options]",
        "run.jsonl", "latest --outcome wrong,ambiguous", "run.jsonl 17", "run.jsonl maths-1f0c2a9e --json",
    )  # fmt: skip
    made.add_argument("names", metavar="NAME", nargs="*",
                      help="a log, or latest; then a question: its number, its id or the beginning of it")  # fmt: skip
    add(made, "--only", metavar="WORDS", help="sources (maths,security), or words in id, source or domain")
    made.add_argument("--outcome", metavar="LIST", help=f"only these: {', '.join(OUTCOMES)}")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if not 1 <= len(args.names) <= 2:
        raise UsageError(f"view needs a log and at most one question, {len(args.names)} names given")
    log = opened(args.names[0], PROG)
    question = find(log, args.names[1]) if len(args.names) == 2 else None
    samples = about(log, args.only) if question is None else [s for s in log.samples if s.id == question.id]
    shown = of_outcome(samples, args.outcome)
    if args.json:
        print(json.dumps(document(log, samples, shown, question is not None), ensure_ascii=False))
    elif question is not None:
        print(detail(log.header, question, sorted(shown, key=lambda sample: sample.epoch), width(0) or None))
        if not shown:
            say(PROG, f"{question.id} has no sample with this outcome")
    else:
        print(log_report(log, samples, shown, width()))
    return 0


def opened(name: str, prog: str) -> Log:
    """Read a log; ``latest`` is the newest one in the data folder. Warn if its last line is incomplete."""
    log = read(newest(name))
    if log.torn:
        say(prog, f"{log.path}: the last line is incomplete (a crash?) and was skipped")
    return log


def newest(name: str) -> str:
    """Return the path of a log; ``latest`` is the newest one in the data folder."""
    if name != "latest" or Path(name).exists():
        return name
    from .options import latest

    return str(latest())


def width(piped: int = 160) -> int:
    """Return the width of the terminal on stdout, ``piped`` if it is none."""
    return columns(sys.stdout) if is_tty(sys.stdout) else piped


def about(log: Log, only: str | None) -> list[Sample]:
    """Return the samples of the questions that ``only`` selects, as a run's --only does."""
    if not only:
        return log.samples
    ids = {q.id for q in chosen(log.header.questions, only)}
    return [sample for sample in log.samples if sample.id in ids]


def of_outcome(samples: Sequence[Sample], spec: str | None) -> Sequence[Sample]:
    """Return the samples with one of the comma-separated outcomes ``spec``; UsageError for an unknown one."""
    if not spec:
        return samples
    wanted = [word.strip().lower() for word in spec.split(",") if word.strip()]
    for word in wanted:
        if word not in OUTCOMES:
            raise UsageError(f"unknown outcome {word!r}: choose from {', '.join(OUTCOMES)}")
    return [sample for sample in samples if any(_is(sample, word) for word in wanted)]


def _is(sample: Sample, word: str) -> bool:
    if word == "exhausted":
        return sample.status == "done" and is_exhausted(sample)
    return word == (sample.status if sample.grade is None else sample.grade.outcome)


def find(log: Log, name: str) -> Question:
    """Return the question with an id, a unique prefix of it, or a number in the table; UsageError if there is none."""
    questions = log.questions
    if name in questions:
        return questions[name]
    if name.isascii() and name.isdigit() and 1 <= int(name) <= len(questions):
        return log.header.questions[int(name) - 1]
    found = [key for key in questions if key.startswith(name)]
    if len(found) == 1:
        return questions[found[0]]
    if found:
        raise UsageError(f"{name!r} begins {len(found)} ids: {', '.join(found[:4])}{' ...' if len(found) > 4 else ''}")
    near = get_close_matches(name, questions, 1)
    raise UsageError(f"no question {name!r}" + (f" (did you mean {near[0]}?)" if near else
                     f": a number from 1 to {len(questions)}, or an id"))  # fmt: skip


# ------------------------------------------------------------------------------------------------- one question


def detail(
    header: LogHeader, question: Question, samples: Sequence[Sample], width: int | None = None, prompt: str = ""
) -> str:
    """Return the ``sections`` of a question as one text, its lines broken at ``width`` (None: unbroken)."""
    found = sections(question, samples, str(header.settings.get("system") or ""), prompt)
    text = "\n\n".join(f"--- {title}\n{body}" if title else body for title, body in found)
    return text if width is None else "\n".join(_broken(line, width) for line in text.split("\n"))


def sections(
    question: Question, samples: Sequence[Sample], system: str = "", prompt: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of the question, of each sample in full, and of the explanation; headings have the title "".

    ``prompt`` is shown if there is no sample to take the prompt from. All texts are escaped for a terminal.
    """
    facts = (question.id, question.source, question.domain, question.difficulty)
    yield "", f"{safe(' · '.join(fact for fact in facts if fact))}\nexpected: {question.answer}"
    if system and question.kind in EXAM:
        yield "system", _block(system)
    if question.tools:
        yield "tools", _block("\n".join(question.tools))
    prompts = {sample.prompt for sample in samples} or {prompt}
    if len(prompts) == 1 and (text := prompts.pop()):
        yield "prompt", _block(text)
    if question.called:
        yield "called before, with this result", _block(f"{question.called}\n{question.result}")
    for sample in samples:
        yield "", heading(sample)
        if prompts:  # they differ, because choices were shuffled
            yield "prompt", _block(sample.prompt)
        for title, text in (("reasoning", sample.reasoning), ("output", sample.output)):
            if text:
                yield title, _block(text)
    why = [question.explanation] if question.explanation else []
    why += [f"{letter}: {text}" for letter, text in zip(LETTERS, question.distractors, strict=False) if text]
    if why and any(sample.order for sample in samples):
        why.insert(0, "(letters here are those of the pack)")
    why += [f"stated by: {work}" for work in question.references]
    if why:
        yield f"why it is {question.answer}", _block("\n".join(why))


def _broken(line: str, width: int) -> str:
    """Break a long line, keeping its indentation."""
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())][: width // 2]
    return textwrap.fill(line, width, subsequent_indent=indent, replace_whitespace=False, break_on_hyphens=False)


def heading(sample: Sample) -> str:
    """Return a sample's grade in one line, then its error and figures in further lines."""
    grade = f"epoch {sample.epoch}: {outcome(sample)}"
    if sample.grade is not None:
        given = safe(" ".join(sample.grade.given.split())) or "nothing"
        grade += f" (given {given}, expected {sample.expected}"
        grade += f"; {safe(sample.grade.why)})" if sample.grade.why else ")"
    lines = [grade]
    if sample.error:
        lines.append(f"error: {safe(sample.error)}")
    if sample.order:
        letters = ", ".join(f"{here} is {LETTERS[i]}" for here, i in zip(LETTERS, sample.order, strict=False))
        lines.append(f"choices were shuffled: {letters} of the pack")
    figures = [
        f"{value} {what}"
        for value, what in (
            (sample.prompt_tokens, "prompt tokens"), (sample.tokens, "generated"),
            (sample.reasoning_tokens, "of them reasoning"),
        )
        if value is not None
    ]  # fmt: skip
    first = "" if sample.ttft is None else f"; first token after {sample.ttft:.2f} s"
    ended = "".join(
        f", {what} {value}" for what, value in (("finish", sample.finish), ("thinking", sample.close)) if value
    )
    lines.append(", ".join([*figures, f"{sample.seconds:.1f} s{first}{ended}"]))
    return "\n".join(lines)


def _block(text: str) -> str:
    return safe(text).rstrip()


def safe(text: str) -> str:
    """Escape characters that could control a terminal; line feeds and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


# ------------------------------------------------------------------------------------------------- for programs


def document(log: Log, samples: Sequence[Sample], shown: Sequence[Sample], whole: bool) -> dict[str, Any]:
    """Return pack, settings, the summary of ``samples``, and the samples ``shown`` as plain data.

    ``whole``: include prompts and answers of ``shown``.
    """
    entries = [msgspec.to_builtins(sample) for sample in shown]
    if not whole:
        entries = [{k: v for k, v in entry.items() if k not in ("prompt", "output", "reasoning")} for entry in entries]
    return {
        "log": log.path, "pack": log.header.pack, "settings": log.header.settings, "target": log.header.target,
        "torn": log.torn, "summary": summarize(log.questions, samples).to_json(),
        "notes": notes(log), "samples": entries,
    }  # fmt: skip
