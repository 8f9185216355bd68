"""Interface between runner and targets: a source measures one lane and yields samples (``sources`` opens them)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ds4ref.errors import UsageError
from ds4ref.runs.columns import Sample
from ds4ref.targets import Cancellation, Target, open_target
from ds4ref.version import __version__

from .plan import Lane, Plan
from .prompt import PromptText
from .sweep import WarmUpSpeed

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


@dataclass
class Opening:
    """The context in which the sources of a plan are opened, with what they share: targets, the store, the text."""

    plan: Plan
    stack: ExitStack
    store: Store | None = None
    progress: Callable[[str], Any] | None = None
    say: Say = lambda message: None
    prompt: PromptText = field(init=False)
    _shared: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompt = PromptText(self.plan)

    def target(self, lane: Lane, **options: Any) -> Target:
        """Open the target of ``lane``; it is closed with ``stack``. Raises UsageError if its spec is malformed."""
        try:
            return self.stack.enter_context(open_target(lane.target, **{**options, **lane.options}))
        except ValueError as error:  # a command line that shlex cannot split
            raise UsageError(f"target {lane.target!r}: {error}") from None

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the result of ``make()``, computed once per ``key``."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def sha256(self, path: Any) -> str | None:
        """Return the SHA-256 of a model file; None without a store, which caches it."""
        if self.store is None:
            return None
        if self.progress is None:
            return self.store.sha256(path)
        with self.progress("hashing the model, once") as progress:
            return self.store.sha256(path, progress)


class Source(abc.ABC):
    """One lane, ready to be measured; ``pausable``: another lane can be measured between two of its rows."""

    pausable = True

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return facts about the lane for the run's record: engine, backend, model, numerics, threads."""

    @abc.abstractmethod
    def walk(
        self, rep: int, done: int, *, start: float, progress: Progress | None, cancel: Cancellation
    ) -> Iterator[Sample]:
        """Measure one repetition; yield its samples, without the first ``done``, as soon as they are measured.

        rep        number of the repetition, stored in each sample
        start      start of the run in seconds of the process clock
        progress   called with (done, all) in units of the source's own
        cancel     raises Cancelled from here when pressed
        """

    def warm_up(self) -> WarmUpSpeed | None:
        """Warm up, so that the first row is measured like the others; return the speed, None if unknown."""
        return None

    def notes(self) -> list[str]:
        """Return warnings to show at the end of the run, one line each."""
        return []

    def check(self, lanes: int) -> None:  # noqa: B027  most check nothing
        """Raise DataError if ``lanes`` sources like this one cannot run together, as for lack of memory."""


def foreign() -> dict[str, Any]:
    """Return the facts common to all engines other than ds4ref."""
    return {"engine": f"measured by ds4ref {__version__}", "numerics": None, "threads": None}
