"""What is to be measured, complete and unchangeable: everything a run needs to know but where its results go.

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
"""Seconds that all repetitions of a run should take together if nobody says how many there are to be."""
MOST_REPS = 5
"""How many there are if time allows: llama-bench's default."""


@dataclass(frozen=True)
class Lane:
    """One thing that is measured, in turn with the others.

    target    a spec of ``ds4ref.targets.open_target``
    name      what tells it from the other lanes; "" if there are none
    streams   requests at once (endpoints)
    options   of ``open_target``
    """

    target: str = "local"
    name: str = ""
    streams: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shape:
    """A kind of request: tokens of its prompt, tokens of its answer, and how often it comes."""

    prompt: int
    answer: int
    weight: float = 1.0


@dataclass(frozen=True)
class Load:
    """Requests as users send them: ``requests`` of them for each entry of ``rates`` (requests/s, Poisson arrivals;
    inf: all at once) or of ``streams`` (each sends its next request when it has its answer). ``bounds`` says what is
    still good: milliseconds of ttft, tpot, e2e."""

    requests: int
    rates: tuple[float, ...] = ()
    streams: tuple[int, ...] = ()
    mix: tuple[Shape, ...] = (Shape(512, 128),)
    bounds: Mapping[str, float] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.rates and not self.streams:
            raise UsageError("a load needs request rates or numbers of streams")

    @property
    def levels(self) -> int:
        """How many loads there are."""
        return len(self.rates) + len(self.streams)

    @property
    def longest(self) -> int:
        """Prompt tokens of the longest request."""
        return max(shape.prompt for shape in self.mix)


@dataclass(frozen=True)
class Plan:
    """Lanes, and what each of them walks: ``depths``, else ``probes``, else a ``load``.

    walk         (start, last, step, factor) that made ``depths``, for a binary that walks by itself
    gen_tokens   decode steps at each depth
    ctx          tokens of context to allocate (None: as many as needed)
    reps         repetitions (None: ``MOST_REPS``, or as many as fit into ``budget``)
    budget       seconds for all repetitions, unless their number is given
    detect       two lanes: per cent of difference that shall be found in 80 of 100 such runs; decides the repetitions
    delay        seconds of rest before each repetition but the first
    warm_weights local lanes: read the whole file before anything else
    prompt       the text that is walked (None: prose of our own); ``prompt_file`` where it came from
    chat         the text is one user turn under ``system``
    api          of endpoints: "completions" or "chat"
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
    detect: float | None = None
    delay: float = 0.0
    warmup: bool = True
    warm_weights: bool = False
    roofline: bool = True
    prompt: str | None = field(default=None, repr=False)
    prompt_file: str | None = None
    chat: bool = False
    system: str = DEFAULT_SYSTEM
    api: str = "completions"

    def __post_init__(self) -> None:
        if not self.lanes:
            raise UsageError("a plan needs at least one lane")
        if bool(self.depths) + bool(self.probes) + (self.load is not None) != 1:
            raise UsageError("a plan walks depths, probes or a load: one of them")
        if list(self.depths) != sorted(set(self.depths)) or (self.depths and self.depths[0] < 1):
            raise UsageError("depths must grow, from 1 on")
        if self.gen_tokens < 1 and not self.probes:
            raise UsageError(f"gen_tokens must be at least 1, not {self.gen_tokens}")
        if self.reps is not None and self.reps < 1:
            raise UsageError(f"reps must be at least 1, not {self.reps}")
        if self.ctx is not None and self.ctx <= self.deepest + self.gen_tokens:
            needed = self.deepest + self.gen_tokens
            raise UsageError(f"a context of {self.ctx} is too small: more than {needed} tokens are needed")
        if self.detect is not None and len(self.lanes) != 2:
            raise UsageError("detect is for two lanes")

    @property
    def deepest(self) -> int:
        """Prompt tokens that are needed."""
        if self.load is not None:
            return self.load.longest
        return max(self.depths or (probe.needed for probe in self.probes))

    @property
    def context(self) -> int:
        """Tokens of context to allocate."""
        return self.ctx or self.deepest + self.gen_tokens + 1

    @property
    def rows(self) -> int:
        """Rows of one repetition of one lane."""
        return len(self.depths) or len(self.probes) or (self.load.levels if self.load else 0)

    def facts(self) -> dict[str, Any]:
        """What was asked for, for the facts of a run."""
        found: dict[str, Any] = {"reps": self.reps, "delay": self.delay, "warmup": self.warmup}
        if self.probes:
            return {"tests": [probe.name for probe in self.probes], **found}
        if self.load is not None:
            return {"load": dataclasses.asdict(self.load), **found}
        return {"depths": [self.depths[0], self.depths[-1], len(self.depths)], "gen_tokens": self.gen_tokens, **found}

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
        """A walk of one target: ``depths``, or from ``start`` to ``last``. ``more`` are fields of ``Plan``."""
        walk = None if depths else (start, last, step, factor)
        found = tuple(depths) or tuple(frontiers(start, last, step, factor))
        return cls((Lane(target, options=options or {}),), depths=found, walk=walk, **more)


def kind_of(spec: str) -> str:
    """The kind of target that a spec means; UsageError for none."""
    kind = spec.partition(":")[0].partition("?")[0]
    if kind in ("http", "https"):
        return "http"
    if kind in ("local", "command"):
        return kind
    raise UsageError(f"unknown target {spec!r}: local, http(s)://HOST/v1 or command:BINARY ARGS (a model file: -m)")


@dataclass(frozen=True)
class Places:
    """What the command line says about results. ``form``: one of ``formats.FORMATS`` on stdout."""

    csv: str | None = None
    plots: tuple[str, ...] = ()
    form: str | None = None
    json: bool = False
    label: str = ""
    store: str | None = None


def frontiers(start: int, last: int, step: int = 2048, factor: float = 1.0) -> Iterator[int]:
    """Depths from ``start`` to ``last``, both included; the last interval may be short (docs/bench.md).

    factor 1 adds ``step`` each time; a larger one multiplies, and rounds up. ValueError for a walk that would not
    advance or has no room.
    """
    if not 1 <= start <= last:
        raise ValueError(f"the first frontier must be 1 to {last}, not {start}")
    if step < 1 or not 1.0 <= factor < math.inf:
        raise ValueError(f"a walk in steps of +{step} or x{factor} does not advance")
    at = start
    while True:
        yield at
        if at >= last:
            return
        step_to = at + step if factor == 1.0 else max(math.ceil(at * factor), at + 1)
        at = min(step_to, last)
