"""Rows of runs: the one place that defines their fields for each tool (docs/reference/reports.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from .. import thinking


def vector_row(case: Mapping[str, Any], failed: Collection[str]) -> dict[str, Any]:
    """Return the row of one checked case, as ``ds4-vectors check --out`` writes it.

    ``nll`` (nats over all steps) is set only if the log probability of every step is known. Raise KeyError or TypeError
    for a malformed ``case``.
    """
    steps = case["steps"]
    deltas = [abs(step["delta"]) for step in steps if step["delta"] is not None]
    logprobs = [step.get("logprob") for step in steps]
    row = {
        "id": case["id"],
        "verdict": case["verdict"],
        "passed": case["id"] not in failed,
        "tokens": len(steps),
        "top1": sum(step["verdict"] == "match" for step in steps) / len(steps) if steps else None,
        "max_abs": max(deltas, default=None),
        "kl": max((step["kl"] for step in steps if step["kl"] is not None), default=None),
        "reason": case.get("reason", ""),
    }
    if steps and None not in logprobs:
        row["nll"] = -sum(logprobs)
    return row


def question_digest(
    kind: str, question: str, choices: Sequence[str], answer: str, shown: Sequence[str] = ()
) -> str:  # fmt: skip
    """Return the SHA-256 of question and right answer in hexadecimal, which identifies a question across packs.

    ``shown``: what else the prompt shows; strings that are all empty count for nothing.
    """
    text = json.dumps([kind, question, list(choices), answer, *(shown if any(shown) else ())], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def eval_row(sample: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one sample of ``ds4-eval`` from two lines of its log, without prompt and answer texts.

    ``outcome`` is None if nothing was graded. Raise KeyError for malformed lines. ``thought``: whether the answer shows
    thinking (``thinking.seen``); ``think``: the question's own thinking mode, if it has one.
    """
    grade = sample.get("grade") or {}
    kind, text, choices, answer = (question[name] for name in ("kind", "question", "choices", "answer"))
    think, called, result = (question.get(name) or "" for name in ("think", "called", "result"))
    digest = question_digest(kind, text, choices, answer, (think, *question.get("tools", ()), called, result))
    return {
        "id": sample["id"],
        "question": digest[:32],
        "source": question["source"],
        "domain": question["domain"],
        "epoch": sample["epoch"],
        "status": sample["status"],
        "outcome": grade.get("outcome"),
        "given": grade.get("given", ""),
        "expected": sample["expected"],
        **{name: sample.get(name) for name in ("prompt_tokens", "tokens", "reasoning_tokens", "ttft")},
        "seconds": sample.get("seconds", 0.0),
        "finish": sample.get("finish", ""),
        "close": sample.get("close", ""),
        "thought": thinking.seen(sample),
        **({"think": think} if think else {}),
        **({"guess": guess} if (guess := question.get("guess") or (1 / len(choices) if choices else 0)) else {}),
        **{name: question[name] for name in ("depth", "difficulty") if question.get(name)},
    }


def in_order(rows: Iterable[dict[str, Any]], questions: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of samples by epoch and in the order of the pack, whose ``questions`` are given by id."""
    places = {name: place for place, name in enumerate(questions)}
    return sorted(rows, key=lambda row: (row["epoch"], places[row["id"]]))
