"""What the embedded model can do on our own engine, which mistakes cost it which skill, and what quantization costs.

    python -m benchmarks.skills scores OUT.jsonl                every skill, recall by depth, perplexity
    python -m benchmarks.skills damage OUT.jsonl                the same for f16, q4, q2 and q2-plain
    python -m benchmarks.skills damage OUT.jsonl --recipes f16 q4@0 q4@1 q4@2      with the routed experts of one layer
    python -m benchmarks.skills ablations OUT.jsonl             the same with every mistake of the library (f16)
    python -m benchmarks.skills ablations OUT.jsonl --recipe q2 --faults 'q2_k_*' 'iq2_xxs_*'
    python -m benchmarks.skills table OUT.jsonl                 Markdown of all that is in the file

A question is right if every token of its reply, end token included, is the most likely one after the right tokens
before it: what greedy decoding writes, but for replies that are right in other words. Parts of a grade (the name of a
tool, its arguments) are those of the text of the most likely tokens.

One line is appended for each skill of each engine, so a run may be stopped at any time: the same command goes on. Two
processes may write to the same file if each has its own --skills.
DS4_NANO_WEIGHTS names other weights, whose lines may be in the same file: ``table`` shows those of the last run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.chunk import Chunk
from ds4ref.engine import Engine
from ds4ref.eval import nano_pack
from ds4ref.files import file_digest
from ds4ref.nano import embedded_path
from ds4ref.nano.cache import building
from ds4ref.nano.skills import GRADED, Item, held_out, held_out_text, tokenizer
from ds4ref.nano.skills.base import conversation, plain_text
from ds4ref.nano.skills.recall import RANGES
from ds4ref.nano.train.shape import SHAPE
from ds4ref.nano.trained import weights_folder
from ds4ref.runs.provenance import stamp
from ds4ref.variants import LIBRARY, MODE_NAMES, Runner
from ds4ref.variants.faults import Fault
from ds4ref.variants.quantized import divergence

TEXT = "text"
"""Stories instead of questions: every token counts, and perplexity instead of a score."""
TEXT_TOKENS = 256
PACK = "pack"
"""The questions of ds4-eval's pack ``nano``, whatever ``--items`` says."""
DEPTHS = tuple(f"recall@{depth}" for depth in (32, 64, 128, 256, 512, 1024, 2048, 4096))
SCORED = (*GRADED, *DEPTHS, PACK, TEXT)
ABLATED = (*(name for name in GRADED if name != "recall/far"), "recall@1024", PACK, TEXT)
QUANTIZED = ("f16", "q4", "q2", "q2-plain")
_RECIPE = re.compile(f"(?:{'|'.join(QUANTIZED)})(?:@[0-{SHAPE.n_layers - 1}])?")
PLAIN, RIGHT = "", "none"
"""In place of a mistake: the engine as users have it; the right engine with the hooks that mistakes need."""
COMPARED = 64
"""Last positions of a question at which logits are compared."""
NOWHERE = np.iinfo(np.int32).max


# --- mistakes that are not in the library


def _random_rows(value: np.ndarray | None, layer: int, chunk: Chunk, taps: dict[str, Any]) -> np.ndarray | None:
    """Replace the indexer's choice by as many random visible rows."""
    if value is None:
        return None
    visible = chunk.visible(4)[:, None]
    order = np.random.default_rng((layer, chunk.pos0)).random((len(value), int(visible.max())))
    order = np.where(np.arange(order.shape[1]) < visible, order, 2.0)
    rows = np.argsort(order, axis=1)[:, : value.shape[1]]
    rows = np.sort(np.where(rows < visible, rows, NOWHERE), axis=1)
    return np.where(rows == NOWHERE, -1, rows).astype(np.int32)


def _hidden(which: int) -> Callable[[Chunk], None]:
    """Hide all compressed rows of ratio ``which``."""

    def begin(chunk: Chunk) -> None:
        visible = chunk.visible
        chunk.visible = lambda ratio: visible(ratio) * np.int32(ratio != which)  # type: ignore[method-assign]

    return begin


def _shuffled(ids: np.ndarray, layer: int, chunk: Chunk, taps: dict[str, Any]) -> np.ndarray:
    """Replace the experts of each token by those of a random order of all experts."""
    every = np.tile(np.arange(chunk.shape.n_experts, dtype=np.int32), (len(ids), 1))
    return np.take_along_axis(np.random.default_rng((layer, chunk.pos0)).permuted(every, axis=1), ids, axis=1)


ABLATIONS = {
    fault.name: fault
    for fault in (
        Fault("indexer_random", "indexer ignored: random rows attended", edits={"indexer_topk": _random_rows}),
        Fault("rows_4_hidden", "ratio 4: rows never attended", _hidden(4)),
        Fault("rows_128_hidden", "ratio 128: rows never attended", _hidden(128)),
        Fault("experts_shuffled", "routed experts in a random order for every token",
              edits={"ffn_moe_topk": _shuffled}),
        *(LIBRARY[name] for name in ("sinkhorn_1", "no_sink", "window_short")),
    )
}  # fmt: skip
"""What must cost a model that uses all its mechanisms something; listed first."""
FAULTS = {**ABLATIONS, **LIBRARY}


# --- questions and answers


@dataclass(frozen=True)
class Question:
    """Token ids of a question with its reply, the last ``reply`` of them; of a text, all but the first."""

    ids: list[int]
    reply: int
    guess: float = 0.0
    item: Item | None = None


def questions(skill: str, count: int, seed: int) -> list[Question]:
    """Return held-out questions of a skill, of recall at a depth ("recall@512"), or texts."""
    if skill == TEXT:
        texts = (held_out_text(TEXT_TOKENS, seed * 100_000 + i) for i in range(count))
        encoded = [plain_text(text).encode(tokenizer())[0] for text in texts]
        return [Question(ids, len(ids) - 1) for ids in encoded]
    name, _, depth = skill.partition("@")
    if depth:
        name = next(name for name, (_, most) in RANGES.items() if int(depth) <= most)
    made = []
    if skill == PACK:
        items = [item for item, _ in nano_pack.items()]
    else:
        items = held_out(name, count, seed, **({"distance": int(depth)} if depth else {}))
    for item in items:
        ids, _ = conversation([item]).encode(tokenizer())
        made.append(Question(ids, len(ids) - len(item.prompt().encode(tokenizer())), item.guess, item))
    return made


@dataclass(frozen=True)
class Answer:
    """One question answered: share of right tokens, all or nothing of a question; NLL of the reply; logits compared."""

    right: float
    nll: float
    parts: dict[str, bool]
    tail: np.ndarray = field(repr=False)


def answer(question: Question, logits: np.ndarray) -> Answer:
    """Grade the logits (T - 1, V) after every token of a question but the last."""
    logits = np.nan_to_num(logits, nan=-1e4, posinf=1e4, neginf=-1e4)
    rows, targets = logits[-question.reply :].astype(np.float64), np.array(question.ids[-question.reply :])
    best = rows.argmax(axis=1)
    most = rows.max(axis=1)
    nll = np.log(np.exp(rows - most[:, None]).sum(axis=1)) + most - rows[np.arange(len(rows)), targets]
    same, parts = best == targets, {}
    if question.item is not None:
        parts = question.item.parts(tokenizer().decode(best[:-1].tolist()).decode("utf-8", "replace"))
    right = float(same.mean() if question.reply == len(question.ids) - 1 else same.all())
    return Answer(right, float(nll.sum()), parts, logits[-COMPARED:].copy())


@dataclass(frozen=True)
class Arm:
    """One engine: a model file, a numerics mode, and the name of a mistake, PLAIN or RIGHT."""

    recipe: str
    mode: str
    fault: str = PLAIN


Logits = Callable[[Arm, list[int]], np.ndarray]
"""Type of a function that returns an arm's logits (T, V) after each of T tokens."""
Asked = Mapping[str, Callable[[], list[Question]]]
"""Type of what makes the questions of a skill, by skill."""


def recipe_path(recipe: str) -> str:
    """Return the file of a recipe; "q2@1" is the F16 file with the routed experts of layer 1 of q2."""
    name, _, layer = recipe.partition("@")
    if not layer:
        return embedded_path(recipe)
    base, donor = embedded_path("f16"), embedded_path(name)
    out = Path(donor).with_name(f"{Path(donor).stem}-layer-{layer}.gguf")
    with building(out):
        if out.exists():
            return str(out)
        command = ["splice", "--base", base, "--donor", donor, "--layers", layer, "-o", str(out)]
        subprocess.run([sys.executable, "-m", "ds4ref.cli.quantize", *command], check=True, stdout=subprocess.DEVNULL)
    return str(out)


class Engines:
    """The engines of all arms, opened at first use; call it for logits."""

    def __init__(self, threads: int | None = None, open_path: Callable[[str], str] = recipe_path):
        self.threads, self.open_path = threads, open_path
        self._runners: dict[tuple[str, str], Runner] = {}

    def runner(self, arm: Arm) -> Runner:
        """Return what runs an arm's model file in its mode."""
        key = arm.recipe, arm.mode
        if key not in self._runners:
            engine = Engine.open(self.open_path(arm.recipe), backend="cpu", numerics=arm.mode, threads=self.threads)
            self._runners[key] = Runner(engine)
        return self._runners[key]

    def __call__(self, arm: Arm, ids: list[int]) -> np.ndarray:
        runner = self.runner(arm)
        if arm.fault == PLAIN:
            return runner.engine.session(len(ids) + 1).extend(ids)
        return runner.run(ids, arm.mode, [FAULTS[arm.fault]] if arm.fault != RIGHT else [])[0]


# --- measuring


class Results:
    """JSON lines: one for each run (provenance), one for each skill of each arm, with the time its run began."""

    def __init__(self, path: Path):
        self.path = path
        self.runs: list[dict[str, Any]] = []
        self.units: dict[str, dict[str, Any]] = {}
        text = path.read_text() if path.exists() else ""
        self._torn = bool(text) and not text.endswith("\n")  # a run that was killed
        for line in text.splitlines():
            try:
                self._keep(json.loads(line))
            except ValueError:
                continue

    def _keep(self, line: dict[str, Any]) -> None:
        if "unit" in line:
            self.units[key_of(line["unit"])] = line
        else:
            self.runs.append(line)

    def append(self, line: dict[str, Any]) -> None:
        """Add a line to the file, whole or not at all."""
        self._keep(line)
        with open(self.path, "ab", buffering=0) as file:
            file.write(("\n" * self._torn + json.dumps(line) + "\n").encode())
        self._torn = False


def key_of(unit: dict[str, Any]) -> str:
    """Return the text by which a unit is found again."""
    return json.dumps(unit, sort_keys=True)


def measure(
    results: Results,
    ask: Asked,
    arms: Sequence[Arm],
    right_arm: Arm,
    logits: Logits,
    about: dict[str, Any],
) -> None:
    """Append what is missing of all arms on all skills.

    ask        what makes a skill's questions, by skill
    right_arm  the arm that all others' logits are compared with
    about      what identifies questions and weights in the units' keys
    """
    todo = {
        skill: [arm for arm in arms if key_of({"skill": skill, **asdict(arm), **about}) not in results.units]
        for skill in ask
    }
    left, began, done = sum(map(len, todo.values())), time.monotonic(), 0
    for skill, missing in todo.items():
        if not missing:
            continue
        asked = ask[skill]()
        right: list[Answer] = []
        for arm in dict.fromkeys((right_arm, *missing)):
            start = time.monotonic()
            tokens = FAULTS[arm.fault].tokens if arm.fault in FAULTS else 0
            answers = []
            for i, question in enumerate(asked):
                same = right and len(question.ids) - 1 <= tokens  # too short for this mistake
                answers.append(right[i] if same else answer(question, logits(arm, question.ids[:-1])))
            right = right or answers
            if arm in missing:
                unit = {"skill": skill, **asdict(arm), **about}
                run = {"run": results.runs[-1]["created"], "seconds": round(time.monotonic() - start, 3)}
                results.append(record(unit, asked, answers, right) | run)
                done += 1
                rest = (time.monotonic() - began) / done * (left - done)
                name = " ".join(filter(None, (arm.recipe, arm.mode, arm.fault)))
                print(f"{done}/{left} {skill}, {name}: {np.mean([a.right for a in answers]):.3f}, "
                      f"{rest / 60:.1f} minutes to go", file=sys.stderr)  # fmt: skip


def record(
    unit: dict[str, Any], asked: Sequence[Question], answers: Sequence[Answer], right: Sequence[Answer]
) -> dict[str, Any]:
    """Return the line of one unit: lists with a value for each question."""
    apart = [divergence(a.tail, b.tail) for a, b in zip(right, answers, strict=True)]
    names = [name for name in answers[0].parts if all(name in a.parts for a in answers)]
    return {
        "unit": unit,
        "right": [a.right for a in answers],
        "parts": {name: [int(a.parts[name]) for a in answers] for name in names},
        "nll": [round(a.nll, 6) for a in answers],
        "tokens": [q.reply for q in asked],
        "kl_mean": [float(f"{d['kl_mean']:.6g}") for d in apart],
        "kl_median": [float(f"{d['kl_median']:.6g}") for d in apart],
        "guess": float(np.mean([q.guess for q in asked])),
    }


# --- command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.skills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, items, skills in (("scores", 200, SCORED), ("damage", 200, SCORED), ("ablations", 60, ABLATED)):
        command = commands.add_parser(name)
        command.add_argument("out", type=Path, metavar="OUT.jsonl")
        command.add_argument("--items", type=int, default=items, help="questions of a skill (%(default)s)")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--threads", type=int)
        command.add_argument("--skills", nargs="+", default=skills, metavar="SKILL", help=" ".join(skills))
        command.add_argument("--mode", choices=MODE_NAMES, default="qat" if name == "ablations" else "exact")
        if name == "damage":
            command.add_argument("--recipes", nargs="+", default=QUANTIZED, metavar="RECIPE", help=" ".join(QUANTIZED))
        else:
            command.add_argument("--recipe", choices=QUANTIZED, default="f16", help="model file (%(default)s)")
        if name == "ablations":
            command.add_argument("--faults", nargs="+", default=["*"], metavar="PATTERN", help="names of mistakes")
    commands.add_parser("table").add_argument("out", type=Path, metavar="OUT.jsonl")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    results = Results(args.out)
    if args.command == "table":
        from .skill_tables import tables

        print(tables(results))
        return 0
    if args.command == "damage" and not all(_RECIPE.fullmatch(recipe) for recipe in args.recipes):
        parser.error(f"recipes are {', '.join(QUANTIZED)}, or with one layer's experts: q2@1")
    if unknown := set(args.skills) - {*SCORED, *ABLATED}:
        parser.error(f"unknown skills: {', '.join(sorted(unknown))}")
    engines = Engines(args.threads)
    arms = [Arm(recipe, args.mode) for recipe in (args.recipes if args.command == "damage" else (args.recipe,))]
    right = Arm("f16", args.mode)
    if args.command == "ablations":
        fit = {*ABLATIONS, *(fault.name for fault in engines.runner(arms[0]).faults(args.mode, 1 << 20))}
        names = [name for name in FAULTS if name in fit and any(fnmatch(name, p) for p in args.faults)]
        arms = [Arm(args.recipe, args.mode, name) for name in (RIGHT, *names)]
        right = arms[0]
    about = {"items": args.items, "seed": args.seed, "weights": file_digest(weights_folder()).partition(":")[2][:12]}
    results.append({**stamp(), "weights": about["weights"]})
    try:
        ask: Asked = {skill: partial(questions, skill, args.items, args.seed) for skill in args.skills}
        measure(results, ask, arms, right, engines, about)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
