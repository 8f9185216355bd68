"""Priors and confidence of a diagnosis: derived from, fitted on and checked on simulated engines.

    python -m benchmarks.calibration collect OUT.jsonl --trials 600      diagnose patients, append one record for each
    python -m benchmarks.calibration fit OUT.jsonl                       fit on even trials, check on odd ones
    python -m benchmarks.calibration priors                              shares of each kind of explanation

``collect`` goes on where it was stopped. ``fit`` prints the reliability table and the acquittals. With ``--write``,
``fit`` and ``priors`` replace their part of test_vectors/diagnosis/calibration.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.test_vectors.diagnosis import Diagnosis, diagnose
from ds4ref.test_vectors.diagnosis.calibration import FEATURES, PATH, kind_of, probability, vector
from ds4ref.test_vectors.diagnosis.outside import slips
from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING

from .patients import KINDS, LENGTHS, MODES_ALONE, Patient, draw, library_of

BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0001)
RIDGE = 1.0
"""Weight of the penalty on coefficients: few trials of a kind must not give certainty."""


def outcome(patient: Patient, found: Diagnosis) -> dict[str, Any]:
    """One line of the record: what was true, what was said, and whether that is right."""
    return {
        "trial": patient.trial, "kind": patient.kind, "mode": patient.mode, "truth": patient.truth,
        "size": patient.size, "effect": patient.effect, "flips": patient.flips, "positions": len(patient.seen.rows),
        "top": None if patient.seen.full else patient.seen.logprobs.shape[1], "stored": patient.seen.stored,
        "verdict": found.verdict, "fault": found.fault, "parameter": found.parameter,
        "seen_from": None if found.sight is None else found.sight["size"], "features": found.features,
        "right": right(patient, found),
    }  # fmt: skip


def right(patient: Patient, found: Diagnosis) -> bool:
    """Whether the verdict is true. A clean one is, if the engine is clean or its mistake is below the size that the
    verdict itself states; "undecided" claims nothing, and counts as right if there is a mistake."""
    if found.verdict == "fault":
        return any(name in patient.truth for name in found.faults)
    if found.verdict == "unknown":
        return patient.kind == "outside"
    if found.verdict == "undecided":
        return patient.kind != "clean"
    size = 0.0 if found.sight is None else float(found.sight["size"])
    return patient.kind == "clean" or (patient.effect <= size and not patient.flips)


def collect(path: Path, trials: range) -> None:
    """Diagnose patients that are not in the file yet."""
    done = {json.loads(line)["trial"] for line in path.read_text().splitlines()} if path.exists() else set()
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as engine, open(path, "a") as out:
        for trial in trials:
            if trial in done:
                continue
            patient = draw(engine, trial)
            found = diagnose(patient.library, patient.seen, engine.tokenizer.bos)
            out.write(json.dumps(outcome(patient, found)) + "\n")
            out.flush()
            print(f"{patient}: {found.fault or found.verdict}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------------------ priors


def priors(engine: Engine) -> dict[str, Any]:
    """Shares of rounding sets and of kinds of explanation in the mix of ``draw``, with their derivation.

    Mistakes around the model (slips) are as likely each as one of the library. Of the mistakes that have no name, as
    many are a part, a late onset or a pair of known ones as are none of these.
    """
    each = 1 / len(KINDS)
    modes = MODES_ALONE + (1 - MODES_ALONE) * len(MODE_NAMES) / len(ROUNDING)
    outside = len(slips(library_of(engine, LENGTHS[0], 0), engine.tokenizer.bos))
    inside = len(LIBRARY) / (len(LIBRARY) + outside)
    kinds = {"clean": each, "fault": each * inside, "slip": each * (1 - inside), "family": each}
    kinds |= dict.fromkeys(("part", "late", "pair", "none"), each / 4)
    return {
        "sets": {"mode": round(modes, 4), "rounding": round(1 - modes, 4)},
        "kinds": {kind: round(share, 4) for kind, share in kinds.items()},
        "from": f"python -m benchmarks.calibration priors: kinds {', '.join(KINDS)} equally often, "
                f"{MODES_ALONE:.0%} of the engines in a mode",
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- fit


def logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients (features + 1,) of a ridge-penalised logistic regression, by Newton's method."""
    a = np.column_stack((np.ones(len(x)), x))
    w = np.zeros(a.shape[1])
    penalty = np.eye(a.shape[1]) * RIDGE
    penalty[0, 0] = 1e-3
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(a @ w, -30, 30)))
        gradient = a.T @ (y - p) - penalty @ w
        curve = (a * (p * (1 - p))[:, None]).T @ a + penalty
        step = np.linalg.solve(curve, gradient)
        w += step
        if np.abs(step).max() < 1e-8:
            break
    return w


def fit(records: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Coefficients by kind of verdict."""
    found = {}
    for kind in FEATURES:
        some = [r for r in records if kind_of(r["verdict"]) == kind]
        x = np.array([vector(kind, r["features"]) for r in some]).reshape(len(some), len(FEATURES[kind]))
        y = np.array([float(r["right"]) for r in some])
        # one right and one wrong verdict more than there were: dozens of trials without an error are no certainty
        middle = x.mean(axis=0, keepdims=True) if len(some) else np.zeros((1, len(FEATURES[kind])))
        x, y = np.concatenate((x, middle, middle)), np.append(y, (1.0, 0.0))
        found[kind] = [round(float(v), 5) for v in logistic(x, y)]
    return found


def reliability(records: Sequence[dict[str, Any]], coefficients: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Share right by bin of confidence."""
    p = np.array([probability(kind_of(r["verdict"]), r["features"], coefficients) for r in records])
    y = np.array([float(r["right"]) for r in records])
    rows = []
    for low, high in zip(BINS[:-1], BINS[1:], strict=True):
        inside = (p >= low) & (p < high)
        if inside.any():
            said, true = (round(float(each[inside].mean()), 3) for each in (p, y))
            rows.append({"from": low, "to": min(high, 1.0), "trials": int(inside.sum()), "said": said, "right": true})
    return rows


def acquittals(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Engines with a mistake that were called clean: how many, and of those how many whose best token changes with a
    margin, or whose mistake is larger than the verdict says it would have seen."""
    wrong = [r for r in records if r["kind"] != "clean"]
    cleared = [r for r in wrong if kind_of(r["verdict"]) == "clean"]
    return {
        "with a mistake": len(wrong),
        "called clean": len(cleared),
        "of these above the stated size": sum(r["effect"] > (r["seen_from"] or 0) for r in cleared),
        "of these with another best token": sum(bool(r["flips"]) for r in cleared),
        "clean engines": sum(r["kind"] == "clean" for r in records),
        "clean engines accused": sum(r["kind"] == "clean" and r["verdict"] == "fault" for r in records),
        "wrong names": sum(r["verdict"] == "fault" and not r["right"] for r in records),
    }


def main() -> int:
    """Parse, collect, fit or derive."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("what", choices=("collect", "fit", "priors"))
    parser.add_argument("file", type=Path, nargs="?", help="records of collect and fit")
    parser.add_argument("--trials", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--write", action="store_true", help="store the result")
    args = parser.parse_args()
    if args.what == "priors":
        with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as engine:
            part: dict[str, Any] = {"priors": priors(engine)}
        print(json.dumps(part))
    elif args.file is None:
        parser.error(f"{args.what} needs a file of records")
    elif args.what == "collect":
        collect(args.file, range(args.first, args.first + args.trials))
        return 0
    else:
        part = fitted([json.loads(line) for line in args.file.read_text().splitlines()])
    if args.write:
        PATH.write_text(json.dumps(json.loads(PATH.read_text()) | part, indent=1) + "\n")
    return 0


def fitted(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Fit on even trials, check on odd ones, print both."""
    apart = [r for r in records if r["trial"] % 2]
    coefficients = fit([r for r in records if r["trial"] % 2 == 0])
    checked = reliability(apart, coefficients)
    for row in checked:
        span = f"{row['from']:.2f} to {row['to']:.2f}"
        print(f"{span}: {row['trials']:4} trials, said {row['said']:.3f}, right {row['right']:.3f}")
    print(json.dumps(acquittals(records)))
    return {"coefficients": coefficients, "trials": len(records) - len(apart), "checked": checked}


if __name__ == "__main__":
    sys.exit(main())
