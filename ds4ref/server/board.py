"""The record of running and recent turns for the status page (``plain`` adds the queue and the cached sequences)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from .exchange import Watcher

if TYPE_CHECKING:
    from .exchange import Exchange
    from .turn import Event

RECENT = 50
"""Number of finished turns kept for the status page."""


SAME = ("id", "api", "client", "stream", "ahead", "prompt", "cached", "source", "status", "finish", "error")
TIMES = {"queue": "queued", "prefill": "prefilling", "decode": "decoding", "total": "lasted"}
"""Attributes of an exchange in a row of the status page."""


class Board(Watcher):
    """Watcher that keeps the running turns, the last finished ones, and totals."""

    def __init__(self) -> None:
        self._live: dict[int, Exchange] = {}
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.totals = {"requests": 0, "prompt": 0, "cached": 0, "evaluated": 0, "generated": 0}
        self.sources: dict[str, int] = {}

    def event(self, x: Exchange, event: Event) -> None:
        """Add a turn with its first event to the running ones."""
        self._live.setdefault(id(x), x)

    def ended(self, x: Exchange) -> None:
        """Move a turn from the running to the finished ones and add its counts to the totals."""
        self._live.pop(id(x), None)
        self._recent.appendleft(row(x))
        totals = self.totals
        totals["requests"] += 1
        totals["generated"] += x.tokens
        if x.prefill is not None:
            totals["evaluated"] += x.prefill.done - x.prefill.cached
            totals["prompt"] += x.prompt
            totals["cached"] += x.cached
            self.sources[x.source] = self.sources.get(x.source, 0) + 1

    def state(self) -> dict[str, Any]:
        """Return totals, running and recent turns as JSON values."""
        live = sorted(self._live.values(), key=lambda x: (x.prefill is None, x.ahead, x.started))
        running = [x for x in live if x.prefill is not None]
        return {
            # These grow while a turn runs, so that their differences are the speed.
            "totals": {
                **self.totals,
                "evaluated_now": sum(x.prefill.done - x.prefill.cached for x in running if x.prefill is not None),
                "generated_now": sum(x.tokens for x in running),
            },
            "sources": self.sources,
            "live": [row(x) for x in live],
            "recent": list(self._recent),
        }


def row(x: Exchange) -> dict[str, Any]:
    """Return the status of one turn as JSON values, times in seconds."""
    prefill = x.prefill
    if x.ended is not None:
        state = "done" if x.status == 200 else "failed"
    elif prefill is None:
        state = "waiting"
    else:
        state = "prefill" if x.first is None and prefill.done < prefill.total else "decode"
    same = {name: getattr(x, name) for name in SAME}
    times = {f"{name}_s": round(getattr(x, attribute), 4) for name, attribute in TIMES.items()}
    ttft = None if x.ttft is None else round(x.ttft, 4)
    return {
        **same,
        "state": state,
        "done": prefill.done if prefill else 0,
        "generated": x.tokens,
        **times,
        "ttft_s": ttft,
    }
