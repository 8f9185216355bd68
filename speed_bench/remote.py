"""An OpenAI-compatible endpoint as a source: the walk of ``endpoint``, or the load of ``load``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds4ref.targets import Cancellation
from ds4ref.targets.openai import HttpTarget

from . import endpoint
from .columns import Sample
from .endpoint import Endpoint
from .plan import Lane, Plan
from .sources import Opening, Progress, Source, foreign


class EndpointSource(Source):
    """A number of streams on an endpoint, which several lanes may share."""

    def __init__(self, made: Endpoint, plan: Plan, streams: int, facts: dict[str, Any]):
        self.endpoint, self.plan, self.streams, self._facts = made, plan, streams, facts

    @classmethod
    def open(cls, opening: Opening, lane: Lane) -> EndpointSource:
        """Asks for the model's name and how long a token is; that warms the endpoint up, too."""
        plan = opening.plan
        chat = plan.chat or plan.api == "chat"

        def make() -> tuple[Endpoint, dict[str, Any]]:
            # A retry inside a window would be measured as the server's time.
            target = opening.target(lane, attempts=1)
            assert isinstance(target, HttpTarget)
            made = Endpoint(target, opening.walked.text(), chat=chat, system=plan.system if chat else "")
            made.calibrate()
            return made, {"target": target.identity(), "backend": "http",
                          "model": {"name": target.model, "file": lane.target},
                          "prompt_style": "chat" if chat else "completions", **foreign()}  # fmt: skip

        made, facts = opening.once((lane.target, str(lane.options)), make)
        return cls(made, plan, lane.streams, facts)

    def facts(self) -> dict[str, Any]:
        """Of the endpoint; nothing is known of its machine."""
        return dict(self._facts)

    def walk(
        self, rep: int, done: int, *, start: float, progress: Progress | None, cancel: Cancellation
    ) -> Iterator[Sample]:
        """A row a depth, or a row a load."""
        if self.plan.load is not None:
            from .load import walk

            yield from walk(self.endpoint, self.plan.load, rep=rep, done=done, start=start, progress=progress,
                            cancel=cancel)  # fmt: skip
            return
        depths = self.plan.depths[done:]
        yield from endpoint.walk(self.endpoint, depths, self.plan.gen_tokens, self.streams, rep=rep, start=start,
                                 progress=progress, cancel=cancel)  # fmt: skip
