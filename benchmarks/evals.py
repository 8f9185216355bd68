"""What a broken engine costs in score: every fault of the diagnosis library on the nano pack, with intervals.

    python -m benchmarks.evals run build/evals.jsonl       an hour on one core; stops and goes on as one likes
    python -m benchmarks.evals table build/evals.jsonl     the table of docs/eval.md

Each fault is put into our engine in mode qat, the mode whose answers the pack's keys are, and every question is asked
once, greedy. The other rounding sets are asked without a fault: what an honest engine loses by rounding elsewhere. A
fault is seen if the 95 % interval of the paired difference from the clean engine excludes zero.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.runs.stats import graded_interval, share_interval
from ds4ref.text.chat import render
from ds4ref.variants import LIBRARY, ROUNDING, Runner
from eval import packs
from eval.grading import grade
from eval.prompt import prompt

MODE = "qat"


def cases(runner: Runner, tokens: int) -> Iterator[tuple[str, str, list]]:
    """Name, rounding set and faults of every engine that is asked."""
    for mode in [MODE, *(m for m in ROUNDING if m != MODE)]:
        yield f"clean {mode}", mode, []
    for fault in runner.faults(MODE, tokens):
        yield fault.name, MODE, [fault]


def run(path: Path) -> None:
    """Ask what is not in the file yet."""
    done = {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()
    pack = packs.load(packs.NANO)
    with Engine.open(embedded_path(), threads=1) as engine, open(path, "a") as file:
        runner, tokenizer = Runner(engine), engine.tokenizer
        asked = [prompt(q, "none") for q in pack.questions]
        ids = [render(p.messages, p.tools, p.thinking).encode(tokenizer) for p in asked]
        for name, mode, faults in cases(runner, max(map(len, ids))):
            if name in done:
                continue
            outcomes = []
            for question, tokens in zip(pack.questions, ids, strict=True):
                best = int(np.nan_to_num(runner.run(tokens, mode, faults)[0][-1], nan=-np.inf).argmax())
                text = "" if best == tokenizer.eos else tokenizer.token_bytes(best).decode("utf-8", "replace")
                outcomes.append(grade(question, text).outcome)
            file.write(json.dumps({"name": name, "outcomes": outcomes}) + "\n")
            file.flush()
            print(name, outcomes.count("right"), file=sys.stderr)


def table(path: Path) -> str:
    """Markdown, worst first."""
    found = {entry["name"]: entry["outcomes"] for entry in map(json.loads, path.read_text().splitlines())}
    clean = _right(found[f"clean {MODE}"])
    lines = []
    for name, outcomes in found.items():
        right = _right(outcomes)
        share, change = share_interval(right), graded_interval(clean, right)
        seen = "yes" if change.high < 0 else "no"
        says = LIBRARY[name].says if name in LIBRARY else "no fault"
        row = [
            f"`{name}`", says, _percent(share.estimate), f"{_percent(share.low)} to {_percent(share.high)}",
            f"{_percent(change.estimate)} ({_percent(change.low)} to {_percent(change.high)})", seen,
        ]  # fmt: skip
        lines.append((share.estimate, "| " + " | ".join(row) + " |"))
    head = ["| fault | what is wrong | score, % | 95 % | change, points | seen |", "|---|---|---:|---|---|---|"]
    return "\n".join(head + [line for _, line in sorted(lines, key=lambda pair: pair[0])])


def _right(outcomes: Sequence[str]) -> list[float]:
    return [float(outcome == "right") for outcome in outcomes]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(Path(sys.argv[2]))
    else:
        print(table(Path(sys.argv[2])))
