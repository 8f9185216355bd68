"""Limit an injected bug (fault) to some layers, or to the attention or FFN halves of layers.

where = scopes(engine.shape)                      every such region of the model that is tried, by name
session.hooks = Scoped(LIBRARY["no_inverse_rope"], where["compressed layers"])
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..archs.deepseek4.chunk import Chunk
from ..archs.deepseek4.dimensions import Dimensions
from ..archs.deepseek4.shape import ModelShape
from .faults import Fault

Where = Callable[[int, str], bool]
"""Function (layer, half) -> whether this half of the layer is in the region; halves are "attn" and "ffn"."""

_OWN = (
    "ops", "shape", "rope", "visible", "kv_rounding", "row_rounding", "index_rounding", "visible_blocks", "listed",
    "plan",
)  # fmt: skip
"""Fields of a chunk that a fault's ``begin`` may replace."""


class Scoped:
    """Session hooks that apply one fault only where ``where`` is true; the output head counts as the last FFN half."""

    def __init__(self, fault: Fault, where: Where):
        self.inner, self.where = fault.hooks(), where
        self._wrong: dict[str, Any] = {}
        self._right: dict[str, Any] = {}
        self._on = False

    def begin(self, chunk: Chunk) -> None:
        """Apply the fault to a copy of the chunk; the chunk itself gets the changes only while inside the region."""
        shadow = copy.copy(chunk)
        before = {name: getattr(shadow, name, None) for name in _OWN}
        self.inner.begin(shadow)
        self._wrong = {n: vars(shadow)[n] for n in _OWN if n in vars(shadow) and vars(shadow)[n] is not before[n]}
        self._right = {name: before[name] for name in self._wrong}
        # a chunk caches the tables it computes: those made with the fault must not reach other layers, nor the reverse
        self._wrong["_inputs"], self._right["_inputs"] = {}, chunk._inputs
        self._on = False
        self._enter(chunk, self.where(0, "attn"))

    def tap(self, name: str, layer: int, value: Any, chunk: Chunk) -> Any:
        """Return an intermediate with the fault's edit applied, or unchanged outside the region."""
        changed = self.inner.tap(name, layer, value, chunk)
        if self._on:
            value = changed
        if name == "hc_attn_post":
            self._enter(chunk, self.where(layer, "ffn"))
        elif name == "hc_ffn_post" and layer + 1 < len(chunk.shape.ratios):
            self._enter(chunk, self.where(layer + 1, "attn"))
        return value

    def _enter(self, chunk: Chunk, on: bool) -> None:
        self._on = on
        for name, value in (self._wrong if on else self._right).items():
            setattr(chunk, name, value)


@dataclass(frozen=True)
class ScopedFault:
    """A fault limited to one region of the model, for ``Runner``.

    fault  what is wrong there
    part   name of the region, such as "compressed layers"
    where  returns whether the attention or FFN half of a layer is in the region
    """

    fault: Fault
    part: str
    where: Where

    @property
    def name(self) -> str:
        """Return the name of the fault with that of the region: "no_sink [compressed layers]"."""
        return f"{self.fault.name} [{self.part}]"

    @property
    def ahead(self) -> bool:
        """Return whether later tokens influence earlier ones."""
        return self.fault.ahead

    @property
    def touches(self) -> frozenset[str]:
        """Return the names of everything the fault changes (``Fault.touches``)."""
        return self.fault.touches

    def hooks(self) -> Scoped:
        """Return new session hooks that apply this fault in its region."""
        return Scoped(self.fault, self.where)


FFN = ("ffn_", "route", "swiglu", "expert_", "n_used")
COMPRESSED = ("attn_comp", "indexer", "KVcompress", "comp_count", "visible", "index_", "pool")
HEAD = ("result_",)
"""Beginnings of the names of what only FFN halves, only layers with compression, and only the output head compute."""


def halves(fault: Fault | ScopedFault, shape: Dimensions) -> frozenset[int]:
    """Return the half layers that a fault may change: 2 n is the attention half of layer n, 2 n + 1 its FFN half; the
    output head counts as one more."""
    end = 2 * len(shape.ratios)
    every = frozenset(range(end + 1))
    if isinstance(fault, ScopedFault):
        parts = (((min(n, end - 1)) // 2, "ffn" if n % 2 or n == end else "attn") for n in range(end + 1))
        return halves(fault.fault, shape) & {n for n, part in enumerate(parts) if fault.where(*part)}
    if not fault.touches or (fault.begin is not None and not getattr(fault.begin, "touches", None)):
        return every
    compressed = frozenset(n for n in range(0, end, 2) if shape.ratios[n // 2])
    kinds = ((FFN, frozenset(range(1, end, 2))), (COMPRESSED, compressed), (HEAD, frozenset({end})))
    known = (next((inside for begins, inside in kinds if name.startswith(begins)), every) for name in fault.touches)
    return frozenset().union(*known)


def first_half(fault: Fault | ScopedFault, shape: Dimensions) -> int:
    """Return the first half layer that a fault may change, as ``halves`` counts; the output head's number if none."""
    return min(halves(fault, shape), default=2 * len(shape.ratios))


def scopes(shape: Any) -> dict[str, Where]:
    """Return the regions of a model that faults are limited to, by the names used in verdicts; {} for a dense decoder,
    and for V4.1, whose layers read each other's rows and choices."""
    if not isinstance(shape, ModelShape):
        return {}
    parts: dict[str, Where] = {
        "layers without compression": lambda layer, half: shape.ratios[layer] == 0,
        "compressed layers": lambda layer, half: shape.ratios[layer] != 0,
        "attention halves": lambda layer, half: half == "attn",
        "FFN halves": lambda layer, half: half == "ffn",
    }
    for number in range(len(shape.ratios)):
        parts[f"layer {number}"] = lambda layer, half, number=number: layer == number  # type: ignore[misc]
    return parts
