"""The numerics modes: which values each one rounds.

One forward pass serves all modes; a mode only switches roundings on or off at fixed points (model.md 10.1):

    exact   no rounding: agrees with Hugging Face's float32 modelling code to float noise
    qat     the cache roundings the model was trained with (E4M3 rows, Hadamard + FP4 indexer, f16 storage)
    ds4     qat plus the integer activations of ds4's CPU kernels
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import UsageError


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
        raise UsageError(f"unknown numerics mode {name!r}: choose from {', '.join(MODES)}") from None
