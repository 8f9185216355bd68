"""Logs for people: which samples are meant, and everything that is known of one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.errors import DataError, UsageError

from .log import Log, Sample
from .packs import LETTERS, Question
from .plan import chosen
from .report import disagreements, outcome
from .scores import is_exhausted, summarize

OUTCOMES = ("right", "wrong", "ambiguous", "missing", "failed", "stopped", "exhausted")


def newest(name: str) -> str:
    """The path of a log: ``latest`` is the newest one in the data folder."""
    if name != "latest" or Path(name).exists():
        return name
    from .options import folder

    found = sorted(folder().glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise DataError(f"no log in {folder()}")
    return str(found[-1])


def about(log: Log, only: str | None) -> list[Sample]:
    """The samples of the questions that ``only`` names (words as those of a run's --only)."""
    if not only:
        return log.samples
    ids = {q.id for q in chosen(log.header.questions, only)}
    return [sample for sample in log.samples if sample.id in ids]


def of_outcome(samples: Sequence[Sample], spec: str | None) -> Sequence[Sample]:
    """Those of the outcomes in ``spec``, separated by commas; UsageError for an unknown one."""
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
    """A question by its id, its number in the table, or the beginning of its id; UsageError if that is none, or
    several."""
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


def detail(log: Log, question: Question, samples: Sequence[Sample], width: int | None = None) -> str:
    """The question, then every one of ``samples`` in full, then why the right answer is right; lines longer than
    ``width`` (None: any) are broken between words."""
    head = " · ".join(part for part in (question.id, question.source, question.domain, question.difficulty) if part)
    parts = [f"{head}\nexpected: {question.answer}"]
    prompts = {sample.prompt for sample in samples}
    if log.header.settings.get("system"):
        parts.append(_block("system", str(log.header.settings["system"])))
    if len(prompts) == 1:
        parts.append(_block("prompt", prompts.pop()))
    for sample in samples:
        parts.append(_heading(sample))
        if prompts:  # not the same for all: choices were shuffled
            parts.append(_block("prompt", sample.prompt))
        parts += [
            _block(name, text) for name, text in (("reasoning", sample.reasoning), ("output", sample.output)) if text
        ]
    why = [question.explanation] if question.explanation else []
    why += [f"{letter}: {text}" for letter, text in zip(LETTERS, question.distractors, strict=False) if text]
    if why and any(sample.order for sample in samples):
        why.insert(0, "(letters here are those of the pack)")
    if why:
        parts.append(_block(f"why it is {question.answer}", "\n".join(why)))
    text = "\n\n".join(parts)
    return text if width is None else "\n".join(_broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    """One line as several; what a line of code is indented by stays."""
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())][: width // 2]
    return textwrap.fill(line, width, subsequent_indent=indent, replace_whitespace=False, break_on_hyphens=False)


def _heading(sample: Sample) -> str:
    """Grade and figures of one sample."""
    said = f"epoch {sample.epoch}: {outcome(sample)}"
    if sample.grade is not None:
        given = safe(" ".join(sample.grade.given.split())) or "nothing"
        said += f" (given {given}, expected {sample.expected}"
        said += f"; {safe(sample.grade.why)})" if sample.grade.why else ")"
    lines = [said]
    if sample.ds4 is not None:
        lines.append(f"ds4's grader: {sample.ds4.outcome}, given {safe(sample.ds4.given) or 'nothing'}")
    if sample.error:
        lines.append(f"error: {safe(sample.error)}")
    if sample.order:
        letters = ", ".join(f"{here} is {LETTERS[i]}" for here, i in zip(LETTERS, sample.order, strict=False))
        lines.append(f"choices were shuffled: {letters} of the pack")
    figures = [
        f"{value} {what}"
        for value, what in (
            (sample.prompt_tokens, "tokens of prompt"), (sample.tokens, "generated"),
            (sample.reasoning_tokens, "of them thought"),
        )
        if value is not None
    ]  # fmt: skip
    first = "" if sample.ttft is None else f", the first after {sample.ttft:.2f} s"
    ended = "".join(
        f", {what} {value}" for what, value in (("finish", sample.finish), ("thinking", sample.close)) if value
    )
    lines.append(", ".join([*figures, f"{sample.seconds:.1f} s{first}{ended}"]))
    return "\n".join(lines)


def _block(name: str, text: str) -> str:
    return f"--- {name}\n{safe(text).rstrip()}"


def safe(text: str) -> str:
    """Without what could command a terminal; lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


# ------------------------------------------------------------------------------------------------- for programs


def document(log: Log, samples: Sequence[Sample], shown: Sequence[Sample], whole: bool) -> dict[str, Any]:
    """Pack, settings, the summary of ``samples``, and ``shown`` one by one: all of them (``whole``), or without their
    texts."""
    entries = [msgspec.to_builtins(sample) for sample in shown]
    if not whole:
        entries = [{k: v for k, v in entry.items() if k not in ("prompt", "output", "reasoning")} for entry in entries]
    return {
        "log": log.path, "pack": log.header.pack, "settings": log.header.settings, "target": log.header.target,
        "torn": log.torn, "summary": summarize(log.questions, samples).to_json(),
        "ds4_disagrees": disagreements(samples), "samples": entries,
    }  # fmt: skip
