"""Expert routing and SwiGLU. What each op computes: ``ds4ref.kernels.ops``."""

from __future__ import annotations

from ..binding import bind
from . import tasktable as t
from .abi import Step
from .steps import Steps


class RoutingOps(Steps):
    """Choosing experts, counting them, and the nonlinearity between their products."""

    @bind
    def route(self, logits, bias, hash_ids, k, scale, floor, probs, ids, weights, T, E, failure):
        arrays = logits, bias, hash_ids, probs, ids, weights
        self.go(t.ROUTE, T, (k + 16) * E, arrays, E, k, int(floor), scale, failure=failure)

    @bind
    def count(self, ids, counts, E):
        # one chunk: threads would overwrite each other's counts
        self.run([Step(t.COUNT, ids.size, max(1, ids.size), (self.at(ids), self.at(counts), E))])

    @bind
    def geglu(self, gate, up, out):
        self.go(t.GEGLU, out.size, 16, (gate, up, out))

    @bind
    def swiglu(self, gate, up, limit, weight, out, n):
        self.go(t.SWIGLU, gate.size // n if n else 0, 8 * n, (gate, up, weight, out), n, limit)
