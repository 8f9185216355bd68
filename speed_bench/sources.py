"""Opens the targets of a plan as sources of rows: objects that measure and yield one row after the other.

local       an engine in this process, timed here (``sweep``)
http        an OpenAI-compatible endpoint, timed by the client (``endpoint``, ``load``)
command     a ds4-bench binary, which sweeps by itself (``binary``)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ds4ref.console.model import announce, warm
from ds4ref.environment import memory_bytes
from ds4ref.errors import DataError, UsageError
from ds4ref.runs.columns import Row
from ds4ref.targets import Cancellation, Target, open_target
from ds4ref.version import __version__

from .plan import BenchTarget, Plan
from .prompt import PromptText
from .sweep import Progress, bounds, run_probes, sweep, warm_up, with_warnings

if TYPE_CHECKING:
    from ds4ref.costs import Costs, Peaks
    from ds4ref.engine import Engine
    from ds4ref.runs.store import Store

    from .endpoint import Endpoint

PROG = "ds4-bench"
GIB = 2.0**30
PROMPT_BYTES = 100
"""Memory in bytes per prompt token: its text, its id, and temporary data of the tokenizer."""
FOREIGN = {"engine": f"measured by ds4ref {__version__}", "numerics": None, "threads": None}
"""Metadata common to all engines other than ds4ref, of which these settings are unknown."""

Say = Callable[[str], None]


@dataclass
class Opening:
    """What the sources of a plan share while they are opened: the run store, the prompt, messages to the user.

    stack      closes the targets at the end
    progress   called with a title, returns a context manager; what it yields is called with (done, total)
    say        called with messages for the user
    """

    plan: Plan
    stack: ExitStack
    store: Store | None = None
    progress: Callable[[str], Any] | None = None
    say: Say = lambda message: None
    prompt: PromptText = field(init=False)
    _shared: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompt = PromptText(self.plan)

    def target(self, planned: BenchTarget, **options: Any) -> Target:
        """Open a target of the plan; ``options`` apply unless the plan sets them. It is closed with ``stack``."""
        return self.stack.enter_context(open_target(planned.spec, **{**options, **planned.options}))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the result of ``make()``; it is called only once per ``key``, then its result is shared."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def sha256(self, path: Any) -> str | None:
        """Return the SHA-256 of a model file, which the store caches; None if there is no store."""
        if self.store is None:
            return None
        if self.progress is None:
            return self.store.sha256(path)
        with self.progress("hashing the model, once") as progress:
            return self.store.sha256(path, progress)


class Source(abc.ABC):
    """One target, ready to be measured.

    facts      metadata of the target for the run's record: engine, backend, model, numerics, threads
    pausable   whether another target can be measured between two of its rows
    """

    facts: dict[str, Any]
    pausable = True

    @abc.abstractmethod
    def walk(self, rep: int, done: int, progress: Progress | None, cancel: Cancellation) -> Iterator[Row]:
        """Measure repetition ``rep``; yield its rows, without the first ``done``, as soon as they are measured.

        ``progress`` is called with (done, total), in tokens, rows or requests, whatever the source counts. Cancelled is
        raised when ``cancel`` is triggered.
        """

    def warm_up(self) -> None:  # noqa: B027  nothing to do is a fine implementation
        """Warm up, so that the first row is measured like the others."""

    def check(self, sources: int) -> str:
        """Return a line for the user on the memory that a context takes, "" if unknown.

        Raise DataError if there is not enough memory for ``sources`` sources like this one.
        """
        return ""


class LocalSource(Source):
    """An engine in this process as a source of rows."""

    def __init__(
        self, engine: Engine, plan: Plan, prompt: PromptText, facts: dict[str, Any], costs: Costs | None = None,
        peaks: Peaks | None = None,
    ):  # fmt: skip
        self.engine, self.plan, self.prompt, self.facts = engine, plan, prompt, facts
        self.costs, self.peaks = costs, peaks

    @classmethod
    def open(cls, opening: Opening, planned: BenchTarget) -> LocalSource:
        """Open an engine for a planned target.

        The vocabulary is loaded before the weights, so that a prompt that is too short fails early.
        """
        from ds4ref.nano import embedded_path
        from ds4ref.runs.provenance import engine_facts
        from ds4ref.targets.local import LocalTarget

        from .peaks import UNBOUNDED, as_peaks, machine_peaks

        plan = opening.plan
        if plan.load is not None:
            raise UsageError("--requests is for endpoints: the local engine has one stream")
        path = planned.spec.partition(":")[2] or embedded_path()
        opening.prompt.use(path)
        target = opening.target(replace(planned, spec=f"local:{path}"))
        assert isinstance(target, LocalTarget)
        engine = target.engine
        announce(PROG, engine)
        if plan.warm_weights:
            warm(PROG, engine.source)
        opening.sha256(path)  # shows progress; engine_facts then finds the hash in the store
        facts = engine_facts(engine, opening.store)
        costs, peaks = engine.costs(), None
        if "cluster" in facts:
            opening.once("cluster", lambda: opening.say("no roofline shares and no memory figures on a cluster"))
        elif opening.store is not None:
            facts["peaks"] = machine_peaks(opening.store, facts["threads"])
            peaks = as_peaks(facts["peaks"], costs.weight_bytes())
            if peaks is None:
                opening.once("peaks", lambda: opening.say(UNBOUNDED))
        return cls(engine, plan, opening.prompt, facts, costs, peaks)

    def check(self, sources: int) -> str:
        """Return a line on the memory that a context takes, in ds4's words.

        Raise DataError if ``sources`` contexts and the prompt need more memory than this process may use.
        """
        plan, engine, limit = self.plan, self.engine, memory_bytes()
        one = engine.shape.kv_bytes(plan.context)
        need = (0 if "cluster" in self.facts else sources * one) + PROMPT_BYTES * plan.deepest
        if limit is not None and need > limit:
            raise DataError(
                f"a context of {plan.context:,} tokens needs {need / GIB:.1f} GiB, and there are {limit / GIB:.1f} GiB "
                f"of memory (--ctx-max, --ctx-alloc)"
            )
        plain, compressed = engine.shape.cache_rows(plan.context)
        return (
            f"context buffers {one / 2**20:.2f} MiB (ctx={plan.context}, backend={engine.backend}, "
            f"prefill_chunk={min(engine.prefill_chunk, plan.context)}, raw_kv_rows={plain}, "
            f"compressed_kv_rows={compressed})"
        )

    def warm_up(self) -> None:
        """Run one full prefill chunk and a few decode steps."""
        tokens = self.prompt.tokens(min(self.plan.deepest, self.engine.prefill_chunk))
        warm_up(self.engine.session(self.plan.context), tokens, self.prompt.eos, self.plan.decoded)

    def walk(self, rep: int, done: int, progress: Progress | None, cancel: Cancellation) -> Iterator[Row]:
        """Run one repetition and yield its rows: a sweep over depths in a new session, or each test in its own."""
        plan, eos, tokens = self.plan, self.prompt.eos, self.prompt.tokens(self.plan.deepest)

        def session() -> Any:
            return self.engine.session(plan.context)

        if plan.probes:
            rows = run_probes(session, tokens, plan.probes, eos, done=done, progress=progress, cancel=cancel)
        else:
            rows = sweep(session(), tokens, plan.depths, plan.gen_tokens, eos, done=done, progress=progress,
                         cancel=cancel)  # fmt: skip
        for row in rows:
            if "cluster" in self.facts:  # leave out figures of this process, because the workers compute
                row = {name: value for name, value in row.items() if name not in ("rss_bytes", "wait_share", "load")}
            yield with_warnings(row | (bounds(row, self.costs, self.peaks) if self.costs is not None else {}))


class EndpointSource(Source):
    """An endpoint with ``streams`` concurrent requests as a source of rows.

    Sources for different numbers of streams share one ``Endpoint``.
    """

    def __init__(self, opened: Endpoint, plan: Plan, streams: int, facts: dict[str, Any]):
        self.endpoint, self.plan, self.streams, self.facts = opened, plan, streams, dict(facts)

    @classmethod
    def open(cls, opening: Opening, planned: BenchTarget) -> EndpointSource:
        """Open an endpoint for a planned target and calibrate its characters per token, which also warms it up.

        If it was opened before, for another number of streams, it is used again.
        """
        from ds4ref.targets.dialects import EXACT
        from ds4ref.targets.openai import HttpTarget

        from .endpoint import Endpoint

        plan = opening.plan
        chat = plan.chat or plan.api == "chat"

        def make() -> tuple[Endpoint, dict[str, Any]]:
            # no retries: the time that they take would be counted as the server's
            target = opening.target(planned, attempts=1)
            assert isinstance(target, HttpTarget)
            system = plan.system if chat else ""
            opened = Endpoint(target, opening.prompt.text(), chat=chat, system=system)
            opened.calibrate()
            if dropped := target.dialect.refused & set(EXACT):
                opening.say(f"{target.name} refuses {', '.join(sorted(dropped))}: its answers may end early")
            return opened, {"target": target.identity(), "backend": "http",
                            "model": {"name": target.model, "file": planned.spec},
                            "prompt_style": "chat" if chat else "completions", **FOREIGN}  # fmt: skip

        opened, facts = opening.once((planned.spec, str(planned.options)), make)
        return cls(opened, plan, planned.streams, facts)

    def walk(self, rep: int, done: int, progress: Progress | None, cancel: Cancellation) -> Iterator[Row]:
        """Run one repetition; yield a row per depth, or per level of the load."""
        from . import load

        if self.plan.load is not None:
            yield from load.levels(self.endpoint, self.plan.load, rep, done, progress, cancel)
        else:
            depths = self.plan.depths[done:]
            yield from load.depths(self.endpoint, depths, self.plan.gen_tokens, self.streams, progress, cancel)
