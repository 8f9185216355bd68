"""lm-evaluation-harness as a client: runs it on tiny tasks that score choices, texts and generated answers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .agents import Done, Run, Setting, prepared, run
from .clients import Kind
from .results import Check

DOCS = (
    {"q": "What is 2+2?", "choices": [" four", " five"], "gold": 0},
    {"q": "What colour is the sky?", "choices": [" green", " blue"], "gold": 1},
)
SUITES: dict[str, dict[str, Any]] = {
    "choice": {
        "output_type": "multiple_choice", "doc_to_text": "Question: {{q}}\nAnswer:", "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}", "metric_list": [{"metric": "acc"}],
    },
    "generate": {
        "output_type": "generate_until", "doc_to_text": "Question: {{q}}\nAnswer:",
        "doc_to_target": "{{choices[gold]}}", "metric_list": [{"metric": "exact_match"}],
        "generation_kwargs": {"until": ["\n\n", "Question:"], "max_gen_toks": 32, "temperature": 0.0},
    },
    "rolling": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{q}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}  # fmt: skip
"""lm-evaluation-harness tasks by name, one for each kind of request that the harness makes."""

RUNS = (
    ("text", "local-completions", "completions", ("choice", "generate", "rolling"), "tokenized_requests=False"),
    ("ids", "local-completions", "completions", ("choice",), "tokenized_requests=True"),
    ("chat", "local-chat-completions", "chat/completions", ("generate",), ""),
)
FEATURE = {"choice": "score", "rolling": "score", "generate": "turn"}
WORDS = {
    "choice": "log likelihoods of each choice, and a share of right ones",
    "rolling": "a perplexity, finite and above 1",
    "generate": "two answers, and a share of right ones",
}


def lm_eval(kind: Kind, api: str, setting: Setting) -> Iterator[Check]:
    """Run lm-evaluation-harness (``kind``) on the two questions in DOCS with each task of SUITES; yield the checks.

    It is run once for each way to reach the server in RUNS. ``api`` is not used.
    """
    prepared(setting)
    tasks = setting.work / "tasks"
    tasks.mkdir()
    data = tasks / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    for name, settings in SUITES.items():
        whole = {
            "task": f"smoke_{name}", "dataset_path": "json", "dataset_kwargs": {"data_files": str(data)},
            "test_split": "train", "metadata": {"version": 1}, **settings,
        }  # fmt: skip
        # JSON is YAML
        (tasks / f"smoke_{name}.yaml").write_text(json.dumps(whole))
    for name, model, path, suites, more in RUNS:
        folder = setting.work / f"results-{name}"
        facts = f"model={setting.model},base_url={setting.url}/v1/{path},num_concurrent=1,max_retries=1"
        facts += f",tokenizer_backend=remote,{more}" if more else ""
        command = [
            setting.place.python, "-m", "lm_eval", "run", "--model", model, "--model_args", facts, "--include_path",
            str(tasks), "--tasks", ",".join(f"smoke_{suite}" for suite in suites), "--batch_size", "1",
            "--output_path", str(folder), *(["--apply_chat_template"] if name == "chat" else []),
        ]  # fmt: skip
        off = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
        begun = time.monotonic()
        done = run(setting, Run(command, {**off, "OPENAI_API_KEY": setting.key}), f"lm-eval-{name}")
        seconds = round(time.monotonic() - begun, 1)
        for suite in suites:
            got = _scores(folder, suite, done)
            yield Check(
                f"lm-eval.{suite}.{name}", FEATURE[suite], "fail" if got else "ok", True, WORDS[suite], got, "", seconds
            )
            seconds = 0.0


def _scores(folder: Path, suite: str, done: Done) -> str:
    """Return what is wrong with the harness's results in ``folder`` for the task ``suite``, "" if nothing is.

    ``done``: the harness's finished process.
    """
    if done.code != 0:
        return f"{done.ended}: {done.tail}"
    files = sorted(folder.rglob("results*.json"))
    if not files:
        return f"no results: {done.tail}"
    scores = json.loads(files[-1].read_text())["results"].get(f"smoke_{suite}") or {}
    numbers = {k: v for k, v in scores.items() if isinstance(v, (int, float)) and "stderr" not in k and "," in k}
    if not numbers or not all(math.isfinite(value) for value in numbers.values()):
        return f"results {json.dumps(scores)}"
    value = next(iter(numbers.values()))
    fine = value > 1 if suite == "rolling" else 0 <= value <= 1
    return "" if fine else f"results {json.dumps(scores)}"
