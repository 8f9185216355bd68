"""Replace expert layers of one model file, the base, by those of another, the donor.

Tensors are copied without decoding, in any format that a GGUF file can have; names, dimensions and metadata are those
of the base. Metadata of the result records where the layers came from (``ds4ref.splice.*``).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from ...environment import ranges
from ...errors import DataError
from ..container import TensorSpec
from ..source import TensorInfo, TensorSource
from .families import EXPERTS, family_of, layer_of
from .plan import Item, Plan, alignment, entries


def splice_plan(base: TensorSource, donor: TensorSource, layers: Collection[int]) -> tuple[Plan, set[str]]:
    """Plan a copy of ``base`` in which the routed experts of ``layers`` are those of ``donor``.

    Return the plan, and the names of the tensors that come from the donor. Raise DataError for layers without routed
    experts, and for tensors that the donor lacks or has with other dimensions.
    """
    experts: dict[int, list[TensorInfo]] = {}
    for info in base.tensors.values():
        layer = layer_of(info.name)
        if layer is not None and family_of(info.name, len(info.dims)) in EXPERTS:
            experts.setdefault(layer, []).append(info)
    if not experts:
        raise DataError(f"{base.path}: has no routed experts")
    beyond = sorted(set(layers) - experts.keys())
    if beyond:
        raise DataError(
            f"{base.path}: layer {beyond[0]} has no routed experts (layers {min(experts)} to {max(experts)} do)"
        )
    replaced = {info.name for layer in layers for info in experts[layer]}
    items = []
    for info in base.tensors.values():
        origin = info
        if info.name in replaced:
            other = donor.tensors.get(info.name)
            if other is None:
                raise DataError(f"{donor.path}: has no {info.name}")
            if other.dims != info.dims:
                raise DataError(f"{donor.path}: {info.name} has dims {list(other.dims)}, the base's {list(info.dims)}")
            origin = other
        family = family_of(info.name, len(info.dims))
        why = "donor" if info.name in replaced else "base"
        items.append(Item(TensorSpec(info.name, origin.fmt.name, info.dims), origin, family, why))
    origin_metadata: list[tuple[str, str, Any]] = [
        ("ds4ref.splice.donor", "string", os.path.basename(os.fspath(donor.path))),
        ("ds4ref.splice.layers", "string", ranges(sorted(set(layers)))),
    ]
    metadata = entries(base.metadata, without="ds4ref.splice.")
    return Plan(items, [*metadata, *origin_metadata], alignment(base.metadata), []), replaced


class Spliced:
    """A ``TensorSource`` with the tensors named in ``taken`` from the donor and all others from the base."""

    def __init__(self, base: TensorSource, donor: TensorSource, taken: Collection[str]):
        self.base, self.donor, self.taken = base, donor, taken
        self.path, self.size, self.metadata = base.path, base.size, base.metadata
        self.tensors = {name: (donor if name in taken else base).tensors[name] for name in base.tensors}

    def raw(self, name: str) -> Any:
        """Return the stored bytes of a tensor, from base or donor."""
        return (self.donor if name in self.taken else self.base).raw(name)

    def close(self) -> None:
        """Close both sources."""
        self.base.close()
        self.donor.close()
