"""An OpenAI-compatible endpoint as a source: the sweep of ``endpoint``, or the load of ``load``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds4ref.runs.columns import Sample
from ds4ref.targets import Cancellation
from ds4ref.targets.dialects import EXACT
from ds4ref.targets.openai import HttpTarget

from . import endpoint
from .endpoint import Endpoint
from .plan import Lane, Plan
from .source import Opening, Progress, Source, foreign


class EndpointSource(Source):
    """Concurrent streams on an endpoint as a source of samples; several lanes share one endpoint."""

    def __init__(self, opened: Endpoint, plan: Plan, streams: int, facts: dict[str, Any]):
        self.endpoint, self.plan, self.streams, self._facts = opened, plan, streams, facts

    @classmethod
    def open(cls, opening: Opening, lane: Lane) -> EndpointSource:
        """Open the endpoint, once for all its lanes, and calibrate characters per token, which also warms it up."""
        plan = opening.plan
        chat = plan.chat or plan.api == "chat"

        def make() -> tuple[Endpoint, dict[str, Any]]:
            # no retries: their time would be measured as the server's
            target = opening.target(lane, attempts=1)
            assert isinstance(target, HttpTarget)
            system = plan.system if chat else ""
            opened = Endpoint(target, opening.prompt.text(), chat=chat, system=system, exact=plan.exact)
            opened.calibrate()
            if dropped := target.dialect.refused & set(EXACT):
                opening.say(f"{target.name} refuses {', '.join(sorted(dropped))}: its answers may end early")
            return opened, {"target": target.identity(), "backend": "http",
                            "model": {"name": target.model, "file": lane.target},
                            "prompt_style": "chat" if chat else "completions", **foreign()}  # fmt: skip

        opened, facts = opening.once((lane.target, str(lane.options)), make)
        return cls(opened, plan, lane.streams, facts)

    def facts(self) -> dict[str, Any]:
        """Return the facts about the endpoint for the run's record; its machine is unknown."""
        return dict(self._facts)

    def walk(
        self, rep: int, done: int, *, start: float, progress: Progress | None, cancel: Cancellation
    ) -> Iterator[Sample]:
        """Run one repetition; yield a sample per depth, or per level of the load."""
        if self.plan.load is not None:
            from .load import walk

            yield from walk(self.endpoint, self.plan.load, rep=rep, done=done, start=start, progress=progress,
                            cancel=cancel)  # fmt: skip
            return
        depths = self.plan.depths[done:]
        yield from endpoint.walk(self.endpoint, depths, self.plan.gen_tokens, self.streams, rep=rep, start=start,
                                 progress=progress, cancel=cancel)  # fmt: skip
