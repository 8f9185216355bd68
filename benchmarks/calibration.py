"""Priors and confidence of a diagnosis: derived, fitted and checked on simulated engines ("patients").

    python -m benchmarks.calibration collect OUT.jsonl --trials 600      diagnose patients, append one record for each
    python -m benchmarks.calibration fit OUT.jsonl                       fit on even trials, check on odd ones
    python -m benchmarks.calibration priors                              shares of each kind of explanation

``collect`` resumes where it was stopped. ``fit`` prints a reliability table, and how many faulty engines were called
clean. With ``--write``, ``fit`` and ``priors`` replace their part of test_vectors/diagnosis/calibration.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, special

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.test_vectors.diagnosis import Diagnosis, diagnose
from ds4ref.test_vectors.diagnosis.calibration import FEATURES, PATH, kind_of, probability, vector
from ds4ref.test_vectors.diagnosis.outside import outside_bugs
from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING

from .patients import KINDS, LENGTHS, MODES_ALONE, Patient, draw, library_of

BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0001)
EQUAL = {"scaled": "logit_scale"}
"""Two names of the same mistake: logits scaled in the engine, and logits scaled when they are written to a file."""
RIDGE = 1.0
"""Weight of the ridge penalty on coefficients, so that few trials of a kind do not give certainty."""


def outcome(patient: Patient, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the record of one trial: the patient's true mistakes, the verdict and its features, and whether it is
    right."""
    return {
        "trial": patient.trial, "kind": patient.kind, "mode": patient.mode, "truth": patient.truth,
        "size": patient.size, "effect": patient.effect, "flips": patient.flips, "positions": len(patient.seen.rows),
        "top": None if patient.seen.full else patient.seen.logprobs.shape[1], "stored": patient.seen.stored,
        "verdict": diagnosis.verdict, "fault": diagnosis.fault, "parameter": diagnosis.parameter,
        "seen_from": None if diagnosis.limit is None else diagnosis.limit["size"], "features": diagnosis.features,
        "right": right(patient, diagnosis),
    }  # fmt: skip


def right(patient: Patient, diagnosis: Diagnosis) -> bool:
    """Return whether the verdict on ``patient`` is true.

    "Clean" is true if the engine is clean or its mistake is below the size that the verdict states; "undecided" claims
    nothing and counts as right if there is a mistake.
    """
    if diagnosis.verdict == "fault":
        return any(EQUAL.get(name, name) in patient.truth for name in diagnosis.faults)
    if diagnosis.verdict == "unknown":
        return patient.kind == "outside"
    if diagnosis.verdict == "undecided":
        return patient.kind != "clean"
    size = 0.0 if diagnosis.limit is None else float(diagnosis.limit["size"])
    return patient.kind == "clean" or (patient.effect <= size and not patient.flips)


def collect(path: Path, trials: range) -> None:
    """Diagnose the patients of ``trials`` that are not in the file yet, and append their records."""
    done = {json.loads(line)["trial"] for line in path.read_text().splitlines()} if path.exists() else set()
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as engine, open(path, "a") as out:
        for trial in trials:
            if trial in done:
                continue
            patient = draw(engine, trial)
            diagnosis = diagnose(patient.library, patient.seen, engine.tokenizer.bos, seconds=0)
            out.write(json.dumps(outcome(patient, diagnosis)) + "\n")
            out.flush()
            print(f"{patient}: {diagnosis.fault or diagnosis.verdict}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------------------ priors


def priors(engine: Engine) -> dict[str, Any]:
    """Return the prior of each rounding set (which values the engine rounds) and kind of explanation: its share among
    the patients of ``draw``.

    Each mistake outside the model, such as in the tokenizer (a slip), is as likely as each mistake in the library of
    known ones. A mistake that has no name is, equally often, part of a known mistake, a known mistake that sets in
    late, a pair of known ones, or none of these.
    """
    kind_share = 1 / len(KINDS)
    modes = MODES_ALONE + (1 - MODES_ALONE) * len(MODE_NAMES) / len(ROUNDING)
    outside = len(outside_bugs(library_of(engine, LENGTHS[0], 0), engine.tokenizer.bos))
    inside = len(LIBRARY) / (len(LIBRARY) + outside)
    kinds = {
        "clean": kind_share,
        "fault": kind_share * inside,
        "outside": kind_share * (1 - inside),
        "family": kind_share,
    }
    kinds |= dict.fromkeys(("part", "late", "pair", "none"), kind_share / 4)
    return {
        "sets": {"mode": round(modes, 4), "rounding": round(1 - modes, 4)},
        "kinds": {kind: round(share, 4) for kind, share in kinds.items()},
        "from": f"python -m benchmarks.calibration priors: kinds {', '.join(KINDS)} equally often, "
                f"{MODES_ALONE:.0%} of the engines in a mode",
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- fit


def logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fit a logistic regression with a ridge penalty; return its coefficients (features + 1,).

    x: features (n, features)
    y: outcomes (n,), 0 or 1
    """
    a = np.column_stack((np.ones(len(x)), x))
    penalty = np.array([1e-3] + [RIDGE] * x.shape[1])

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        odds = a @ w
        value = (np.logaddexp(0, odds) - y * odds).sum() + penalty @ w**2 / 2
        return float(value), a.T @ (special.expit(odds) - y) + penalty * w

    return np.asarray(optimize.minimize(loss, np.zeros(a.shape[1]), jac=True, options={"gtol": 1e-7}).x)


def fit(records: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Fit to records of trials the coefficients that turn features into a confidence; return them by kind of
    verdict."""
    coefficients = {}
    for kind in FEATURES:
        chosen = [r for r in records if kind_of(r["verdict"]) == kind]
        x = np.array([vector(kind, r["features"]) for r in chosen]).reshape(len(chosen), len(FEATURES[kind]))
        y = np.array([float(r["right"]) for r in chosen])
        # add one right and one wrong verdict, because dozens of trials without an error are not certainty
        middle = x.mean(axis=0, keepdims=True) if len(chosen) else np.zeros((1, len(FEATURES[kind])))
        x, y = np.concatenate((x, middle, middle)), np.append(y, (1.0, 0.0))
        coefficients[kind] = [round(float(v), 5) for v in logistic(x, y)]
    return coefficients


def reliability(records: Sequence[dict[str, Any]], coefficients: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return, for each bin of confidence, the share of verdicts that are right."""
    p = np.array([probability(kind_of(r["verdict"]), r["features"], coefficients) for r in records])
    y = np.array([float(r["right"]) for r in records])
    rows = []
    for low, high in zip(BINS[:-1], BINS[1:], strict=True):
        inside = (p >= low) & (p < high)
        if inside.any():
            confidence, share = (round(float(values[inside].mean()), 3) for values in (p, y))
            trials = int(inside.sum())
            rows.append({"from": low, "to": min(high, 1.0), "trials": trials, "said": confidence, "right": share})
    return rows


def acquittals(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count engines with a mistake that were called clean.

    Of these, also count the engines in which the mistake changes the best token by a margin above noise, and those
    whose mistake is larger than the size that the verdict claims to detect.
    """
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
    """Run the subcommand of the command line; return the exit code."""
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
    """Fit the coefficients on even trials and check them on odd ones; print and return the results."""
    held_out = [r for r in records if r["trial"] % 2]
    coefficients = fit([r for r in records if r["trial"] % 2 == 0])
    checked = reliability(held_out, coefficients)
    for row in checked:
        span = f"{row['from']:.2f} to {row['to']:.2f}"
        print(f"{span}: {row['trials']:4} trials, said {row['said']:.3f}, right {row['right']:.3f}")
    print(json.dumps(acquittals(records)))
    return {"coefficients": coefficients, "trials": len(records) - len(held_out), "checked": checked}


if __name__ == "__main__":
    sys.exit(main())
