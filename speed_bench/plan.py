"""The plan of a measurement: what to measure, on which targets, how often.

It is immutable, and complete except for where results are written.

Plan((BenchTarget("local:model.gguf"),), depths=(2048, 4096), gen_tokens=128, reps=5)
Plan((BenchTarget("http://127.0.0.1:8000/v1", streams=4),), depths=(2048,))
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4ref.errors import UsageError

DEFAULT_SYSTEM = "You are a helpful assistant."  # with the period, unlike ds4's
DEFAULT_BUDGET = 300.0
"""Seconds for all repetitions of a run if their number is not given."""
MOST_REPS = 5
"""Number of repetitions if none is given and the budget allows them; it is llama-bench's default."""


@dataclass(frozen=True)
class BenchTarget:
    """One of the targets that a run measures in turn.

    spec      describes the target as for ``ds4ref.targets.open_target``: "local:MODEL", "http://HOST/v1", ...
    name      distinguishes the target from the other ones, "" if it is the only one
    streams   number of concurrent requests (endpoints only)
    options   options of ``open_target``
    """

    spec: str = "local"
    name: str = ""
    streams: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return the kind of the target: "local", "http" or "command"; raises UsageError for any other spec."""
        kind = self.spec.partition(":")[0].partition("?")[0]
        if kind in ("http", "https"):
            return "http"
        if kind in ("local", "command"):
            return kind
        raise UsageError(f"unknown target {self.spec!r}: local[:MODEL], http(s)://HOST/v1 or command:BINARY ARGS")


@dataclass(frozen=True)
class Probe:
    """A single test as in llama-bench: prefill of ``prefill`` tokens, or ``decode`` steps, after ``depth`` tokens.

    Either ``prefill`` or ``decode`` is 0. The tokens before are prefilled without being timed: ``pp512`` prefills an
    empty session, ``pp512 @ d8192`` one that holds 8192 tokens. Decode needs one token to start from, so ``tg128``
    follows one prompt token.
    """

    prefill: int
    decode: int
    depth: int

    @property
    def name(self) -> str:
        """The name of the test in llama-bench's notation, such as ``pp512 @ d8192``."""
        work = f"pp{self.prefill}" if self.prefill else f"tg{self.decode}"
        return f"{work} @ d{self.depth}" if self.depth else work

    @property
    def needed(self) -> int:
        """Number of prompt tokens that the test needs."""
        return self.depth + self.prefill if self.prefill else max(1, self.depth)


@dataclass(frozen=True)
class RequestShape:
    """A kind of request under load: lengths of prompt and answer in tokens, and how often it occurs (``weight``)."""

    prompt: int
    answer: int
    weight: float = 1.0


@dataclass(frozen=True)
class Load:
    """A load of simulated user requests, put on an endpoint at several levels.

    requests  number of requests per level; each entry of ``rates`` or ``streams`` is a level
    rates     requests/s, sent at random (Poisson) times; inf: all at once
    streams   numbers of streams; each sends its next request when its answer is complete
    mix       kinds of requests
    bounds    limits in milliseconds for an answer to count as good: "ttft", "tpot", "e2e"
    seed      determines when requests are sent, and of which kind they are
    """

    requests: int
    rates: tuple[float, ...] = ()
    streams: tuple[int, ...] = ()
    mix: tuple[RequestShape, ...] = (RequestShape(512, 128),)
    bounds: Mapping[str, float] = field(default_factory=dict)
    seed: int = 1


@dataclass(frozen=True)
class Plan:
    """The targets of a run, and what to measure on each: exactly one of ``depths``, ``probes`` and ``load``.

    depths       numbers of tokens at which prefill and decode are measured, one after the other (a sweep)
    probes       single tests
    load         concurrent requests to endpoints
    steps        (start, last, step, factor) from which ``depths`` were computed, for a binary that sweeps by itself
    gen_tokens   decode steps at each depth
    ctx          context length in tokens to allocate (None: as needed)
    reps         repetitions (None: ``MOST_REPS``, or as many as fit into ``budget``)
    budget       seconds for all repetitions, if their number is not given
    warmup       run a short prefill and decode first, so that the first row does not include loading
    warm_weights local targets: first read the whole model file into memory
    prompt       the text to prefill (None: generated prose)
    chat         use the text as one user message, after the system message ``system``
    api          API of endpoints: "completions" or "chat"
    """

    targets: tuple[BenchTarget, ...]
    depths: tuple[int, ...] = ()
    probes: tuple[Probe, ...] = ()
    load: Load | None = None
    steps: tuple[int, int, int, float] | None = None
    gen_tokens: int = 128
    ctx: int | None = None
    reps: int | None = None
    budget: float = DEFAULT_BUDGET
    warmup: bool = True
    warm_weights: bool = False
    prompt: str | None = field(default=None, repr=False)
    chat: bool = False
    system: str = DEFAULT_SYSTEM
    api: str = "completions"

    def __post_init__(self) -> None:
        if bool(self.depths) + bool(self.probes) + (self.load is not None) != 1:
            raise UsageError("a plan walks depths, probes or a load: one of them")
        if list(self.depths) != sorted(set(self.depths)) or (self.depths and self.depths[0] < 1):
            raise UsageError("depths must be at least 1 and increase")

    @property
    def deepest(self) -> int:
        """Number of prompt tokens needed by the deepest measurement."""
        if self.load is not None:
            return max(shape.prompt for shape in self.load.mix)
        return max(self.depths or (probe.needed for probe in self.probes))

    @property
    def context(self) -> int:
        """Context length in tokens to allocate."""
        return self.ctx or self.deepest + self.gen_tokens + 1

    @property
    def rows(self) -> int:
        """Number of rows of one repetition of one target."""
        levels = len(self.load.rates) + len(self.load.streams) if self.load else 0
        return len(self.depths) or len(self.probes) or levels

    @property
    def decoded(self) -> Iterator[int]:
        """The positions (numbers of tokens before) of all tokens that a repetition decodes."""
        for depth, count in [(depth, self.gen_tokens) for depth in self.depths] or [
            (probe.needed, probe.decode) for probe in self.probes
        ]:
            yield from range(depth, depth + count)

    def facts(self) -> dict[str, Any]:
        """Return what is to be measured, as metadata for the run's record."""
        common: dict[str, Any] = {"reps": self.reps, "warmup": self.warmup}
        if self.probes:
            return {"tests": [probe.name for probe in self.probes], **common}
        if self.load is not None:
            return {"load": dataclasses.asdict(self.load), **common}
        return {"depths": [self.depths[0], self.depths[-1], len(self.depths)], "gen_tokens": self.gen_tokens, **common}

    @classmethod
    def sweep(cls, target: str = "local", *, depths: Sequence[int], options: Mapping[str, Any] | None = None,
              **more: Any) -> Plan:  # fmt: skip
        """Return the plan of a sweep over depths of one target; ``more`` sets other fields of the plan."""
        return cls((BenchTarget(target, options=options or {}),), depths=tuple(depths), **more)


def sweep_depths(start: int, last: int, step: int = 2048, factor: float = 1.0) -> Iterator[int]:
    """Yield depths from ``start`` to ``last``, both included; the last interval may be shorter than the others.

    With ``factor`` 1, each depth is the previous one plus ``step``; with a larger ``factor``, it is the previous one
    times ``factor``, rounded up.
    """
    at = start
    while True:
        yield at
        if at >= last:
            return
        step_to = at + step if factor == 1.0 else max(math.ceil(at * factor), at + 1)
        at = min(step_to, last)
