"""The history of a sequence: its beginning, and the forward passes since. From it, caches on a worker can be restored.

The last bits of a token's result depend on whether it was decoded alone or in a prefill chunk of many. Therefore passes
are recorded as they were run; if a worker is lost, its caches are computed again by running the same passes. The
history is a chain of nodes that refer to their parents, so sequences and snapshots with a common prefix share nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_serials = itertools.count(1)


class Base:
    """The beginning of a sequence: nothing, or the cache rows of a saved session.

    A saved session is loaded into this object as into a cache (``archs.deepseek4.payload.load``): ``layers`` keeps, by
    layer, the arguments with which ``put_compressed`` and ``put`` were called. ``end`` is the number of ``tokens``.
    """

    def __init__(self, ctx: int):
        self.ctx, self.end = ctx, 0
        self.tokens: list[int] = []
        self.layers: dict[int, tuple[dict[str, Any], Any, Any]] = {}
        self._compressed: dict[str, Any] = {}

    def restart(self, pos: int) -> None:
        """Set the number of tokens to ``pos``, without cache rows yet."""
        self.end, self.layers = pos, {}

    def put_compressed(self, layer: int, kind: str, rows: Any) -> None:
        """Keep a layer's compressed cache rows (n, width); ``kind`` names the compressor."""
        self._compressed[kind] = rows

    def put(self, layer: int, raw: Any, projections: Any) -> None:
        """Keep a layer's uncompressed cache rows and the projections of tokens not yet compressed.

        This is called after ``put_compressed``, and completes the layer.
        """
        self.layers[layer] = self._compressed, raw, projections
        self._compressed = {}


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """A forward pass as a node of the history.

    parent     the history before it
    ids        token ids of the pass
    recorded   whether it was replayed from a recording of operations, as in decode
    kept       number of its tokens that are still in the sequence; the others were rewound
    end        number of tokens of the sequence up to here
    serial     number of the pass, the same for nodes that differ only in ``kept``
    """

    parent: Node
    ids: tuple[int, ...]
    recorded: bool
    kept: int
    end: int
    serial: int = field(default_factory=lambda: next(_serials))


Node = Base | Pass


def passed(parent: Node, ids: Sequence[int], recorded: bool) -> Pass:
    """Return the history ``parent`` extended by a pass of ``ids``."""
    return Pass(parent, tuple(int(token) for token in ids), recorded, len(ids), parent.end + len(ids))


def back(node: Node, pos: int) -> Node:
    """Return the history of the first ``pos`` tokens, which must not end within the cache rows of a saved session."""
    while isinstance(node, Pass) and node.end - node.kept >= pos:
        node = node.parent
    if isinstance(node, Pass) and node.end > pos:
        return replace(node, kept=node.kept - (node.end - pos), end=pos)
    assert node.end == pos
    return node


def chain(node: Node) -> tuple[Base, list[Pass]]:
    """Return the beginning of a history, and its passes in order."""
    passes = []
    while isinstance(node, Pass):
        passes.append(node)
        node = node.parent
    return node, passes[::-1]
