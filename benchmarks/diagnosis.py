"""How often ``ds4-vectors diagnose`` is right: mistakes injected one by one, unknown ones, and none at all.

    python -m benchmarks.diagnosis faults               every mistake it can name, from full logits and from top-20
    python -m benchmarks.diagnosis faults --mode ds4    the same inside a mode that rounds (no bar: some hide in noise)
    python -m benchmarks.diagnosis faults --v41         those of DeepSeek V4.1, on its diagnostic model
    python -m benchmarks.diagnosis clean --trials 200   clean engines on random prompts, in all modes
    python -m benchmarks.diagnosis held-out             mistakes that its library lacks, in every set

Every diagnosed engine has float noise of its own (a few units in the last place on every block input), so that it is as
far from our numbers as another correct engine is. Prints what went wrong, then one line of JSON; exit code 1 if a bar
is missed: a mistake above the detection limit that was called clean, a wrong name, a clean engine that was accused. The
calibration of confidences is ``benchmarks.calibration``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import DIAGNOSTIC, PROMPTS, diagnostic_path
from ds4ref.nano.diagnostic41 import diagnostic41_path
from ds4ref.numerics import MODES
from ds4ref.test_vectors.diagnosis import Diagnosis, Signatures, diagnose
from ds4ref.test_vectors.diagnosis.prompts import MISTAKES
from ds4ref.test_vectors.diagnosis.search import NO_MISTAKE
from ds4ref.test_vectors.diagnosis.signatures import Signature
from ds4ref.test_vectors.observation import Observation, from_logits
from ds4ref.text.prompts import encode_chat_prompt
from ds4ref.variants import ROUNDING, Runner

from .calibration import right
from .patients import draw

TOPS = (None, 20)
BARS = {None: 0.95, 20: 0.80}


class Unkept(Signatures):
    """Signatures of known mistakes, kept in memory only: those of prompts used once should not fill the disk cache."""

    def _loaded(self, name: str, compute: Callable[[], Signature]) -> Signature:
        return compute()

    def _save(self, path: Path, signature: Signature) -> None:
        pass


@dataclass
class Tally:
    """Counts of trials by outcome, and a remark for each trial with a wrong verdict."""

    counts: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    def add(self, outcome: str, remark: str = "", good: bool = True) -> None:
        """Count one trial with this outcome; unless it is ``good``, keep the remark."""
        self.counts[outcome] += 1
        if not good:
            self.remarks.append(remark)

    def share(self, outcome: str) -> float:
        """Return the share of trials with this outcome; 0 without trials."""
        return self.counts[outcome] / max(1, self.counts.total())


def says(diagnosis: Diagnosis) -> str:
    """Return a diagnosis in a few words, for remarks."""
    return f"{diagnosis.fault or diagnosis.verdict} ({diagnosis.confidence:.3f}, first {diagnosis.first_position})"


# ------------------------------------------------------------------------------------------------------------- faults


def inside(engine: Engine, mode: str, seed: int) -> Iterator[tuple[str, Signatures, Observation]]:
    """Yield (name, signatures of known mistakes, observed logits) for every mistake inside the model whose effect
    exceeds float noise.

    Mistakes that need a longer prompt get one; those in roundings that ``mode`` does not have are made in mode qat.
    """
    mixed, long = (Signatures(engine, PROMPTS[name]()) for name in ("mixed", "long"))
    for fault in mixed.runner.library.values():
        if fault.quiet or fault.name in NO_MISTAKE:
            continue
        library = long if fault.tokens >= len(mixed.ids) else mixed
        run_mode = mode if not fault.needs or getattr(MODES[mode], fault.needs) else "qat"
        yield fault.name, library, from_logits(library.ids, library.run(run_mode, [fault], seed))


def outside(engine: Engine, mode: str, seed: int) -> Iterator[tuple[str, Signatures, Observation]]:
    """Yield (name, signatures of known mistakes, observed logits) for every mistake outside the model.

    These are in the BOS token, rows or columns of the logits, temperature, tokenizer and chat template.
    """
    library = Signatures(engine, PROMPTS["mixed"]()[:120])
    ids, bos = library.ids.tolist(), engine.tokenizer.bos
    rng = np.random.default_rng(seed)

    def logits(tokens: list[int]) -> np.ndarray:
        return library.runner.run(tokens, mode, (), rng)[0]

    clean, rows = logits(ids), np.arange(len(ids))
    yield "bos_added", library, from_logits(ids, logits([bos, *ids])[1:])
    yield "first_token_doubled", library, from_logits(ids, logits([ids[0], *ids])[1:])
    yield "first_token_dropped", library, from_logits(ids, logits(ids[1:]), rows[1:])
    yield "rows_early", library, from_logits(ids, clean[1:], rows[:-1])
    yield "rows_late", library, from_logits(ids, clean[:-1], rows[1:])
    yield "ids_up", library, from_logits(ids, np.roll(clean, 1, axis=1))
    yield "ids_down", library, from_logits(ids, np.roll(clean, -1, axis=1))
    yield "scaled", library, from_logits(ids, clean / 0.7)
    # prompts of text that the engine turns into wrong tokens; only logits from the prompt's end on are observed
    prompt = encode_chat_prompt(engine.tokenizer, "", "In 1998 the mill ground 1200 sacks. How many a month?", "none")
    answer = rng.integers(0, 256, 32).tolist()
    chat = Signatures(engine, prompt + answer)
    for mistake in MISTAKES:
        wrong = mistake.make(engine.tokenizer, prompt)
        if wrong == prompt:
            continue  # this vocabulary has no token of several digits
        after = np.arange(len(prompt) - 1, len(prompt) + len(answer))
        yield mistake.name, chat, from_logits(chat.ids, logits(wrong + answer)[-len(after) :], after)


def faults(engine: Engine, mode: str = "exact", seed: int = 11, top: int | None = None) -> Tally:
    """Diagnose an engine with each mistake of the library in turn; return the outcomes.

    top: number of log probabilities observed per position; None: all logits are
    """
    tally = Tally()
    for source in (inside, outside):
        for name, library, observation in source(engine, mode, seed):
            diagnosis = diagnose(
                library, observation if top is None else observation.top(top), engine.tokenizer.bos, seconds=0
            )
            right = diagnosis.fault == name
            kind = "right" if right else "wrong name" if diagnosis.fault else "not seen"
            if diagnosis.verdict == "unknown":
                kind = "none of these"
            tally.add(kind, f"{name}: {says(diagnosis)}", right)
    return tally


# -------------------------------------------------------------------------------------------------------------- clean


def clean(engine: Engine, trials: range, modes: tuple[str, ...] = tuple(ROUNDING)) -> Tally:
    """Diagnose engines without a mistake, with each choice of rounded values (rounding set), on random prompts of 16 to
    64 tokens.

    All logits and the 20 largest are observed alternately. Trial ``i`` is the same in any range, so that a long run can
    be split.
    """
    tally = Tally()
    for trial in trials:
        mode = modes[trial % len(modes)]
        rng = np.random.default_rng([trial, 2])
        library = Unkept(engine, rng.integers(0, DIAGNOSTIC.vocab, int(rng.integers(16, 65))).tolist())
        observation = from_logits(library.ids, library.run(mode, [], seed=trial))
        observed = observation.top(20) if trial // len(modes) % 2 else observation
        diagnosis = diagnose(library, observed, engine.tokenizer.bos, seconds=0)
        same = diagnosis.verdict == mode
        kind = "accused" if diagnosis.fault else "right set" if same else diagnosis.verdict
        if diagnosis.clean and not same:
            kind = f"{mode} taken for {kind}"
        tally.add(kind, f"trial {trial}: {mode}: {says(diagnosis)}", diagnosis.fault is None)
    return tally


# ---------------------------------------------------------------------------------------------------- unknown mistakes


def held_out(engine: Engine, trials: range) -> Tally:
    """Diagnose engines with mistakes that the library does not have; the trial number determines everything else.

    A verdict "clean" counts as right only if the mistake is below the size that the verdict states, and never if the
    mistake changes the best token by a margin above noise.
    """
    tally = Tally()
    for trial in trials:
        patient = draw(engine, trial, ("outside",))
        diagnosis = diagnose(patient.library, patient.seen, engine.tokenizer.bos, seconds=0)
        kind = "wrong name" if diagnosis.fault else "clean, below the limit" if diagnosis.clean else diagnosis.verdict
        bad = diagnosis.fault is not None or (diagnosis.clean and not right(patient, diagnosis))
        tally.add("acquitted" if bad and diagnosis.clean else kind, f"{patient}: {says(diagnosis)}", not bad)
    return tally


# ------------------------------------------------------------------------------------------------------------ command


def _show(name: str, tally: Tally, begun: float) -> None:
    print(f"{name}: {tally.counts.total()} trials in {time.monotonic() - begun:.0f} s")
    for kind, n in tally.counts.most_common():
        print(f"  {n:4}  {kind}")
    for remark in tally.remarks:
        print(f"        {remark}")
    sys.stdout.flush()


def main() -> int:
    """Run the measurement named on the command line and print it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("faults", "clean", "held-out"))
    parser.add_argument("--trials", type=int, default=60, help="of clean and held-out (60)")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--mode", choices=tuple(MODES), default="exact", help="of faults")
    parser.add_argument("--v41", action="store_true", help="of DeepSeek V4.1 (faults, clean)")
    args = parser.parse_args()
    trials, met = range(args.first, args.first + args.trials), True
    result: dict[str, Any] = {"what": args.what, "mode": args.mode}
    with Engine.open(diagnostic41_path() if args.v41 else diagnostic_path(), backend="cpu", numerics="exact") as engine:
        for top in TOPS if args.what == "faults" else (None,):
            begun = time.monotonic()
            if args.what == "faults":
                tally = faults(engine, args.mode, top=top)
                met &= args.mode != "exact" or tally.share("right") >= BARS[top]
            else:
                sets = tuple(Runner(engine).sets())
                tally = clean(engine, trials, sets) if args.what == "clean" else held_out(engine, trials)
                met = not tally.counts.keys() & {"accused", "wrong name", "acquitted"}
            name = f"top {top}" if top else "full"
            _show(f"{args.what}, {name}", tally, begun)
            result[name] = dict(tally.counts)
    print(json.dumps(result | {"met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
