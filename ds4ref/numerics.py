"""The numerics modes: which values each one rounds.

One forward pass serves all modes; a mode only switches roundings on or off at fixed points (model.md 10.1):

    exact   no rounding: agrees with Hugging Face's float32 modelling code to float noise
    qat     the cache roundings the model was trained with (E4M3 rows, Hadamard + FP4 indexer, f16 storage)
    ds4     qat plus the integer activations of ds4's CPU kernels
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from .errors import UsageError, did_you_mean


class Numerics(NamedTuple):
    """A named set of roundings.

    act_quant    int8 activations before every quantized matrix (per 32 for Q8_0, Q8_K per 256 for K and IQ formats)
    kv_fp8       E4M3 round trip of raw and compressed attention rows, non-rotary channels
    kv_f16       every cached row is stored as binary16
    indexer_qat  Hadamard-128 then E2M1 on indexer queries and rows
    route_floor  the routing normaliser is max(sum, 2^-14) instead of sum + 1e-20
    rope         angle recipe: "f32" (position x f32 frequency, as Hugging Face), "iterated" (f32 products, as ds4),
                 "f64" (the accurate one)
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
"""Lowest and highest value of each setting; integers where the bounds are."""


def checked_settings(settings: Mapping[str, Any]) -> None:
    """Raise UsageError for the first setting that is out of its range or no number; a seed may be None.

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
