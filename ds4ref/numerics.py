"""The numerics modes: which values each one rounds.

All modes share one forward pass; a mode only switches the rounding of intermediate values on or off at fixed places in
it (model.md 10.1):

    exact   no rounding: agrees with Hugging Face's float32 modelling code to float noise
    qat     the rounding of cached values that the model was trained with (E4M3 rows, Hadamard + FP4 indexer, f16
            storage)
    ds4     qat plus the integer activations of ds4's CPU kernels
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from .errors import UsageError, did_you_mean


class Numerics(NamedTuple):
    """A numerics mode: which intermediate values are rounded, and how.

    act_quant    round the activations to int8 before every quantized matrix (Q8_0: groups of 32; K and IQ formats:
                 Q8_K, groups of 256)
    kv_fp8       round the non-rotary channels of raw and compressed attention cache rows to E4M3 and back
    kv_f16       store every cache row as binary16
    indexer_qat  apply a Hadamard-128 transform, then round to E2M1, on the indexer's queries and cache rows
    route_floor  normalise routing weights by max(sum, 2^-14) instead of sum + 1e-20
    rope         how rotary angles are computed: "f32" (position x f32 frequency, as Hugging Face), "iterated" (f32
                 products, as ds4), "f64" (the accurate one)
    own_inputs   use the checkpoint's own activation rounding (llama2.c's version 2: runq.c groups)
    """

    name: str
    act_quant: bool
    kv_fp8: bool
    kv_f16: bool
    indexer_qat: bool
    route_floor: bool
    rope: str
    own_inputs: bool = False


MODES: dict[str, Numerics] = {
    "exact": Numerics("exact", False, False, False, False, False, "f32"),
    "qat": Numerics("qat", False, True, True, True, True, "f64", True),
    "ds4": Numerics("ds4", True, True, True, True, True, "iterated", True),
}

DEFAULT_MODE = "qat"


def numerics(name: str) -> Numerics:
    """Return the mode ``name``; raise UsageError listing the valid names."""
    try:
        return MODES[name]
    except KeyError:
        raise UsageError(
            f"unknown numerics mode {name!r}: choose from {', '.join(MODES)}{did_you_mean(name, MODES)}"
        ) from None


# --- settings of generation, the same for the Python API and the command line

RANGES: dict[str, tuple[Any, Any]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "top_k": (0, 1024),
    "seed": (0, 2**64 - 1),
    "max_tokens": (0, 2**31 - 1),
}
"""Lowest and highest value of each setting; where these are integers, the setting is one too."""


def checked_settings(settings: Mapping[str, Any]) -> None:
    """Raise UsageError for the first setting that is out of its range or not a number; a seed may be None.

    Raise TypeError for a setting that does not exist.
    """
    for name, value in settings.items():
        if name not in RANGES:
            raise TypeError(f"unknown option {name!r}: choose from {', '.join(RANGES)}{did_you_mean(name, RANGES)}")
        lo, hi = RANGES[name]
        whole = isinstance(lo, int)
        if name == "seed" and value is None:
            continue
        kind: Any = Integral if whole else Real
        if not isinstance(value, kind) or isinstance(value, bool) or not lo <= value <= hi:
            text = repr(value)
            shown = text if len(text) <= 40 else text[:37] + "..."
            kind_name = "an integer" if whole else "a number"
            span = f">= {lo}" if hi >= 2**31 - 1 else f"from {lo:g} to {hi:g}"
            raise UsageError(f"{name} is {shown}: {kind_name} {span} is needed")
