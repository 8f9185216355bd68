"""Where samples come from: each lane of a plan, opened by ``ds4ref.targets.open_target``, as something that walks.

local       an engine in this process (``local``)
http        an OpenAI-compatible endpoint, as its client sees it (``endpoint``, ``load``)
command     a ds4-bench binary, which walks by itself (``binary``)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ds4ref import __version__
from ds4ref.errors import UsageError
from ds4ref.targets import Cancellation, Target, open_target

from .columns import Sample
from .plan import Lane, Plan, kind_of
from .prompt import Walked
from .sweep import Warmth

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


@dataclass
class Opening:
    """What sources are opened with, and what they share: targets, the store, the text."""

    plan: Plan
    stack: ExitStack
    store: Store | None = None
    progress: Callable[[str], Any] | None = None
    say: Say = lambda message: None
    walked: Walked = field(init=False)
    _shared: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.walked = Walked(self.plan)

    def target(self, lane: Lane, **options: Any) -> Target:
        """The target of ``lane``, closed with the rest."""
        try:
            return self.stack.enter_context(open_target(lane.target, **{**options, **lane.options}))
        except ValueError as error:  # a shell would not understand it either
            raise UsageError(f"target {lane.target!r}: {error}") from None

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What several lanes have in common."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def sha256(self, path: Any) -> str | None:
        """The digest of a model file, if there is a store to remember it."""
        if self.store is None:
            return None
        if self.progress is None:
            return self.store.sha256(path)
        with self.progress("hashing the model, once") as shown:
            return self.store.sha256(path, shown)


class Source(abc.ABC):
    """One lane, ready to be measured. ``pausable``: it can wait between rows while another lane has its turn."""

    pausable = True

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """What it is: engine, backend, model, numerics, threads."""

    @abc.abstractmethod
    def walk(
        self, rep: int, done: int, *, start: float, progress: Progress | None, cancel: Cancellation
    ) -> Iterator[Sample]:
        """The samples of one repetition but the first ``done``, each as soon as it is measured; ``start`` is the
        process clock at the beginning of the run. ``progress`` gets (done, of) in units of its own. Cancelled when
        ``cancel`` is pressed."""

    def warm_up(self) -> Warmth | None:
        """Make the first row like the others; what that took, if it says something about a walk."""
        return None

    def notes(self) -> list[str]:
        """What a user should know about it afterwards, a line each."""
        return []

    def check(self, lanes: int) -> None:  # noqa: B027  most need nothing
        """DataError for what cannot work, before anything is measured; ``lanes`` like this one run at the same time."""


def open_source(opening: Opening, lane: Lane) -> Source:
    """The source of one lane."""
    kind = kind_of(lane.target)
    if kind == "local":
        from .local import LocalSource

        return LocalSource.open(opening, lane)
    if kind == "http":
        from .remote import EndpointSource

        return EndpointSource.open(opening, lane)
    from .binary import BinarySource

    return BinarySource.open(opening, lane)


def foreign() -> dict[str, Any]:
    """Facts about an engine that is not ours, as far as they are the same for all."""
    return {"engine": f"measured by ds4ref {__version__}", "numerics": None, "threads": None}
