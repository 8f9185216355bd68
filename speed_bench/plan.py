"""The plan of a measurement: immutable, and complete except for the destination of results.

Plan((Lane("local:model.gguf"),), depths=(2048, 4096), gen_tokens=128, reps=5)
Plan((Lane("http://127.0.0.1:8000/v1", streams=4),), depths=(2048,))
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4ref.errors import UsageError

from .probes import Probe

DEFAULT_SYSTEM = "You are a helpful assistant."  # with the period, unlike ds4's
DEFAULT_BUDGET = 300.0
"""Seconds for all repetitions of a run if their number is not given."""
MOST_REPS = 5
"""Number of repetitions if the budget allows them and none is given: llama-bench's default."""


@dataclass(frozen=True)
class Lane:
    """One of the targets that a run measures in turn.

    target    a spec of ``ds4ref.targets.open_target``
    name      distinguishes the lane from others, "" if it is the only one
    streams   number of concurrent requests (endpoints only)
    options   options of ``open_target``
    """

    target: str = "local"
    name: str = ""
    streams: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestShape:
    """A kind of request under load.

    prompt   number of prompt tokens
    answer   number of answer tokens
    weight   relative frequency
    """

    prompt: int
    answer: int
    weight: float = 1.0


@dataclass(frozen=True)
class Load:
    """Simulated requests of users to an endpoint.

    requests  number of requests per level; each entry of ``rates`` or ``streams`` is a level
    rates     requests/s with Poisson arrivals; inf: all at once
    streams   numbers of streams; each sends its next request when its answer is complete
    mix       kinds of requests
    bounds    limits of a good answer: milliseconds of ttft, tpot, e2e
    seed      of arrival times and mix
    """

    requests: int
    rates: tuple[float, ...] = ()
    streams: tuple[int, ...] = ()
    mix: tuple[RequestShape, ...] = (RequestShape(512, 128),)
    bounds: Mapping[str, float] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.rates and not self.streams:
            raise UsageError("a load test needs request rates or numbers of streams")

    @property
    def levels(self) -> int:
        """Number of levels: entries of ``rates`` and ``streams``."""
        return len(self.rates) + len(self.streams)

    @property
    def longest(self) -> int:
        """Number of prompt tokens of the longest request."""
        return max(shape.prompt for shape in self.mix)


@dataclass(frozen=True)
class Plan:
    """The lanes of a run, and what to measure on each: ``depths``, else ``probes`` (single tests), else ``load``.

    walk         (start, last, step, factor) that generated ``depths``, for a binary that sweeps by itself
    gen_tokens   decode steps at each depth
    ctx          context length in tokens to allocate (None: as needed)
    reps         repetitions (None: ``MOST_REPS``, or as many as fit into ``budget``)
    budget       seconds for all repetitions, if their number is not given
    delay        seconds of rest before each repetition but the first
    warmup       run a warm-up before the first row
    warm_weights local lanes: read the whole model file before anything else
    roofline     measure or load the machine's peaks, and report shares of the bound
    prompt       the text to prefill (None: generated prose)
    prompt_file  the file that ``prompt`` was read from
    chat         use the text as one user message after the message ``system``
    api          of endpoints: "completions" or "chat"
    exact        of endpoints: ask for answers of exactly ``gen_tokens`` tokens
    """

    lanes: tuple[Lane, ...]
    depths: tuple[int, ...] = ()
    probes: tuple[Probe, ...] = ()
    load: Load | None = None
    walk: tuple[int, int, int, float] | None = None
    gen_tokens: int = 128
    ctx: int | None = None
    reps: int | None = None
    budget: float = DEFAULT_BUDGET
    delay: float = 0.0
    warmup: bool = True
    warm_weights: bool = False
    roofline: bool = True
    prompt: str | None = field(default=None, repr=False)
    prompt_file: str | None = None
    chat: bool = False
    system: str = DEFAULT_SYSTEM
    api: str = "completions"
    exact: bool = True

    def __post_init__(self) -> None:
        if not self.lanes:
            raise UsageError("a plan needs at least one lane")
        if bool(self.depths) + bool(self.probes) + (self.load is not None) != 1:
            raise UsageError("a plan walks depths, probes or a load: one of them")
        if list(self.depths) != sorted(set(self.depths)) or (self.depths and self.depths[0] < 1):
            raise UsageError("depths must be at least 1 and increase")
        if self.gen_tokens < 1 and not self.probes:
            raise UsageError(f"gen_tokens must be at least 1, not {self.gen_tokens}")
        if self.reps is not None and self.reps < 1:
            raise UsageError(f"reps must be at least 1, not {self.reps}")
        if self.ctx is not None and self.ctx <= self.deepest + self.gen_tokens:
            needed = self.deepest + self.gen_tokens
            raise UsageError(f"a context of {self.ctx} is too small: more than {needed} tokens are needed")

    @property
    def deepest(self) -> int:
        """Number of prompt tokens needed by the deepest measurement."""
        if self.load is not None:
            return self.load.longest
        return max(self.depths or (probe.needed for probe in self.probes))

    @property
    def context(self) -> int:
        """Context length in tokens to allocate."""
        return self.ctx or self.deepest + self.gen_tokens + 1

    @property
    def rows(self) -> int:
        """Number of rows of one repetition of one lane."""
        return len(self.depths) or len(self.probes) or (self.load.levels if self.load else 0)

    @property
    def decoded(self) -> Iterator[int]:
        """Position of every token that a repetition decodes."""
        for depth, count in [(depth, self.gen_tokens) for depth in self.depths] or [
            (probe.needed, probe.decode) for probe in self.probes
        ]:
            yield from range(depth, depth + count)

    def facts(self) -> dict[str, Any]:
        """Return the requested measurement as facts for the run's record."""
        common: dict[str, Any] = {"reps": self.reps, "delay": self.delay, "warmup": self.warmup}
        if self.probes:
            return {"tests": [probe.name for probe in self.probes], **common}
        if self.load is not None:
            return {"load": dataclasses.asdict(self.load), **common}
        return {"depths": [self.depths[0], self.depths[-1], len(self.depths)], "gen_tokens": self.gen_tokens, **common}

    @classmethod
    def sweep(
        cls,
        target: str = "local",
        *,
        start: int = 2048,
        last: int = 32768,
        step: int = 2048,
        factor: float = 1.0,
        depths: Sequence[int] = (),
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Plan:
        """Return the plan of a sweep of one target.

        Depths are ``depths``, else from ``start`` to ``last`` as by ``frontiers``; ``more``: other fields of Plan.
        """
        walk = None if depths else (start, last, step, factor)
        chosen_depths = tuple(depths) or tuple(frontiers(start, last, step, factor))
        return cls((Lane(target, options=options or {}),), depths=chosen_depths, walk=walk, **more)


def kind_of(spec: str) -> str:
    """Return the kind of the target spec: "local", "http" or "command"; raises UsageError for any other."""
    kind = spec.partition(":")[0].partition("?")[0]
    if kind in ("http", "https"):
        return "http"
    if kind in ("local", "command"):
        return kind
    raise UsageError(f"unknown target {spec!r}: local, http(s)://HOST/v1 or command:BINARY ARGS (a model file: -m)")


@dataclass(frozen=True)
class OutputOptions:
    """Where results go.

    csv     path of the CSV file
    plots   paths of plots
    form    format on stdout, one of ``formats.FORMATS``
    json    print a last line of JSON on stdout
    label   label of the run in the store
    store   path of the run store
    """

    csv: str | None = None
    plots: tuple[str, ...] = ()
    form: str | None = None
    json: bool = False
    label: str = ""
    store: str | None = None


def frontiers(start: int, last: int, step: int = 2048, factor: float = 1.0) -> Iterator[int]:
    """Yield depths from ``start`` to ``last``, both included; the last interval may be short (docs/reference/bench.md).

    With factor 1 each depth is the one before plus ``step``; with a larger factor it is multiplied and rounded up.
    Raises ValueError for an empty range or steps that do not advance.
    """
    if not 1 <= start <= last:
        raise ValueError(f"the first depth must be 1 to {last}, not {start}")
    if step < 1 or not 1.0 <= factor < math.inf:
        raise ValueError(f"a sweep in steps of +{step} or x{factor} does not advance")
    at = start
    while True:
        yield at
        if at >= last:
            return
        step_to = at + step if factor == 1.0 else max(math.ceil(at * factor), at + 1)
        at = min(step_to, last)
