"""Decode of single tokens: the pass of one token is recorded once and replayed for the next ones.

The first token of a kind runs through the model's own pass with a recording backend: its ops compute nothing, they note
steps and the steps' dependencies. For the next tokens only the inputs are set (token, position, rope angles) and the
steps run as one job. The key of the model's ``plan_token`` selects the recording: it covers what Python decides from
the position, such as whether a compression window closes. There is no second copy of the pass, so only the schedule can
differ; tests assert bit-equal results.

A recording ends with the ranking: the most likely tokens and their logits are copied to the host; the other outputs
(``TokenOutputs``) stay on the device and are valid until the next token.

A recording holds addresses of one cache's buffers, so it is discarded when one of them moves. Making a recording takes
some ten milliseconds; a copy without addresses is kept as a template of the model, from which other caches of the same
sizes, or this one after a move, get theirs in a fraction of that time. Hooks cannot observe a recorded token: with
hooks a session runs op by op.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .archs import Cache, Model

if TYPE_CHECKING:
    from .archs.inputs import Inputs

MOST, MOST_TEMPLATES = 8, 32
"""Maximum number of recordings per cache, where three or four kinds of token occur at any depth, and of templates per
model."""

_templates: weakref.WeakKeyDictionary[Any, dict[Hashable, tuple[Any, Inputs]]] = weakref.WeakKeyDictionary()

RANKS, MOST_RANKS = 2, 64
"""Number of top-ranked tokens that a replay copies to the host: the default (best and runner-up), and the maximum.

Beyond ``MOST_RANKS`` a CPU is quicker to copy the logits and partition them.
"""


class TokenOutputs(NamedTuple):
    """Outputs of a replayed token.

    streams   final streams (1, ...), an array of the backend
    logits    (1, V) float32, an array of the backend; both hold until the recording is replayed again
    best      ids of the most likely next tokens, in the order of the op ``top``
    values    their logits
    """

    streams: Any
    logits: Any
    best: list[int]
    values: list[float]


def record(model: Model, cache: Cache, plan: Any, ranks: int = RANKS) -> tuple[Any, Inputs]:
    """Record one token's pass and the ranking of the next token; return the recording and its inputs.

    The recording's outputs are values and ids of the op ``top``; it keeps streams and logits. ``move`` the inputs to
    token and position before each replay.
    """
    recording: Any = model.ops.record()
    streams, logits, inputs = model.record_token(recording, cache, plan)
    recording.seal(*recording.top(logits, min(ranks, model.shape.vocab)), kept=(streams, logits))
    return recording, inputs


def recorded(model: Model, cache: Cache, plan: Any, key: Hashable, ranks: int) -> tuple[Any, Inputs]:
    """Return a recording and its inputs as ``record`` does, made from the model's template for this plan if there is
    one."""
    buffers = cache.buffers()
    sizes = tuple((array.shape, array.dtype) for array in buffers)
    known = _templates.setdefault(model, {})
    which = key, ranks, model.ops.threads, sizes
    if which in known:
        template, inputs = known[which][0], known[which][1].copy()
        return template.on([*buffers, *inputs.arrays()]), inputs
    recording, inputs = record(model, cache, plan, ranks)
    if hasattr(recording, "template"):
        while len(known) >= MOST_TEMPLATES:
            del known[next(iter(known))]
        known[which] = recording.template([*buffers, *inputs.arrays()]), inputs.copy()
    return recording, inputs


class Decoder:
    """The recordings of one cache. Create it with ``of``, since not every backend can record."""

    def __init__(self, model: Model, cache: Cache):
        self.model, self.cache = model, cache
        self.ranks = RANKS
        """Number of top-ranked tokens per replay; a change discards the recordings."""
        self._recorded_for: tuple[int, int, int] = (-1, -1, -1)
        self._recordings: dict[Hashable, tuple[Any, Inputs]] = {}
        self._made = 0
        self.last: Any = None
        """The most recently replayed recording."""

    @classmethod
    def of(cls, model: Model, cache: Cache) -> Decoder | None:
        """Return a decoder for ``cache``, or None if the model's backend cannot record."""
        return cls(model, cache) if model.ops.record() is not None else None

    def prepare(self, positions: Iterable[int]) -> int:
        """Make the recordings that tokens at ``positions`` need, for ``run`` to find; return the number made."""
        self._reserve()
        before = self._made
        for pos in positions:
            self._recording(pos)
        return self._made - before

    def _reserve(self) -> None:
        """Make room for a token, and drop the recordings if a buffer moved or their settings changed."""
        self.cache.reserve(1)
        recorded_for = self.cache.moves, self.model.ops.threads, self.ranks
        if recorded_for != self._recorded_for:
            self._recordings.clear()
            self._recorded_for = recorded_for

    def _recording(self, pos: int) -> tuple[Any, Inputs]:
        plan, key = self.model.plan_token(self.cache, pos)
        if key not in self._recordings:
            if len(self._recordings) == MOST:
                del self._recordings[next(iter(self._recordings))]
            self._recordings[key] = recorded(self.model, self.cache, plan, key, self.ranks)
            self._made += 1
        return self._recordings[key]

    def run(self, token: int) -> TokenOutputs:
        """Advance the cache by one token and return its outputs."""
        model, cache = self.model, self.cache
        self._reserve()
        self.last, inputs = self._recording(cache.pos)
        inputs.move(token, cache.pos)
        self.last.replay()
        cache.advance(1)
        host, (values, best), (streams, logits) = model.ops.host, self.last.outputs, self.last.kept
        return TokenOutputs(streams, logits, host(best).tolist()[0], host(values).tolist()[0])
