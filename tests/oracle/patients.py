"""Patients for the diagnosis: Hugging Face's model with one mistake at a time, its logits stored.

LIBRARY_PATIENTS  mistakes that ``ds4ref.variants.LIBRARY`` names, made in other code
ROUNDED_PATIENTS  those of them that are about a rounding; they need a mode that has it
OUTSIDE_PATIENTS  mistakes that it does not have
DECODE_PATIENTS   mistakes of decode alone: a prefill of PREFILL tokens is right, what follows one by one is not
FAMILY_PATIENTS   mistakes of a size, several sizes each; pairs() are two of the library at once

Our engine takes no part in it: the weights are read by gguf-py, the mistakes are edits of transformers (surgery), and
roundings, if any, are those of hf_rounded.

    python -m tests.oracle.patients OUT                                the diagnostic model, prompt "mixed"
    python -m tests.oracle.patients OUT --rounding ds4 --prompt text
    python -m tests.oracle.patients OUT --model tiny.gguf --ids t200.ids.json

writes OUT/library.npz, outside.npz, decode.npz, families.npz, pairs.npz and (with a rounding) rounded.npz, or those
that --only names; a rounding stands before the suffix unless it is "exact". In each: ids (T,), names and says (n,),
logits (n, T, V) float32, effect (n,) rms against ``clean`` (T, V), the same engine without a mistake, and ``decode``
(T, V), that engine with all but the first PREFILL tokens one by one.
"""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from ds4ref.environment import usable_cores
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path

from .hf import Oracle
from .hf_rounded import rounded
from .patients_decode import DECODE_PATIENTS, PREFILL
from .patients_families import FAMILY_PATIENTS, pairs
from .patients_library import LIBRARY_PATIENTS as MODEL_PATIENTS
from .patients_library import ROUNDED_PATIENTS
from .patients_outside import OUTSIDE_PATIENTS
from .patients_reading import READING_PATIENTS
from .surgery import Patient

__all__ = [
    "DECODE_PATIENTS",
    "FAMILY_PATIENTS",
    "LIBRARY_PATIENTS",
    "OUTSIDE_PATIENTS",
    "PREFILL",
    "ROUNDED_PATIENTS",
    "ROUNDINGS",
    "Patient",
    "archive",
    "pairs",
    "rounding",
]

LIBRARY_PATIENTS = [*MODEL_PATIENTS, *READING_PATIENTS]

ROUNDINGS = ("exact", "qat", "ds4")


def rounding(oracle: Oracle, name: str) -> AbstractContextManager[None]:
    """The roundings of a mode, put on from outside; enter it after a patient's own changes."""
    return nullcontext() if name == "exact" else rounded(oracle, activations=name == "ds4")


def patient_logits(oracle: Oracle, patient: Patient, ids: list[int], mode: str = "exact") -> np.ndarray:
    """(T, V) float32 of the model with the mistake, in a rounding mode: one pass, or as a decode patient needs it."""
    with patient.apply(oracle), rounding(oracle, mode):
        return oracle.decode(ids, PREFILL) if patient in DECODE_PATIENTS else oracle.logits(ids)


def archive(oracle: Oracle, patients: list[Patient], ids: list[int], mode: str = "exact") -> dict[str, np.ndarray]:
    """The arrays of one archive (see above)."""
    with rounding(oracle, mode):
        decode = oracle.decode(ids, PREFILL)
        clean = decode if patients[0] in DECODE_PATIENTS else oracle.logits(ids)
    logits = np.stack([patient_logits(oracle, patient, ids, mode) for patient in patients])
    return {
        "ids": np.array(ids, np.int32),
        "names": np.array([patient.name for patient in patients]),
        "says": np.array([patient.says for patient in patients]),
        "logits": logits,
        "clean": clean,
        "decode": decode,
        "effect": np.sqrt(np.square(logits - clean, dtype=np.float64).mean(axis=(1, 2))),
    }


def main() -> None:
    """Write the archives."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.patients", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="diagnostic", help="a GGUF file; default: the diagnostic model")
    parser.add_argument("--prompt", default="mixed", choices=sorted(PROMPTS))
    parser.add_argument("--ids", type=Path, help="token ids (JSON list) instead of a prompt")
    parser.add_argument("--rounding", default="exact", choices=ROUNDINGS)
    lists = {
        "library": LIBRARY_PATIENTS,
        "outside": OUTSIDE_PATIENTS,
        "decode": DECODE_PATIENTS,
        "families": FAMILY_PATIENTS,
        "pairs": pairs(),
        "rounded": ROUNDED_PATIENTS,
    }
    parser.add_argument("--only", choices=lists, action="append", help="this list (again for more); default: all")
    options = parser.parse_args()
    ids = json.loads(options.ids.read_text()) if options.ids else PROMPTS[options.prompt]()
    model = diagnostic_path() if options.model == "diagnostic" else options.model
    oracle = Oracle.load(model, threads=usable_cores())
    options.out.mkdir(parents=True, exist_ok=True)
    suffix = "" if options.rounding == "exact" else f".{options.rounding}"
    for name in options.only or (name for name in lists if suffix or name != "rounded"):
        patients = lists[name]
        arrays = archive(oracle, patients, ids, options.rounding)
        np.savez(options.out / f"{name}{suffix}.npz", **arrays)
        for patient, effect in zip(patients, arrays["effect"], strict=True):
            print(f"{options.rounding:6} {name:8} {patient.name:28} rms {effect:.2e}", flush=True)


if __name__ == "__main__":
    main()
