"""What a target returns: tokens, stream deltas, and the completion they add up to."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..errors import TargetError
from ..text.dsml import ToolCall


class Finish(enum.StrEnum):
    """Why generation of an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Token:
    """A token by its bytes, by which engines are compared; ``id``, ``logprob`` and ``logit`` where the target reports
    them."""

    raw: bytes
    logprob: float | None = None
    id: int | None = None
    logit: float | None = None


@dataclass(frozen=True)
class Step:
    """One generated (or forced) token with its alternatives, best first, and when it arrived.

    ``time`` is seconds since the request was sent, None where nothing was streamed.
    """

    token: Token
    top: tuple[Token, ...] = ()
    time: float | None = None


@dataclass(frozen=True)
class Usage:
    """Token counts as the target reports them, None where it does not.

    ``cached``: prompt tokens that needed no prefill; ``reasoning``: completion tokens spent on reasoning.
    """

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True)
class CallDelta:
    """A part of tool call number ``index``: name and id come once, ``arguments`` in fragments of JSON text."""

    index: int
    name: str = ""
    arguments: str = ""
    id: str = ""


@dataclass(frozen=True)
class Delta:
    """A piece of a stream. The last one has ``finish``, usage and model; ``error`` tells what went wrong, malformed
    calls included.

    ``void``: the calls so far were malformed markup and are void; their markup follows as text.
    ``markup``: with the last one, the block of calls as a local model wrote it (``text.chat.Message.raw_dsml``).
    ``stopped``: with the last one, the stop string that ended the answer.
    """

    text: str = ""
    steps: tuple[Step, ...] = ()
    time: float = 0.0
    finish: Finish | str = ""
    usage: Usage | None = None
    model: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    void: bool = False
    error: str = ""
    markup: str = ""
    stopped: str = ""

    @property
    def brings(self) -> bool:
        """Whether the delta holds generated output; such a delta counts as an arrival."""
        return bool(self.text or self.reasoning or self.calls or self.steps)


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    ``arrivals``: seconds at which each delta with output arrived; ``sizes``: bytes of UTF-8 that each brought.
    """

    text: str
    steps: tuple[Step, ...] = ()
    finish: Finish | str = ""
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    arrivals: tuple[float, ...] = ()
    seconds: float = 0.0
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    error: str = ""
    markup: str = ""
    sizes: tuple[int, ...] = ()

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds, None if nothing was streamed or nothing came."""
        return self.arrivals[0] if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies in seconds (of deltas, where several tokens share one)."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


class _Sum:
    """Accumulates deltas into a completion."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.steps: list[Step] = []
        self.calls: dict[int, ToolCall] = {}
        self.arrivals: list[float] = []
        self.sizes: list[int] = []
        self.last = Delta()
        self.usage, self.model = Usage(), ""

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.reasoning.append(delta.reasoning)
        self.steps += delta.steps
        if delta.void:
            self.calls.clear()
        for more in delta.calls:
            known = self.calls.get(more.index, ToolCall("", ""))
            self.calls[more.index] = ToolCall(
                known.name + more.name, known.arguments + more.arguments, more.id or known.id
            )
        if delta.brings:
            self.arrivals.append(delta.time)
            texts = [delta.text, delta.reasoning, *(more.name + more.arguments for more in delta.calls)]
            self.sizes.append(len("".join(texts).encode("utf-8", "surrogatepass")))
        self.usage, self.model = delta.usage or self.usage, delta.model or self.model
        self.last = delta if delta.finish else replace(self.last, time=delta.time)

    def completion(self) -> Completion:
        last = self.last
        return Completion(
            "".join(self.text), tuple(self.steps), Finish(last.finish) if last.finish else "", self.usage, self.model,
            tuple(self.arrivals), last.time, "".join(self.reasoning),
            tuple(call for _, call in sorted(self.calls.items())), last.error, last.markup, tuple(self.sizes),
        )  # fmt: skip


def collect(deltas: Iterable[Delta]) -> Completion:
    """Collect a stream into its completion.

    Raises TargetError if the stream broke off or ended without a finish reason; ``partial`` is then the completion so
    far, with finish ERROR.
    """
    total = _Sum()
    try:
        for delta in deltas:
            total.add(delta)
        if not total.last.finish:
            raise TargetError("the answer broke off: no finish reason came")
    except TargetError as error:
        error.partial = replace(total.completion(), finish=Finish.ERROR, error=str(error))
        raise
    return total.completion()
