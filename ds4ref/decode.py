"""Fast decoding: a forward pass of a few tokens is recorded once and replayed for the tokens that follow.

A pass has one or a few rows (``Decoder.most_rows``): the next token of a sequence, tokens drafted to follow it, and
those of other sequences. Its first use runs through the model's own pass with a recording backend: its ops compute
nothing, they note steps and the steps' dependencies. For the next passes only the inputs are set (tokens, positions,
rope angles) and the steps run as one job. Which recording to use depends on the keys that the model's ``plan_rows``
returns: they cover what Python decides from the positions, such as whether a compression window closes. There is no
second implementation of the pass, so only the schedule can differ; and every row is computed as it would be alone.
Tests assert bit-equal results for both.

A recording ends with the ranking: the most likely tokens and their logits are copied to the host; the other outputs
(``Rows``) stay on the device and are valid until the same recording is replayed.

A recording holds addresses of its caches' buffers, so it is discarded when one of them moves. Making a recording takes
some ten milliseconds; a copy without addresses is kept as a template of the model, from which other caches of the same
sizes, or this one after a move, get theirs in a fraction of that time. Hooks cannot observe a recorded token: with
hooks a session runs op by op.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .archs import Cache, Model

if TYPE_CHECKING:
    import numpy as np

    from .archs.inputs import Inputs

MOST, MOST_TEMPLATES = 16, 64
"""Maximum number of recordings per decoder, and of templates per model. Three or four kinds of pass with a given number
of rows occur at any depth."""
LEAST, MOST_BYTES = 4, 128 << 20
"""While all recordings of a decoder together take more than ``MOST_BYTES``, the least recently used are dropped, but
``LEAST`` of them always stay: one of 8 rows takes 30 MB with Flash's dimensions."""

_templates: weakref.WeakKeyDictionary[Any, dict[Hashable, tuple[Any, Inputs]]] = weakref.WeakKeyDictionary()

RANKS, MOST_RANKS = 2, 64
"""Number of top-ranked tokens that a replay copies to the host: the default (best and runner-up), and the maximum.

For more than ``MOST_RANKS`` it is quicker to copy all logits and partition them on the CPU.
"""


class TokenOutputs(NamedTuple):
    """Outputs of one row of a replayed pass.

    streams   final residual streams (hyper-connections), (1, ...), an array of the backend
    logits    (1, V) float32, an array of the backend; both arrays are valid until the recording is replayed again
    best      ids of the most likely next tokens, in the order of the op ``top``
    values    their logits
    """

    streams: Any
    logits: Any
    best: list[int]
    values: list[float]


class Rows(NamedTuple):
    """Outputs of a replayed pass for one sequence: those of its T consecutive rows, as in ``TokenOutputs`` with T
    instead of 1."""

    streams: Any
    logits: Any
    best: list[list[int]]
    values: list[list[float]]

    def row(self, number: int) -> TokenOutputs:
        """Return the outputs of one row."""
        if len(self.best) == 1:
            return TokenOutputs(self.streams, self.logits, self.best[0], self.values[0])
        one = slice(number, number + 1)
        return TokenOutputs(self.streams[one], self.logits[one], self.best[number], self.values[number])


def record(
    model: Model, caches: Sequence[Cache], counts: Sequence[int], plans: Sequence[Any], ranks: int = RANKS
) -> tuple[Any, Inputs]:
    """Record a pass that evaluates ``counts[i]`` tokens of the sequence of ``caches[i]``, and ranks the next tokens;
    return the recording and its inputs.

    plans: what the model's ``plan_rows`` returned for each sequence. ranks: number of top-ranked tokens to copy to the
    host. The recording's outputs are values and ids of the op ``top``; it keeps streams and logits, or for a model
    without an output head its state alone. Before each replay set tokens and positions with the inputs'
    ``move_sequences``.
    """
    recording: Any = model.ops.record()
    streams, logits, inputs = model.record_rows(recording, caches, counts, plans)
    if logits is None:
        recording.seal(kept=streams)
    else:
        recording.seal(*recording.top(logits, min(ranks, model.shape.vocab)), kept=(streams, logits))
    return recording, inputs


def recorded(
    model: Model, caches: Sequence[Cache], counts: Sequence[int], plans: Sequence[Any], key: Hashable, ranks: int
) -> tuple[Any, Inputs]:
    """Return a recording and its inputs as ``record`` does, made from the model's template if there is one for ``key``,
    which stands for the token counts and the plans."""
    buffers = [array for cache in caches for array in cache.buffers()]
    sizes = tuple((array.shape, array.dtype) for array in buffers)
    first: dict[int, int] = {}  # sequences that begin alike share buffers, which a template tells by their addresses
    shared = tuple(first.setdefault(id(array), n) for n, array in enumerate(buffers))
    known = _templates.setdefault(model, {})
    which = key, ranks, model.ops.threads, sizes, shared
    if which in known:
        template, inputs = known[which][0], known[which][1].copy()
        return template.on([*buffers, *inputs.arrays()]), inputs
    recording, inputs = record(model, caches, counts, plans, ranks)
    if hasattr(recording, "template"):
        while len(known) >= MOST_TEMPLATES:
            del known[next(iter(known))]
        known[which] = recording.template([*buffers, *inputs.arrays()]), inputs.copy()
    return recording, inputs


class Decoder:
    """The recordings of passes that advance the same caches. Create it with ``of``, since not every backend can
    record."""

    def __init__(self, model: Model, *caches: Cache):
        self.model, self.caches = model, caches
        self.most_rows = int(getattr(model.ops, "recorded_rows", 1))
        """Maximum number of rows of a pass."""
        self.ranks = RANKS
        """Number of top-ranked tokens per replay; a change discards the recordings."""
        self._recorded_for: tuple[Any, ...] = ()
        self._recordings: dict[Hashable, tuple[Any, Inputs]] = {}
        self.made = 0
        """Number of recordings made so far."""
        self.last: Any = None
        """The most recently replayed recording."""

    @classmethod
    def of(cls, model: Model, *caches: Cache) -> Decoder | None:
        """Return a decoder for ``caches``, the model's own if it has one, or None if its backend cannot record."""
        return model.decoder(*caches) or (cls(model, *caches) if model.ops.record() is not None else None)

    def prepare(self, positions: Iterable[int]) -> int:
        """Make the recordings that ``run`` will need for single tokens at ``positions``, for a decoder of one cache;
        return the number made."""
        self._reserve([1])
        before = self.made
        for pos in positions:
            self._recording([pos], [1])
        return self.made - before

    def _reserve(self, counts: Sequence[int]) -> None:
        """Make room for ``counts[i]`` more tokens in each cache, and drop the recordings if a buffer moved or their
        settings changed."""
        for cache, count in zip(self.caches, counts, strict=True):
            cache.reserve(count)
        recorded_for = *(cache.moves for cache in self.caches), self.model.ops.threads, self.ranks
        if recorded_for != self._recorded_for:
            self._recordings.clear()
            self._recorded_for = recorded_for

    def _recording(self, starts: Sequence[int], counts: Sequence[int]) -> tuple[Any, Inputs]:
        """Return the recording of a pass of ``counts`` tokens from positions ``starts``, and its inputs; make it if
        necessary."""
        sequences = zip(self.caches, starts, counts, strict=True)
        plans, keys = zip(*(self.model.plan_rows(cache, pos, count) for cache, pos, count in sequences), strict=True)
        key = tuple(zip(counts, keys, strict=True))
        if key in self._recordings:
            self._recordings[key] = self._recordings.pop(key)  # the newest
        else:
            self._recordings[key] = recorded(self.model, self.caches, counts, plans, key, self.ranks)
            self.made += 1
            while len(self._recordings) > MOST or (len(self._recordings) > LEAST and self._nbytes() > MOST_BYTES):
                del self._recordings[next(iter(self._recordings))]
        return self._recordings[key]

    def _nbytes(self) -> int:
        return sum(getattr(recording, "nbytes", 0) for recording, _ in self._recordings.values())

    def run(self, *tokens: Sequence[int], incoming: np.ndarray | None = None) -> list[Rows]:
        """Advance each cache by its tokens, one or more, and return the outputs of each sequence's rows.

        incoming: the state that the layers before left, for a model that lacks the first layers (one of several
        machines). Without the last layers there is no output head, and ``streams`` is the state, a tuple.
        """
        counts = [len(ids) for ids in tokens]
        self._reserve(counts)
        starts = [cache.pos for cache in self.caches]
        self.last, inputs = self._recording(starts, counts)
        if incoming is not None:
            inputs.incoming = incoming  # type: ignore[attr-defined]
        inputs.move_sequences(tokens, starts, self.caches)
        with self.model.experts.passing(1):
            self.last.replay()
        if not self.last.outputs:
            self.caches[0].advance(counts[0])
            return [Rows(self.last.kept, None, [], [])]
        host, (values, best), (streams, logits) = self.model.ops.host, self.last.outputs, self.last.kept
        best, values = host(best).tolist(), host(values).tolist()
        outputs, first = [], 0
        for cache, count in zip(self.caches, counts, strict=True):
            cache.advance(count)
            rows = slice(first, first + count)
            some = (streams, logits) if len(counts) == 1 else (streams[rows], logits[rows])
            outputs.append(Rows(*some, best[rows], values[rows]))
            first += count
        return outputs
