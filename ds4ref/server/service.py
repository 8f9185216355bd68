"""State that the routes of one server share: worker, limits, request observers, whether it is shutting down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..drafts.speculation import Counts
from .api import About, Api
from .auth import Access
from .limits import BodyBudget, Limits
from .logs import Lines
from .metrics import Metrics

if TYPE_CHECKING:
    from .exchange import Watcher
    from .trace import Trace
    from .worker import Worker

log = logging.getLogger("ds4-server")

THREADS = 4
"""Number of threads that parse, render and tokenize requests."""


@dataclass(frozen=True)
class Settings:
    """Settings of the server.

    model         id of the served model
    title         display name of the model, "" for its id
    created       creation time of the model in Unix seconds, as listed by /v1/models
    max_tokens    upper limit of an answer in tokens; None: the context length
    usual_tokens  limit of an answer, in tokens, if the request does not set one; None: max_tokens
    access        API key, accepted host names, CORS
    limits        limits on connections and request bodies
    """

    model: str = "deepseek-v4-flash"
    title: str = ""
    created: int = 1767225600
    max_tokens: int | None = None
    usual_tokens: int | None = None
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)


class Service:
    """The state shared by all routes of a server.

    worker  the inference thread
    apis    the APIs whose endpoints generate text
    tools   the model's own text of its tool calls, by call id (``tools.Memory``), None for none
    trace   writer of the trace file, None for none
    """

    def __init__(
        self,
        worker: Worker,
        apis: Sequence[Api],
        settings: Settings | None = None,
        *,
        tools: Any = None,
        trace: Trace | None = None,
    ):
        self.worker, self.apis, self.tools = worker, list(apis), tools
        self.settings = settings or Settings()
        self.limits, self.access = self.settings.limits, self.settings.access
        self.body_budget = BodyBudget(self.limits.held_bytes)
        self.metrics = Metrics(self._gauges)
        watchers: list[Watcher] = [self.metrics, Lines()]
        self.watchers = tuple([*watchers, trace] if trace is not None else watchers)
        self.trace = trace
        self.draining = False
        self._threads = ThreadPoolExecutor(THREADS, "requests")

    @property
    def ctx(self) -> int:
        """Context length in tokens."""
        return self.worker.ctx

    @property
    def max_tokens(self) -> int:
        """Upper limit of an answer in tokens."""
        return min(self.settings.max_tokens or self.ctx, self.ctx)

    def _gauges(self) -> dict[str, float]:
        """Return the current values of ``metrics.GAUGES`` and ``metrics.COUNTERS`` by name."""
        worker = self.worker
        drafts = getattr(worker.engine, "drafts", None)
        guessed = Counts() if drafts is None else drafts.counts
        return {
            "ds4_queue_length": len(worker.queue),
            "ds4_running": len(worker.running),
            "ds4_sequences": len(worker.sequences),
            "ds4_sequences_bytes": worker.sequences.nbytes,
            "ds4_sequences_limit_bytes": worker.sequences.budget,
            "ds4_bodies_bytes": self.body_budget.bytes,
            "ds4_draining": self.draining,
            "ds4_turns": worker.finished,
            "ds4_drafted_tokens": guessed.of("drafted"),
            "ds4_accepted_tokens": guessed.of("accepted"),
        }

    def about(self, headers: Mapping[str, str]) -> About:
        """Return what an API module needs to know to read a request, besides its body: headers, model, limits."""
        s = self.settings
        profile = self.worker.engine.tokenizer.profile
        return About(s.model, self.ctx, s.max_tokens, int(time.time()), headers, self.tools, s.usual_tokens, profile)

    def name_at(self, path: str) -> str:
        """Return the name of the API whose path is ``path`` or a parent of it, "" if there is none."""
        return next((api.name for api in self.apis if f"{path}/".startswith(f"{api.path}/")), "")

    async def aside(self, work: Any, *args: Any) -> Any:
        """Run ``work(*args)`` in a thread of the request pool and return its result; the event loop is not blocked."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    async def drain(self) -> None:
        """Stop accepting turns (generation requests), fail the queued ones, and wait until the running ones ended."""
        self.draining = True
        await asyncio.to_thread(self.worker.shut_down, self.limits.drain_seconds)

    def close(self) -> None:
        """Stop the threads that parse requests, and close the trace file."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.trace is not None:
            self.trace.close()
