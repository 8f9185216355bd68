"""What the coordinator's model needs of its stages.

Instructions reach a stage in the order in which they were given, and at once: only ``result`` waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .stage import Facts


class PassResult(NamedTuple):
    """What the last stage returned, the seconds that each stage computed, and bytes sent between two stages."""

    value: Any
    seconds: tuple[float, ...]
    hop_bytes: int


class Pending(Protocol):
    """The result of an instruction under way."""

    def done(self) -> bool:
        """Return whether ``result`` will not wait."""

    def result(self, cancel: Callable[[], bool] | None = None) -> Any:
        """Wait for the result.

        Raise ClusterError if a stage dies or hangs, BackendError if it fails, Cancelled once ``cancel()`` is true.
        """


class Link(Protocol):
    """Stages, connected in a row."""

    @property
    def layers(self) -> Sequence[range]:
        """Return the layers of each stage."""

    @property
    def names(self) -> Sequence[str]:
        """Return the name of each stage's worker."""

    @property
    def facts(self) -> Sequence[Facts]:
        """Return what each stage said of itself."""

    def send(self, stage: int, name: str, *arguments: Any) -> Pending:
        """Give an instruction to one stage."""

    def run(self, *arguments: Any) -> Pending:
        """Let a pass run through all stages (``Stage.run``); the result is a ``PassResult``."""

    def close(self) -> None:
        """Release the workers' stages, without waiting for them."""
