"""What the routes of one server share: the worker, the limits, who watches, whether it is being shut down."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .api import About, Api, Question
from .auth import Access
from .board import Board
from .limits import Held, Limits
from .logs import Lines
from .metrics import Metrics

if TYPE_CHECKING:
    from .exchange import Watcher
    from .trace import Trace
    from .worker import Worker

log = logging.getLogger("ds4-server")

THREADS = 4
"""That read requests: parse, render, tokenize."""


@dataclass(frozen=True)
class Settings:
    """What the server says about itself, and what it allows.

    model        the id under which the model is served; ``title`` is its name for people, ``created`` a Unix time
    max_tokens   most tokens of an answer unless a request says less; None: as many as the context holds
    options      deviations from the reference server, by name (docs/server.md)
    facts        shown on the status page: file, backend, numerics
    """

    model: str = "deepseek-v4-flash"
    title: str = "DeepSeek V4 Flash"
    created: int = 1767225600
    max_tokens: int | None = None
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    options: Mapping[str, bool] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


class Service:
    """One server. ``tools`` is the memory of calls by their id."""

    def __init__(
        self,
        worker: Worker,
        apis: Sequence[Api | Question],
        settings: Settings | None = None,
        *,
        tools: Any = None,
        trace: Trace | None = None,
    ):
        self.worker, self.apis, self.tools = worker, list(apis), tools
        self.settings = settings or Settings()
        self.limits, self.access = self.settings.limits, self.settings.access
        self.held = Held(self.limits.held_bytes)
        self.board, self.metrics = Board(self), Metrics(self)
        watchers: list[Watcher] = [self.board, self.metrics, Lines()]
        self.watchers = tuple([*watchers, trace] if trace is not None else watchers)
        self.trace = trace
        self.draining = False
        self.since = time.monotonic()
        self._threads = ThreadPoolExecutor(THREADS, "requests")

    @property
    def ctx(self) -> int:
        """Tokens of context."""
        return self.worker.ctx

    @property
    def max_tokens(self) -> int:
        """Most tokens of an answer."""
        return min(self.settings.max_tokens or self.ctx, self.ctx)

    def about(self, headers: Mapping[str, str]) -> About:
        """What an API module is told of a request."""
        s = self.settings
        return About(s.model, self.ctx, s.max_tokens, int(time.time()), headers, self.tools, s.options)

    def api_at(self, path: str) -> Api | Question | None:
        """The API that ``path`` belongs to, or lies below; None if there is none."""
        found = [api for api in self.apis if path == api.path or path.startswith(api.path + "/")]
        return max(found, key=lambda api: len(api.path), default=None)

    async def aside(self, what: Any, *args: Any) -> Any:
        """Do in another thread what takes longer than the event loop has."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, what, *args)

    async def drain(self) -> None:
        """Take nothing on any more, and see what was taken on answered, or told that it will not be."""
        self.draining = True
        done = asyncio.get_running_loop().create_future()

        def work() -> None:
            self.worker.shut_down(self.limits.drain_seconds)
            done.get_loop().call_soon_threadsafe(done.set_result, None)

        threading.Thread(target=work, name="drain", daemon=True).start()
        await done

    def close(self) -> None:
        """The reading threads end, and so does the trace."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.trace is not None:
            self.trace.close()
