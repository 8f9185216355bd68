"""Models whose stages are in this process, and links that break."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ds4ref.cluster.model import ClusterModel
from ds4ref.cluster.stage import Stage, StageSpec
from ds4ref.engine import Engine
from ds4ref.engine_options import EngineOptions
from ds4ref.errors import ClusterError
from ds4ref.numerics import numerics

CUTS = {6: {1: (0, 6), 2: (0, 3, 6), 3: (0, 1, 4, 6), 5: (0, 1, 2, 3, 5, 6)},
        9: {1: (0, 9), 2: (0, 5, 9), 3: (0, 1, 6, 9), 5: (0, 3, 4, 6, 7, 9)}}  # fmt: skip
"""Layers of the random models of V4 (6) and of V4.1 (9, of which 2 and 5 make rows for others) by number of stages."""


class Done:
    """A result that is there."""

    def __init__(self, value: Any, seconds: Sequence[float] = ()):
        self.value, self.seconds = value, seconds

    def done(self) -> bool:
        return True

    def result(self, cancel: Callable[[], bool] | None = None) -> Any:
        return self.value


class LocalLink:
    """Stages in this process, one after another."""

    def __init__(self, stages: Sequence[Stage], layers: Sequence[range]):
        self.stages, self.layers = stages, layers
        self.names = [str(number) for number in range(len(stages))]
        self.facts = [stage.facts for stage in stages]

    def send(self, stage: int, name: str, *arguments: Any) -> Done:
        return Done(self.stages[stage].do(name, *arguments)[0])

    def run(self, *arguments: Any) -> Done:
        value, seconds = None, []
        for stage in self.stages:
            value, spent = stage.do("run", *arguments, incoming=value)
            seconds.append(spent)
        return Done(value, seconds)

    def close(self) -> None:
        for stage in self.stages:
            stage.close()


def layers_of(engine: Engine, stages: int) -> list[range]:
    return [range(a, b) for a, b in itertools.pairwise(CUTS[engine.shape.n_layers][stages])]


def local_link(engine: Engine, mode: str, stages: int, backend: str = "cpu") -> LocalLink:
    layers = layers_of(engine, stages)
    return LocalLink([Stage(StageSpec(engine.path, one, EngineOptions(backend, mode, 1))) for one in layers], layers)


def split(engine: Engine, mode: str, stages: int, backend: str = "cpu") -> ClusterModel:
    return ClusterModel(engine.shape, numerics(mode), lambda: local_link(engine, mode, stages, backend))


class Lost(Done):
    """A result that never comes."""

    def result(self, cancel: Any = None) -> Any:
        raise ClusterError("worker a is gone")


class Breaking:
    """A link to stages that are lost with the instruction number ``at``, before or (as is seen later) after they
    carried it out.

    ``links``: how often connected. Instructions are counted over all connections, so that it breaks once.
    """

    def __init__(self, engine: Engine, mode: str, stages: int, at: int, after: bool):
        self.make = lambda: local_link(engine, mode, stages)
        self.at, self.after, self.count, self.links = at, after, 0, 0

    def __call__(self) -> Breaking:
        self.link, self.links = self.make(), self.links + 1
        self.layers, self.facts = self.link.layers, self.link.facts
        return self

    def _step(self, do: Any, arguments: Sequence[Any]) -> Done:
        self.count += 1
        if self.count == self.at and not self.after:
            raise ClusterError("worker a is gone")
        done = do(*arguments)
        return Lost(None) if self.count == self.at else done

    def send(self, *arguments: Any) -> Done:
        return self._step(self.link.send, arguments)

    def run(self, *arguments: Any) -> Done:
        return self._step(self.link.run, arguments)

    def close(self) -> None:
        self.link.close()
