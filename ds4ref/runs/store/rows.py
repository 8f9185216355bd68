"""Defines the fields of rows in the run store, for test vectors and graded questions (docs/reference/reports.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from .. import thinking


def vector_row(case: Mapping[str, Any], failed: Collection[str]) -> dict[str, Any]:
    """Return the run store's row for one checked test vector.

    case     the result of its check, as ``ds4-vectors check --out`` writes it
    failed   ids of the vectors that failed

    ``nll``, the negative log-likelihood in nats over all steps, is set only if the log probability of every step is
    known. Raise KeyError or TypeError for a malformed ``case``.
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
    """Return the SHA-256 of a question and its right answer in hexadecimal, to recognize it in different packs.

    ``shown`` are other texts of the prompt, such as tools; if all of them are empty, they do not change the digest.
    """
    text = json.dumps([kind, question, list(choices), answer, *(shown if any(shown) else ())], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def eval_row(sample: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run store's row for one sample (one answer) of ``ds4-eval``, without prompt and answer texts.

    ``sample`` and ``question`` are objects from the run's log. In the row, ``outcome`` is None if the sample was not
    graded, ``thought`` says whether the answer shows thinking (``thinking.seen``), and ``think`` is the question's own
    thinking mode, if it has one. Raise KeyError for malformed objects.
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
    """Return the rows of samples sorted by epoch, then in the order of ``questions``, the ids in the question pack."""
    places = {name: place for place, name in enumerate(questions)}
    return sorted(rows, key=lambda row: (row["epoch"], places[row["id"]]))
