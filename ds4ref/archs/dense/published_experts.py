"""Routed experts in Hugging Face's layout: names of their tensors, and of the config.json keys with their numbers.

Checkpoints have one tensor for each matrix of each expert; the engine's tensors stack the matrices of all experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ...weights.accounting import same
from ...weights.published import TensorParts

if TYPE_CHECKING:
    from ...weights.config import Config

MAX_EXPERTS = 4096


class ExpertNames(NamedTuple):
    """How a family's published folders name its experts.

    module         name of the feed-forward module in a layer, which contains the router ``gate``
    matrices       names of the gate, up and down matrices of an expert
    keys, number   config keys that state the number of experts, and the default if none is there
    used           number of experts that a token uses, if ``num_experts_per_tok`` is absent
    width          config key of the width of an expert
    only           (config key, the only supported value, value if the key is absent) of keys that must be checked
    """

    module: str
    matrices: tuple[str, str, str]
    keys: tuple[str, ...]
    number: int
    used: int
    width: str
    only: tuple[tuple[str, object, object], ...] = ()

    def sizes(self, config: Config) -> tuple[int, int, int]:
        """Return the number of experts of a layer, the number that a token uses, and their width; raise ModelFileError
        for a config with unsupported or contradictory values."""
        for key, wanted, absent in self.only:
            value = config.value(key, absent)
            if not same(value, wanted):
                raise config.fail(key, f"is {str(value).lower()[:40]}, which is not supported here")
        counts = {key: config.integer(key, low=1, high=MAX_EXPERTS) for key in self.keys if config.has(key)}
        count = next(iter(counts.values()), self.number)
        for key, other in counts.items():
            if other != count:
                raise config.fail(key, f"is {other}, {self.keys[0]} is {count}")
        used = config.integer("num_experts_per_tok", self.used, low=1, high=count)
        return count, used, config.integer(self.width, low=1)

    def parts(self, layer: int, count: int) -> Iterator[TensorParts]:
        """Yield how the tensors of a layer's router and ``count`` experts are made of published tensors."""
        at, blk = f"model.layers.{layer}.{self.module}", f"blk.{layer}.ffn"
        yield TensorParts(f"{blk}_gate_inp.weight", (f"{at}.gate.weight",))
        for ours, theirs in zip(("gate", "up", "down"), self.matrices, strict=True):
            names = tuple(f"{at}.experts.{expert}.{theirs}.weight" for expert in range(count))
            yield TensorParts(f"{blk}_{ours}_exps.weight", names, stack=True)
