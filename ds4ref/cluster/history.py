"""What a sequence consists of: a base, and the passes since. The coordinator's truth about caches that lie on workers.

A token's result depends, in its last bits, on whether it was decoded or in a chunk of many. So the passes are kept as
they were run; a worker's lost cache is made again by running the same ones. A node knows its parent: sequences and
snapshots with a common prefix share its nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_serials = itertools.count(1)


class Base:
    """The beginning of a sequence: nothing, or the rows of a saved session.

    A saved session is read into it as into a cache (``archs.deepseek4.payload.load``): ``layers`` holds the arguments
    of ``put_compressed`` and ``put`` by layer.
    """

    def __init__(self, ctx: int):
        self.ctx, self.end = ctx, 0
        self.layers: dict[int, tuple[dict[str, Any], Any, Any]] = {}
        self._compressed: dict[str, Any] = {}

    def restart(self, pos: int) -> None:
        """Begin at ``pos`` without rows."""
        self.end, self.layers = pos, {}

    def put_compressed(self, layer: int, kind: str, rows: Any) -> None:
        """Take a layer's compressed rows (n, width)."""
        self._compressed[kind] = rows

    def put(self, layer: int, raw: Any, projections: Any) -> None:
        """Take a layer's attention rows and open windows, after its compressed rows."""
        self.layers[layer] = self._compressed, raw, projections
        self._compressed = {}


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """A pass of ``ids`` after ``parent``, of which the first ``kept`` are still in the sequence.

    recorded: replayed from a recording, not run op by op
    serial: number of the pass, the same for all that keep a part of it
    """

    parent: Node
    ids: tuple[int, ...]
    recorded: bool
    kept: int
    end: int
    serial: int = field(default_factory=lambda: next(_serials))


Node = Base | Pass


def passed(parent: Node, ids: Sequence[int], recorded: bool) -> Pass:
    """Return the node after a pass of ``ids``."""
    return Pass(parent, tuple(int(token) for token in ids), recorded, len(ids), parent.end + len(ids))


def back(node: Node, pos: int) -> Node:
    """Return the node of the first ``pos`` tokens, which must not end within a base."""
    while isinstance(node, Pass) and node.end - node.kept >= pos:
        node = node.parent
    if isinstance(node, Pass) and node.end > pos:
        return replace(node, kept=node.kept - (node.end - pos), end=pos)
    assert node.end == pos
    return node


def chain(node: Node) -> tuple[Base, list[Pass]]:
    """Return the base of a sequence and its passes in order."""
    passes = []
    while isinstance(node, Pass):
        passes.append(node)
        node = node.parent
    return node, passes[::-1]
