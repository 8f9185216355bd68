"""Write a log in the format of inspect_ai (version 2, .json): its viewer shows it, ``read_eval_log`` reads it.

A sample's score is ours: C for right, I for all else, with the outcome, where the answer was read, and why. The metrics
are the score over questions and the ends of its 95 % interval.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.console.common import check_output
from ds4ref.errors import UsageError
from ds4ref.files import atomic_write
from ds4ref.version import __version__

from ..log import Log, Sample
from ..packs import EXAM, Question
from ..scores import Summary, summary

SCORER = "ds4ref"
STOPS = {"stop": "stop", "length": "max_tokens", "content_filter": "content_filter", "tool_calls": "tool_calls"}


def write(log: Log, path: str) -> None:
    """Write the log as a new file, atomically; UsageError if the file exists."""
    if Path(path).exists():
        raise UsageError(f"{path} exists")
    if not path.endswith(".json"):
        raise UsageError(f"{path}: inspect_ai requires the suffix .json")
    check_output(path)
    with atomic_write(Path(path).resolve()) as out:
        out.write(json.dumps(document(log), ensure_ascii=False, indent=1).encode() + b"\n")


def document(log: Log) -> dict[str, Any]:
    """Return the log as inspect_ai's own JSON document."""
    header, found = log.header, summary(log)
    key = hashlib.sha256(msgspec.json.encode(header)).hexdigest()
    created = str(header.facts.get("created") or "1970-01-01T00:00:00Z")
    model = str(header.target.get("model") or header.target.get("name") or "unknown")
    asked = list(dict.fromkeys(sample.id for sample in log.samples))
    complete = all(sample.status == "done" for sample in log.samples)
    ends = [sample.started for sample in log.samples if sample.started] or [created]
    return {
        "version": 2,
        "status": "success" if complete else "cancelled",
        "eval": {
            "eval_id": key[:22], "run_id": key[22:44], "created": created, "task": str(header.pack.get("pack")),
            "task_id": key[42:64], "task_version": header.pack.get("version", 0), "model": model,
            "dataset": {"name": str(header.pack.get("pack")), "samples": len(asked), "sample_ids": asked},
            "config": {"epochs": header.epochs}, "packages": {"ds4ref": __version__},
            "metadata": {"pack": header.pack, "settings": header.settings, "target": header.target},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(log.samples), "completed_samples": len(log.done),
            "scores": [{"name": SCORER, "scorer": SCORER, "params": {}, "metrics": _metrics(found)}],
        },
        "stats": {"started_at": created, "completed_at": max(ends), "model_usage": {model: _total(log)}},
        "samples": [_sample(sample, log.questions[sample.id], header.settings, model) for sample in log.samples],
    }  # fmt: skip


def _metrics(found: Summary) -> dict[str, Any]:
    i = found.whole.interval
    if i is None:
        return {}
    figures = {"accuracy": i.estimate, "ci95_low": i.low, "ci95_high": i.high, "questions": i.n}
    return {name: {"name": name, "value": value, "params": {}} for name, value in figures.items()}


def _sample(sample: Sample, question: Question, settings: dict[str, Any], model: str) -> dict[str, Any]:
    system = str(settings.get("system") or "") if question.kind in EXAM else ""
    content: Any = sample.output
    if sample.reasoning:
        content = [{"type": "reasoning", "reasoning": sample.reasoning}, {"type": "text", "text": sample.output}]
    answer = {"role": "assistant", "content": content, "source": "generate", "model": sample.model or model}
    message = {"role": "user", "content": sample.prompt, "source": "input"}
    shown = [question.choices[i] for i in sample.order] or list(question.choices)
    failed = sample.status != "done"
    return {
        "id": sample.id, "epoch": sample.epoch, "input": question.question, "target": sample.expected,
        "choices": shown or None,
        "messages": [*([{"role": "system", "content": system, "source": "input"}] if system else []), message, answer],
        "output": {
            "model": sample.model or model, "completion": sample.output, "usage": _usage(sample),
            "choices": [{"message": answer, "stop_reason": STOPS.get(sample.finish, "unknown")}],
        },
        "scores": _scores(sample),
        "metadata": {"source": question.source, "domain": question.domain, "difficulty": question.difficulty,
                     "kind": question.kind, "close": sample.close, "status": sample.status},
        "error": {"message": sample.error or sample.status, "traceback": "", "traceback_ansi": ""} if failed else None,
        "started_at": sample.started or None, "total_time": sample.seconds, "working_time": sample.seconds,
        "uuid": hashlib.sha256(f"{sample.id} {sample.epoch} {sample.digest}".encode()).hexdigest()[:22],
    }  # fmt: skip


def _scores(sample: Sample) -> dict[str, Any]:
    if sample.grade is None:
        return {}
    about = {"outcome": sample.grade.outcome, "ds4": None if sample.ds4 is None else sample.ds4.outcome}
    return {SCORER: {"value": "C" if sample.right else "I", "answer": sample.grade.given,
                     "explanation": sample.grade.why, "metadata": about}}  # fmt: skip


def _usage(sample: Sample) -> dict[str, Any]:
    prompt, tokens = sample.prompt_tokens or 0, sample.tokens or 0
    return {"input_tokens": prompt, "output_tokens": tokens, "total_tokens": prompt + tokens,
            "input_tokens_cache_read": sample.cached_tokens, "reasoning_tokens": sample.reasoning_tokens}  # fmt: skip


def _total(log: Log) -> dict[str, int]:
    prompt = sum(sample.prompt_tokens or 0 for sample in log.samples)
    tokens = sum(sample.tokens or 0 for sample in log.samples)
    return {"input_tokens": prompt, "output_tokens": tokens, "total_tokens": prompt + tokens}
