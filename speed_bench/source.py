"""Interface of the runner to a lane of a plan: a source that sweeps and yields samples (``sources`` opens them)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ds4ref.errors import UsageError
from ds4ref.targets import Cancellation, Target, open_target
from ds4ref.version import __version__

from .columns import Sample
from .plan import Lane, Plan
from .prompt import PromptText
from .sweep import WarmUpSpeed

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


@dataclass
class Opening:
    """Context for opening sources, with what they share: targets, the store, the text."""

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
        """Open the target of ``lane``, closed with ``stack``; UsageError if its spec is malformed."""
        try:
            return self.stack.enter_context(open_target(lane.target, **{**options, **lane.options}))
        except ValueError as error:  # a command line that shlex cannot split
            raise UsageError(f"target {lane.target!r}: {error}") from None

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``, computed once per key."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def sha256(self, path: Any) -> str | None:
        """Return the SHA-256 of a model file, None without a store to cache it."""
        if self.store is None:
            return None
        if self.progress is None:
            return self.store.sha256(path)
        with self.progress("hashing the model, once") as progress:
            return self.store.sha256(path, progress)


class Source(abc.ABC):
    """One lane, ready to be measured; ``pausable``: it can wait between rows while another lane is measured."""

    pausable = True

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return facts about it: engine, backend, model, numerics, threads."""

    @abc.abstractmethod
    def walk(
        self, rep: int, done: int, *, start: float, progress: Progress | None, cancel: Cancellation
    ) -> Iterator[Sample]:
        """Yield the samples of one repetition, without the first ``done``, as soon as they are measured.

        ``start``: process clock at the beginning of the run; ``progress`` gets (done, of) in units of its own.
        Raises Cancelled when ``cancel`` is pressed.
        """

    def warm_up(self) -> WarmUpSpeed | None:
        """Warm up, so that the first row is like the others; return the speed of that, if known."""
        return None

    def notes(self) -> list[str]:
        """Return warnings for the user at the end, a line each."""
        return []

    def check(self, lanes: int) -> None:  # noqa: B027  most check nothing
        """Raise DataError if ``lanes`` sources like this one cannot run together."""


def foreign() -> dict[str, Any]:
    """Return the facts that are common to all engines that are not ours."""
    return {"engine": f"measured by ds4ref {__version__}", "numerics": None, "threads": None}
