"""The local engine as a source: sweeps and single tests on fresh sessions, with shares of the speed bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ds4ref.console.model import announce, warm
from ds4ref.environment import memory_bytes
from ds4ref.errors import DataError, UsageError
from ds4ref.runs.columns import Sample
from ds4ref.targets import Cancellation

from .plan import Lane, Plan
from .prompt import PromptText
from .samples import sample
from .source import Opening, Progress, Source
from .sweep import WarmUpSpeed, run_probes, sweep, warm_up

if TYPE_CHECKING:
    from ds4ref.costs import Costs, Peaks
    from ds4ref.engine import Engine

PROG = "ds4-bench"
GIB = 2.0**30
PROMPT_BYTES = 100
"""Bytes of memory per prompt token: its text, its id, and the tokenizer's temporaries."""


class LocalSource(Source):
    """An engine in this process as a source of samples."""

    def __init__(
        self, engine: Engine, plan: Plan, prompt: PromptText, facts: dict[str, Any], costs: Costs | None = None,
        peaks: Peaks | None = None,
    ):  # fmt: skip
        self.engine, self.plan, self.prompt, self._facts = engine, plan, prompt, facts
        self.costs, self.peaks = costs, peaks
        self._is_clustered = "cluster" in facts

    @classmethod
    def open(cls, opening: Opening, lane: Lane) -> LocalSource:
        """Open the engine: first the vocabulary, to fail early if the prompt is too short, then the weights."""
        from ds4ref.nano import embedded_path
        from ds4ref.runs.provenance import engine_facts
        from ds4ref.targets.local import LocalTarget

        from .peaks import as_peaks, machine_peaks, remark

        plan = opening.plan
        if plan.load is not None:
            raise UsageError("--requests is for endpoints: the local engine has one stream")
        path = lane.target.partition(":")[2].partition("?")[0] or embedded_path()
        opening.prompt.use(path)
        target = opening.target(replace(lane, target=f"local:{path}"))
        assert isinstance(target, LocalTarget)
        engine = target.engine
        announce(PROG, engine)
        if plan.warm_weights:
            warm(PROG, engine.source)
        opening.sha256(path)  # with progress; the facts find it in the store
        facts = engine_facts(engine, opening.store)
        costs, peaks = engine.costs(), None
        if "cluster" in facts:
            opening.once("cluster", lambda: opening.say("no roofline shares and no memory figures on a cluster"))
        elif plan.roofline:
            facts["peaks"] = machine_peaks(opening.store, facts["threads"])
            peaks = as_peaks(facts["peaks"], costs.weight_bytes())
            if note := remark(facts["peaks"], peaks is not None):
                opening.once(("peaks", note), lambda: opening.say(note))
        return cls(engine, plan, opening.prompt, facts, costs, peaks)

    def facts(self) -> dict[str, Any]:
        """Return facts about the engine, its model, and this machine's peaks, for the run's record."""
        return self._facts

    def check(self, lanes: int) -> None:
        """Raise DataError if ``lanes`` contexts and the prompt need more memory than this process may use."""
        plan, room = self.plan, memory_bytes()
        here = 0 if self._is_clustered else lanes * self.engine.shape.kv_bytes(plan.context)
        need = here + PROMPT_BYTES * plan.deepest
        if room is not None and need > room:
            raise DataError(
                f"a context of {plan.context:,} tokens needs {need / GIB:.1f} GiB, and there are {room / GIB:.1f} GiB "
                f"of memory (--ctx-max, --ctx-alloc)"
            )

    def warm_up(self) -> WarmUpSpeed:
        """Run one full prefill chunk and a few decode steps; return their speed."""
        tokens = self.prompt.tokens(min(self.plan.deepest, self.engine.prefill_chunk))
        return warm_up(self.engine.session(self.plan.context), tokens, self.prompt.eos, self.plan.decoded)

    def walk(
        self, rep: int, done: int, *, start: float, progress: Progress | None, cancel: Cancellation
    ) -> Iterator[Sample]:
        """Run one repetition, a sweep on a fresh session or each test on its own; yield its samples."""
        plan, engine, eos = self.plan, self.engine, self.prompt.eos
        tokens = self.prompt.tokens(plan.deepest)
        if plan.probes:
            rows = run_probes(
                lambda: engine.session(plan.context), tokens, plan.probes, eos, rep=rep, done=done, progress=progress,
                cancel=cancel,
            )  # fmt: skip
        else:
            rows = sweep(
                engine.session(plan.context), tokens, plan.depths, plan.gen_tokens, eos, rep=rep, done=done,
                progress=progress, cancel=cancel,
            )  # fmt: skip
        for row in rows:
            if self._is_clustered:  # these are this process's, which computes nothing
                row = replace(row, rss_bytes=None, wait_share=None, load=None)
            yield sample(row, self.costs, self.peaks, start)

    def buffers(self) -> str:
        """Return a line on the memory of a context, worded as by ds4."""
        shape, ctx = self.engine.shape, self.plan.context
        plain, compressed = shape.cache_rows(ctx)
        return (
            f"context buffers {shape.kv_bytes(ctx) / 2**20:.2f} MiB (ctx={ctx}, backend={self.engine.backend}, "
            f"prefill_chunk={min(self.engine.prefill_chunk, ctx)}, raw_kv_rows={plain}, "
            f"compressed_kv_rows={compressed})"
        )
