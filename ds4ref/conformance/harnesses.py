"""Evaluation harnesses as clients: lm-evaluation-harness, which scores, and inspect_ai, which calls tools."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .agents import Done, Run, Setting, outcome, prepared, run
from .clients import Kind
from .results import Check, State

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
    """Run lm-evaluation-harness on two documents of each task of SUITES; yield the checks."""
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
            state: State = "fail" if got else "ok"
            yield Check(f"lm-eval.{suite}.{name}", FEATURE[suite], state, True, WORDS[suite], got, "", seconds)
            seconds = 0.0


def _scores(folder: Path, suite: str, done: Done) -> str:
    """What is wrong with the results of one suite; "" if nothing is."""
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


INSPECT = {"chat": "openai-api/smoke/{}", "responses": "openai/{}", "messages": "anthropic/{}"}


def inspect_ai(kind: Kind, api: str, setting: Setting) -> Iterator[Check]:
    """Run one inspect_ai sample that reads the secret word with a tool; yield the checks."""
    job = prepared(setting)
    source = (Path(__file__).parent / "probes" / "inspect_task.py").read_text()
    (setting.folder / "secret.py").write_text(source)
    key, base, root = setting.key, f"{setting.url}/v1", setting.url
    env = {
        "SMOKE_API_KEY": key, "SMOKE_BASE_URL": base, "OPENAI_API_KEY": key, "OPENAI_BASE_URL": base,
        "ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": root, "SMOKE_PROMPT": job.prompt, "SMOKE_WORD": job.word,
    }  # fmt: skip
    more = ["-M", "responses_api=true"] if api == "responses" else []
    command = [
        setting.place.python, "-m", "inspect_ai", "eval", "secret.py", "--model", INSPECT[api].format(setting.model),
        *more, "--log-dir", str(setting.work / "logs"), "--log-format", "json", "--display", "plain",
        "--max-retries", "1",
    ]  # fmt: skip
    begun = time.monotonic()
    done = run(setting, Run(command, env), f"inspect-{api}")
    seconds = round(time.monotonic() - begun, 1)
    logs = [json.loads(path.read_text()) for path in sorted((setting.work / "logs").glob("*.json"))]
    status = logs[-1].get("status") if logs else "no log"
    good = done.code == 0 and status == "success"
    name, expected = f"inspect.{api}", "the evaluation ends with status success"
    got = "" if good else f"{done.ended}, {status}: {done.tail}"
    yield Check(f"{name}.turn", "turn", "ok" if good else "fail", True, expected, got, "", seconds)
    samples = (logs[-1].get("samples") or []) if logs else []
    answers = " ".join(str((sample.get("output") or {}).get("completion")) for sample in samples)
    yield from outcome(name, job, Done(0 if good else done.code, answers, done.err or done.out), setting.led)


HARNESSES = {"lm-eval": lm_eval, "inspect": inspect_ai}
