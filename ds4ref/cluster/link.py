"""What the coordinator's model needs of its stages, and the simplest such link: stages in this process.

Instructions reach a stage in the order in which they were given, and at once: only ``result`` waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .hops import packed, unpacked
from .stage import Facts, Stage


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
    def facts(self) -> Sequence[Facts]:
        """Return what each stage said of itself."""

    def send(self, stage: int, name: str, *arguments: Any) -> Pending:
        """Give an instruction to one stage."""

    def run(self, *arguments: Any) -> Pending:
        """Let a pass run through all stages (``Stage.run``); the result is a ``PassResult``."""

    def close(self) -> None:
        """Let go of the stages."""


class Done:
    """A result that is there."""

    def __init__(self, value: Any):
        self.value = value

    def done(self) -> bool:
        return True

    def result(self, cancel: Callable[[], bool] | None = None) -> Any:
        return self.value


class LocalLink:
    """Stages in this process, one after another."""

    def __init__(self, stages: Sequence[Stage], layers: Sequence[range], streams: str = "f32"):
        self.stages, self.layers, self.streams = stages, layers, streams
        self.facts = [stage.facts for stage in stages]

    def send(self, stage: int, name: str, *arguments: Any) -> Done:
        return Done(self.stages[stage].do(name, *arguments)[0])

    def run(self, *arguments: Any) -> Done:
        value, seconds, hop_bytes = None, [], 0
        for stage in self.stages:
            value, spent = stage.do("run", *arguments, incoming=value)
            seconds.append(spent)
            if not stage.is_last:
                data = packed(value, self.streams)
                value, hop_bytes = unpacked(data), data.nbytes
        return Done(PassResult(value, tuple(seconds), hop_bytes))

    def close(self) -> None:
        for stage in self.stages:
            stage.close()
