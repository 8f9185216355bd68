"""Bugs of some lengths, put into our own server: is their family named by answers alone, and by log probabilities?

    python -m benchmarks.lengths                       every bug and three right servers; a line each
    python -m benchmarks.lengths state_4 cut_start     some of them
    python -m benchmarks.lengths --quick --budget 60   what the quick form of ``doctor`` sees
    python -m benchmarks.lengths --records DIR         keep all answers as JSON

Two examinations each, over HTTP: of a server without log probabilities, then of one with them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.cache import EMPTY_SCORE
from ds4ref.archs.deepseek4.chunk import Chunk
from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.server.app import apis
from ds4ref.server.listen import Background
from ds4ref.server.sequences import Sequences
from ds4ref.server.service import Service
from ds4ref.server.worker import Worker
from ds4ref.targets import Ability, Target, open_target
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.run import examine
from ds4ref.text.rendered import Rendered
from ds4ref.variants import LIBRARY
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.faults import Edit, Fault, FaultHooks, _op

CTX = 8192


@dataclass(frozen=True)
class Bug:
    """A bug to put into our server.

    family  family that should be named
    hooks   returns hooks of a session for a model shape; None: no change of the pass
    cut     returns the tokens that a prompt's tokens become; None: all of them
    silent  whether answers cannot show it: it changes log probabilities too little
    """

    family: str
    hooks: Callable[[Any], FaultHooks] | None = None
    cut: Callable[[list[int]], list[int]] | None = None
    silent: bool = False


class StateLost(FaultHooks):
    """The compressor forgets the incomplete group at the end of the prompt, so decode completes it without."""

    def __init__(self, ratio: int):
        super().__init__(None, {"attn_comp_candidates": self._edit, "indexer_comp_candidates": self._edit})
        self.ratio, self.end = ratio, 0

    def begin(self, chunk: Chunk) -> None:
        super().begin(chunk)
        if len(chunk.ids) > 1:
            self.end = chunk.pos0 + len(chunk.ids)

    def _edit(self, value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
        kv, score = value
        ratio = chunk.shape.ratios[layer]
        if len(chunk.ids) > 1 or ratio != self.ratio:
            return value
        ends = (chunk.pos0 // ratio + 1 + np.arange(len(score))) * ratio
        position = ends[:, None] - score.shape[1] + np.arange(score.shape[1])
        lost = (position < self.end) & (position >= self.end // ratio * ratio)
        return kv, np.where(lost[:, :, None], EMPTY_SCORE, score)


def row_too_early(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
    """Let the last token of a prompt see the row of its incomplete group, which is not written yet."""
    end = chunk.pos0 + len(chunk.ids)
    if chunk.shape.ratios[layer] != 4 or len(chunk.ids) == 1 or end % 4 != 3:
        return value
    return np.concatenate((value[:-1], value[-1:] + 1)).astype(value.dtype)


def last_key(residue: int, least: int) -> Edit:
    """Return an edit with which a token does not see its own row, if its place modulo 4 is ``residue``."""

    def edit(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
        end = chunk.positions + 1
        return value[0], (value[1] - ((end % 4 == residue) & (end >= least))).astype(np.int32)

    return edit


def rows_twice(chunk: Chunk) -> None:
    """Attend to every compressed row twice."""

    def make(attention: Callable) -> Callable:
        def wrong(q, raw, first, count, comp, comp_count, selected, *rest):
            if comp is not None and len(comp):
                if selected is None:
                    at = np.arange(max(int(comp_count.max()), 1))
                    selected = np.where(at < comp_count[:, None], at, -1).astype(np.int32)
                selected = np.ascontiguousarray(np.concatenate((selected, selected), axis=1))
            return attention(q, raw, first, count, comp, comp_count, selected, *rest)

        return wrong

    _op("attention", make)(chunk)


def shifted(after: int, by: int) -> Callable[[Chunk], None]:
    """Return a function that rotates everything from position ``after`` on as if it were ``by`` positions further."""

    def begin(chunk: Chunk) -> None:
        right = dict(chunk.rope)
        chunk.rope = {
            kind: lambda at, tables=tables: tables(np.where(np.asarray(at) >= after, np.asarray(at) + by, at))
            for kind, tables in right.items()
        }

    return begin


def _library(name: str) -> Callable[[Any], FaultHooks]:
    return lambda shape: LIBRARY[name].hooks()


def _constant(name: str, value: Callable[[Any], float]) -> Callable[[Any], FaultHooks]:
    return lambda shape: FAMILIES[name].fault(value(shape)).hooks()


def _edited(**edits: Edit) -> Callable[[Any], FaultHooks]:
    return lambda shape: Fault("", "", edits=edits).hooks()


def _begun(begin: Callable[[Chunk], None]) -> Callable[[Any], FaultHooks]:
    return lambda shape: Fault("", "", begin).hooks()


def _last(most: int, first: int = 1) -> Callable[[list[int]], list[int]]:
    return lambda ids: ids if len(ids) <= most else [*ids[:first], *ids[first - most :]]


BUGS = {
    "state_4": Bug("groups", lambda shape: StateLost(4), silent=True),
    "state_128": Bug("groups", lambda shape: StateLost(128), silent=True),
    "row_too_early": Bug("groups", _edited(comp_count=row_too_early), silent=True),
    "last_key": Bug("groups", _edited(raw_window=last_key(3, 0)), silent=True),
    "last_key_deep": Bug("groups", _edited(raw_window=last_key(3, 900)), silent=True),
    "window_short": Bug("window", _library("window_short"), silent=True),
    "window_long": Bug("window", _library("window_long"), silent=True),
    "topk_half": Bug("topk", _constant("indexer_topk", lambda s: s.index_topk // 2), silent=True),
    "topk_4": Bug("topk", _constant("indexer_topk", lambda s: 4), silent=True),
    "topk_recent": Bug("topk", _library("indexer_recent")),
    "no_rows": Bug("rows", _library("no_compressed_rows")),
    "yarn_4": Bug("rope", _constant("yarn_factor", lambda s: s.yarn_factor / 4), silent=True),
    "no_yarn": Bug("rope", _library("no_yarn"), silent=True),
    "yarn_beta": Bug("rope", _constant("yarn_beta_fast", lambda s: s.yarn_beta_fast / 4), silent=True),
    "positions_512": Bug("onset", _begun(shifted(512, 1)), silent=True),
    "positions_512_far": Bug("onset", _begun(shifted(512, 256)), silent=True),
    "rows_twice": Bug("constant", _begun(rows_twice), silent=True),
    "cut_start": Bug("cut", cut=_last(700)),
    "cut_middle": Bug("cut", cut=_last(900, 300)),
    "cut_deep": Bug("cut", cut=_last(3000)),
}
"""Bugs by name. Silent ones leave the items' tokens the likeliest ones of the embedded model."""
RIGHT = {"right": {}, "right_qat": {"numerics": "qat"}, "right_ds4": {"numerics": "ds4"}}
"""Right servers by name: options of their engine."""


@contextmanager
def served(bug: Bug | None, model: str, **options: Any) -> Iterator[str]:
    """Run our server with a bug; yield its address."""
    engine = Engine.open(model, threads=1, **options)
    make = engine.session

    def session(ctx: int) -> Any:
        made = make(ctx)
        if bug is not None and bug.hooks is not None:
            made.hooks = bug.hooks(engine.shape)
        return made

    engine.session = session  # type: ignore[method-assign]
    worker = Worker(engine, ctx=CTX, sequences=Sequences(engine.tokenizer, 8 << 20))
    if bug is not None and bug.cut is not None:
        right, cut = worker._prompt, bug.cut
        worker._prompt = lambda turn: (Rendered(), cut(right(turn)[1]))  # type: ignore[method-assign]
    with Background(Service(worker, apis())) as url:
        yield f"{url}/v1"
    engine.close()


def answers_alone(target: Target) -> Target:
    """Return a target without its log probabilities."""
    target.abilities = target.abilities - {Ability.TOP_LOGPROBS, Ability.SCORE}
    target.max_top_logprobs = 0
    return target


def examined(url: str, engine: Engine, alone: bool, quick: bool, budget: float) -> dict[str, Any]:
    """Run the stage on a server; return (outcome, family, sentence) by finding, and the records."""
    with open_target(url) as target:
        case = ExamContext(answers_alone(target) if alone else target, engine, quick=quick, budget=budget)
        stage = next(each for each in examine(case, ["lengths"]).stages if each.name == "lengths")
    out: dict[str, Any] = {
        check.name: (check.outcome.value, check.figures.get("family", ""), check.says) for check in stage.checks
    }
    out["records"] = next((c.figures["records"] for c in stage.checks if "records" in c.figures), [])
    return out


def main(argv: Sequence[str] | None = None) -> None:
    """Print, for each bug, the family that was named by answers alone and by log probabilities."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("names", nargs="*", help=f"of {', '.join([*BUGS, *RIGHT])} (all)")
    flags.add_argument("--quick", action="store_true")
    flags.add_argument("--budget", type=float, default=120.0)
    flags.add_argument("--records", type=Path)
    args = flags.parse_args(argv)
    model, score = embedded_path(), {"named": 0, "other": 0, "accused": 0}
    ours = Engine.open(model, threads=1)
    for name in args.names or [*BUGS, *RIGHT]:
        bug, start = BUGS.get(name), time.monotonic()
        with served(bug, model, **RIGHT.get(name, {})) as url:
            runs = {alone: examined(url, ours, alone, args.quick, args.budget) for alone in (True, False)}
        shown = []
        for alone, run in runs.items():
            cells = [run["answers"]] if alone else [run["log probabilities"]]
            cells += [run["prompt cut"]] if "prompt cut" in run else []
            outcome, family, says = min(cells, key=lambda cell: (cell[0] != "wrong", cell[1] == ""))
            shown.append(f"{'answers' if alone else 'numbers'}: {outcome} {family or '-':9} {says[:90]}")
            spoils = outcome in ("wrong", "unexplained")
            score["accused"] += spoils and bug is None
            if bug is not None:
                score["named"] += family == bug.family
                score["other"] += bool(family) and family != bug.family
        print(f"{name:18} {bug.family if bug else 'right':9} {time.monotonic() - start:4.0f} s", *shown, sep="\n    ")
        sys.stdout.flush()
        if args.records:
            args.records.mkdir(parents=True, exist_ok=True)
            (args.records / f"{name}.json").write_text(json.dumps({str(k): v for k, v in runs.items()}, default=str))
    print(score)


if __name__ == "__main__":
    main()
