"""What to do after the diagnosis "unknown": which intermediates to dump, and the command that reads the dump.

A bug in an engine's code is in every layer of a kind, so one layer of each kind is enough. If the first wrong position
is where the compressed cache rows of one kind of layers begin to have an effect, a layer of that kind is enough.
docs/reference/trace.md has code that dumps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ds4ref.variants import ROUNDING

from ..diagnosis.onsets import LATE, compressed
from ..diagnosis.verdict import Diagnosis

LIKELY = 0.05
"""Probability of a place from which on its layer is to be dumped."""


@dataclass(frozen=True)
class DumpPlan:
    """A dump of the other engine's intermediates that would show where it is wrong.

    tokens  number of tokens, from the start of the prompt
    layers  layers to dump
    """

    tokens: int
    layers: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan in JSON types."""
        return {"layers": list(self.layers), "positions": [0, self.tokens - 1]}

    def text(self, model: str = "", ids: str = "") -> str:
        """Return the plan in one line; ``model``: options that name the model; ``ids``: file of the token ids."""
        listed = ", ".join(map(str, self.layers)) or "none"
        layers = ",".join([*map(str, self.layers), "head"])
        command = f"ds4-vectors trace blame DUMP {model} --token-ids {ids or 'IDS.json'} --layers {layers}"
        return (f"a dump of layer{'s' if len(self.layers) > 1 else ''} {listed} and the head, with the input of each, "
                f"at positions 0 to {self.tokens - 1} would tell which op is wrong (how: docs/reference/trace.md): "
                f"{' '.join(command.split())}")  # fmt: skip


def planned(shape: Any, tokens: int, diagnosis: Diagnosis) -> DumpPlan | None:
    """Return the dump of ``tokens`` tokens that would show what is wrong if the diagnosis is "unknown" or has places.

    None for any other verdict, and for any model but DeepSeek V4 and V4.1, as trace knows no other. ``shape``: the
    model's.
    """
    if not (diagnosis.verdict == "unknown" or diagnosis.places) or not hasattr(shape, "ratio_kinds"):
        return None
    likely = [place for place in diagnosis.places if place["probability"] >= LIKELY]
    if likely and all(place["layer"] is not None for place in likely):
        return DumpPlan(tokens, tuple(sorted({place["layer"] for place in likely} - {-1})))
    # in a rounding set with much noise, the mistake may begin earlier than is seen
    exactly = diagnosis.mode in ROUNDING and not ROUNDING[diagnosis.mode].coarse
    first = diagnosis.first_position or 0
    near = [ratio for ratio in sorted(set(shape.ratios) - {0})
            if exactly and any(at <= first <= at + LATE for at, _ in compressed(shape, ratio))]  # fmt: skip
    kinds = near if near else sorted(set(shape.ratios))
    layers = tuple(sorted(shape.ratios.index(ratio) for ratio in kinds))
    if not near and max(layers) < shape.n_hash_layers < shape.n_layers:
        layers = (*layers, shape.n_hash_layers)
    if not near and hasattr(shape, "engram_layers"):
        layers = tuple(sorted({*layers, *shape.engram_layers[:1], *shape.index_sources[-1:]}))
    return DumpPlan(tokens, layers)
