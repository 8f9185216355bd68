"""``ds4-eval view LOG [QUESTION]``: show the report of a log, some of its samples, or one question in full."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.console.common import say, visible
from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tables import stdout_width
from ds4ref.console.tool import parser
from ds4ref.errors import UsageError, did_you_mean

from .keep import notes
from .log import Log, LogHeader, Sample, latest, read
from .packs import EXAM, LETTERS, Question
from .plan import chosen
from .prompt import user_text
from .report import outcome, report
from .runner import regrade
from .scores import is_exhausted, summarize

OUTCOMES = ("right", "wrong", "ambiguous", "missing", "failed", "stopped", "exhausted")
PIPED = 160
"""Width of tables in characters if the output is not a terminal."""
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
    made.add_argument("--regrade", action="store_true",
                      help="grade all answers by today's rules first; the log stays as it is")  # fmt: skip
    made.add_argument("--outcome", metavar="LIST", help=f"only these: {', '.join(OUTCOMES)}")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if not 1 <= len(args.names) <= 2:
        raise UsageError(f"view needs a log and at most one question, {len(args.names)} names given")
    log = opened(args.names[0], PROG)
    if args.regrade:
        before = [sample.grade for sample in log.samples]
        for sample in log.done:
            regrade(sample, log.questions[sample.id])
        pairs = zip(before, (sample.grade for sample in log.samples), strict=True)
        changed = sum((one and one.outcome) != (other and other.outcome) for one, other in pairs)
        say(PROG, f"{changed} of {len(log.done)} answers are graded differently")
    question = find(log, args.names[1]) if len(args.names) == 2 else None
    samples = about(log, args.only) if question is None else [s for s in log.samples if s.id == question.id]
    shown = of_outcome(samples, args.outcome)
    if args.json:
        print(json.dumps(document(log, samples, shown, question is not None), ensure_ascii=False))
    elif question is not None:
        print(detail(log.header, question, sorted(shown, key=lambda sample: sample.epoch), stdout_width(0) or None))
        if not shown:
            say(PROG, f"{question.id} has no sample with this outcome")
    else:
        print(report(log, stdout_width(PIPED), samples, shown))
    return 0


def opened(name: str, prog: str) -> Log:
    """Read the log ``name``, "latest" being the newest one in the data folder. Warn if its last line is incomplete."""
    log = read(latest() if name == "latest" and not Path(name).exists() else name)
    if log.torn:
        say(prog, f"{log.path}: the last line is incomplete (a crash?) and was skipped")
    return log


def about(log: Log, only: str | None) -> list[Sample]:
    """Return the samples of the questions that ``only`` selects, in the same way as the option --only of a run."""
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
    """Return the question that ``name`` means: an id, a unique prefix of one, or a number in the table; raise
    UsageError if there is none."""
    questions = log.questions
    if name in questions:
        return questions[name]
    if name.isascii() and name.isdigit() and 1 <= int(name) <= len(questions):
        return log.header.questions[int(name) - 1]
    matching = [key for key in questions if key.startswith(name)]
    if len(matching) == 1:
        return questions[matching[0]]
    if matching:
        raise UsageError(
            f"{name!r} begins {len(matching)} ids: {', '.join(matching[:4])}{' ...' if len(matching) > 4 else ''}"
        )
    hint = did_you_mean(name, questions) or f": a number from 1 to {len(questions)}, or an id"
    raise UsageError(f"no question {name!r}{hint}")


# ------------------------------------------------------------------------------------------------- one question


def detail(header: LogHeader, question: Question, samples: Sequence[Sample], width: int | None = None) -> str:
    """Return all about a question and its samples as text for a terminal, wrapped at ``width`` characters (None: not
    wrapped)."""
    text = "\n\n".join(
        f"--- {title}\n{body}" if title else body for title, body in _sections(header, question, samples)
    )
    return text if width is None else "\n".join(_broken(line, width) for line in text.split("\n"))


def _sections(header: LogHeader, question: Question, samples: Sequence[Sample]) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of the question, of each sample, and of the explanation; headings of samples have the title
    ""."""
    facts = (question.id, question.source, question.domain, question.difficulty)
    system = header.settings.get("system") if question.kind in EXAM else ""
    why = [question.explanation]
    why += [f"{letter}: {text}" for letter, text in zip(LETTERS, question.distractors, strict=False) if text]
    why += [f"stated by: {work}" for work in question.references]
    yield "", f"{visible(' · '.join(filter(None, facts)))}\nexpected: {question.answer}"
    parts = {
        "system": system, "tools": "\n".join(question.tools), "prompt": user_text(question),
        "called before, with this result": question.called and f"{question.called}\n{question.result}",
    }  # fmt: skip
    yield from _blocks(parts)
    for sample in samples:
        yield "", heading(sample)
        yield from _blocks({"reasoning": sample.reasoning, "output": sample.output})
    yield from _blocks({f"why it is {question.answer}": "\n".join(filter(None, why))})


def _blocks(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((title, visible(str(text)).rstrip()) for title, text in parts.items() if text)


def _broken(line: str, width: int) -> str:
    """Wrap a long line at ``width`` characters, keeping its indentation."""
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())][: width // 2]
    return textwrap.fill(line, width, subsequent_indent=indent, replace_whitespace=False, break_on_hyphens=False)


def heading(sample: Sample) -> str:
    """Return a sample's grade in one line, then its error and figures in further lines."""
    grade = f"epoch {sample.epoch}: {outcome(sample)}"
    if sample.grade is not None:
        given = visible(" ".join(sample.grade.given.split())) or "nothing"
        grade += f" (given {given}, expected {sample.expected}"
        grade += f"; {visible(sample.grade.why)})" if sample.grade.why else ")"
    lines = [grade]
    if sample.error:
        lines.append(f"error: {visible(sample.error)}")
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
        "torn": log.torn, "summary": summarize(log.questions, samples),
        "notes": notes(log), "samples": entries,
    }  # fmt: skip
