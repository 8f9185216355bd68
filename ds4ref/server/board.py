"""What the status page shows: what waits and runs, what was answered lately, which conversations are remembered."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from .. import __version__
from .turn import Event

if TYPE_CHECKING:
    from .exchange import Exchange
    from .service import Service

RECENT = 50
TIMELINES = 100


class Board:
    """Keeps the turns that are under way and the last of those that are over."""

    def __init__(self, service: Service):
        self.service = service
        self._live: dict[int, Exchange] = {}
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.totals = {"requests": 0, "prompt": 0, "cached": 0, "evaluated": 0, "generated": 0}
        self.sources: dict[str, int] = {}

    def began(self, x: Exchange) -> None:
        """It waits, or runs already."""
        self._live[id(x)] = x

    def event(self, x: Exchange, event: Event) -> None:
        """The exchange knows it."""

    def ended(self, x: Exchange) -> None:
        """It is history."""
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
        """Everything, as JSON wants it."""
        service, worker, now = self.service, self.service.worker, time.monotonic()
        timelines = worker.timelines
        live = sorted(self._live.values(), key=lambda x: (x.prefill is None, x.ahead, x.started))
        running = [x for x in live if x.prefill is not None]
        return {
            "server": {
                "model": service.settings.model,
                "version": __version__,
                "ctx": service.ctx,
                "max_tokens": service.max_tokens,
                "uptime_s": now - service.since,
                "draining": service.draining,
                **service.settings.facts,
            },
            # Totals that grow while a turn runs, so that their differences are the speed.
            "totals": {
                **self.totals,
                "evaluated_now": sum(x.prefill.done - x.prefill.cached for x in running if x.prefill is not None),
                "generated_now": sum(x.tokens for x in running),
            },
            "sources": self.sources,
            "queue": {"waiting": len(worker.queue), "limit": worker.queue.limit},
            "live": [row(x) for x in live],
            "recent": list(self._recent),
            "timelines": {
                "count": len(timelines),
                "bytes": timelines.nbytes,
                "budget": timelines.budget,
                "kept": [
                    {
                        "tokens": len(timeline.tokens),
                        "bytes": timeline.snapshot.own_bytes,
                        "hits": timeline.hits,
                        "calls": len(timeline.calls),
                        "idle_s": max(0.0, timelines.clock() - timeline.used),
                    }
                    for timeline in reversed(timelines.kept()[-TIMELINES:])
                ],
            },
        }


def row(x: Exchange) -> dict[str, Any]:
    """A turn in figures."""
    prefill = x.prefill
    if x.ended is not None:
        state = "done" if x.status == 200 else "failed"
    elif prefill is None:
        state = "waiting"
    else:
        state = "prefill" if x.first is None and prefill.done < prefill.total else "decode"
    return {
        "id": x.id,
        "api": x.api,
        "client": x.client,
        "state": state,
        "stream": x.stream,
        "ahead": x.ahead,
        "prompt": x.prompt,
        "cached": x.cached,
        "source": x.source,
        "done": 0 if prefill is None else prefill.done,
        "generated": x.tokens,
        "status": x.status,
        "finish": x.finish,
        "error": x.error,
        "queue_s": round(x.queued, 4),
        "prefill_s": round(x.prefilling, 4),
        "decode_s": round(x.decoding, 4),
        "ttft_s": None if x.ttft is None else round(x.ttft, 4),
        "total_s": round(x.lasted, 4),
    }
