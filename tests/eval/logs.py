"""Logs that nobody made: questions of three kinds, samples of every outcome, with texts to be graded so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.eval.log import Grade, Log, Sample, Writer, header_of, read
from ds4ref.eval.packs import Header, Pack, Question
from ds4ref.eval.plan import Settings

SOURCES = ("maths", "science", "security")
TARGET = {"kind": "local", "name": "model q4", "engine": "ds4ref 0.1.0", "backend": "cpu", "numerics": "ds4",
          "bytes": 1234, "digest": "sha256:" + "ab" * 32}  # fmt: skip
FACTS = {"created": "2026-11-22T10:00:00Z", "command": ["ds4-eval", "-o", "run.jsonl"], "commit": "0123abc" * 5,
         "machine": {"cpu": "a processor", "cores": 2}, "versions": {"python": "3.11.7"}}  # fmt: skip


def question(i: int, source: str | None = None) -> Question:
    """The i-th: an integer, a letter of four, or a line."""
    source = source or SOURCES[i % 3]
    more: dict[str, Any] = {"kind": "integer", "choices": (), "answer": str(100 + i)}
    if source == "science":
        choices = tuple(f"choice {k} of {i}" for k in range(4))
        more = {"kind": "choice", "choices": choices, "answer": "ABCD"[i % 4]}
    elif source == "security":
        more = {"kind": "lines", "choices": (), "answer": f"{i % 7 + 2}"}
    return Question(f"{source}-{i:03}", source, f"{source}/part {i % 2}", "hard", question=f"What is number {i}?",
                    explanation=f"because of {i}", **more)  # fmt: skip


def pack(count: int, **more: Any) -> Pack:
    """So many questions."""
    return Pack(Header("made", 1, canary="c4n4ry", **more), tuple(question(i) for i in range(count)))


def sample(
    q: Question, outcome: str = "right", epoch: int = 1, settings: Settings | None = None, **more: Any
) -> Sample:
    """One answer to ``q``, of an outcome ("failed" and "stopped" too)."""
    settings = settings or Settings()
    wrong = {"choice": "B" if q.answer == "A" else "A", "integer": "7", "lines": "99"}[q.kind]
    given = {"right": q.answer, "wrong": wrong, "ambiguous": q.answer}.get(outcome, "")
    text = {
        "right": f"So it is.\nAnswer: {given}", "wrong": f"So it is.\nAnswer: {given}", "missing": "I cannot tell.",
        "ambiguous": f"Answer: {wrong}\nor rather\nAnswer: {q.answer}",
    }.get(outcome, "")  # fmt: skip
    status = outcome if outcome in ("failed", "stopped") else "done"
    grade = Grade(outcome, given, "the last line") if status == "done" else None  # type: ignore[arg-type]
    about: dict[str, Any] = {
        "prompt": f"{q.question}\n\nAnswer: <form>", "output": text, "reasoning": f"Let me see {q.id}.",
        "grade": grade, "prompt_tokens": 50, "tokens": 200 + 10 * epoch, "reasoning_tokens": 150,
        "ttft": 0.5, "seconds": 10.5, "finish": "stop", "close": "natural", "model": "m", "target": "model q4",
    }  # fmt: skip
    if status == "failed":
        about |= {"error": "no answer within 120 s", "finish": "error", "tokens": None}
    return Sample(q.id, epoch, settings.digest(q), status, q.answer, "2026-11-22T10:00:01Z", **{**about, **more})


LETTERS = {"r": "right", "w": "wrong", "a": "ambiguous", "m": "missing", "f": "failed", "s": "stopped"}


def build(
    path: str,
    epochs: Sequence[str],
    of: Pack | None = None,
    settings: Settings | None = None,
    target: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    **more: Any,
) -> Log:
    """A log with a letter for each question in each epoch (``LETTERS``; a blank: not asked), in no file."""
    settings, asked = settings or Settings(), of or pack(len(epochs[0]))
    header = header_of(asked, settings, len(epochs), {**TARGET, **(target or {})}, {**FACTS, **(facts or {})})
    samples = [
        sample(q, LETTERS[letter], epoch, settings, **more)
        for epoch, letters in enumerate(epochs, 1)
        for q, letter in zip(asked.questions, letters, strict=True)
        if letter != " "
    ]
    return Log(path, header, samples)


def write(path: Path, epochs: Sequence[str], **more: Any) -> Log:
    """The same as a file."""
    log = build(str(path), epochs, **more)
    with Writer.create(path, log.header) as writer:
        for one in log.samples:
            writer.add(one)
    return read(path)


def drawn(seed: int, count: int, share: float) -> str:
    """Letters, right with probability ``share``."""
    rng = np.random.default_rng(seed)
    return "".join("r" if right else "w" for right in rng.random(count) < share)
