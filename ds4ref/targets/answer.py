"""What a target answers: tokens, pieces of a stream, and the whole that they add up to."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..errors import TargetError
from ..text.dsml import ToolCall


class Finish(enum.StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Token:
    """A token by its bytes, which is what engines can be compared by; ``id`` and ``logprob`` where they are known."""

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
    """Tokens as the target counts them, None where it does not. ``cached`` are those of ``prompt`` that needed no
    prefill, ``reasoning`` those of ``completion`` that were thought and not said."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True)
class CallDelta:
    """More of the tool call number ``index``: its name and id come once, ``arguments`` in pieces of JSON text."""

    index: int
    name: str = ""
    arguments: str = ""
    id: str = ""


@dataclass(frozen=True)
class Delta:
    """A piece of a stream. The last one carries ``finish``, usage and model, and in ``error`` why that is ERROR or what
    was wrong with calls that are void.

    ``void``: the calls begun so far were malformed markup; they do not count, and what they were comes as text.
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
        """Whether it holds something that was generated: such a piece counts as an arrival."""
        return bool(self.text or self.reasoning or self.calls or self.steps)


@dataclass(frozen=True)
class Completion:
    """A finished answer. ``arrivals`` are the times of the deltas that brought something, in seconds, ``sizes`` how
    many bytes of UTF-8 each of them brought."""

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
    """Deltas added up."""

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
    """The completion that a stream adds up to. TargetError if it broke off or ended without saying why; its
    ``partial`` is then the completion so far, with ERROR as its end."""
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
