"""What a target returns: tokens, the deltas of a stream, and the finished completion that the deltas add up to."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
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
    """A token; its bytes ``raw`` identify it, because token ids may differ between engines.

    The other fields are None where the target does not report them; ``logprob`` is a natural logarithm.
    """

    raw: bytes
    logprob: float | None = None
    id: int | None = None
    logit: float | None = None


@dataclass(frozen=True)
class Step:
    """One generated (or, in teacher forcing, given) token and the likeliest tokens at its position, best first.

    time      arrival in seconds since the request was sent, None if the answer was not streamed
    thought   whether the token is reasoning or a think tag; only the local engine's own decoding sets it
    """

    token: Token
    top: tuple[Token, ...] = ()
    time: float | None = None
    thought: bool = False


@dataclass(frozen=True)
class Usage:
    """Token counts as the target reports them; a count that it does not report is None.

    prompt      prompt tokens
    completion  generated tokens
    cached      prompt tokens that were already in a cache and needed no prefill
    reasoning   generated tokens that are reasoning
    drafted     tokens that were drafted, to be verified (speculative decoding)
    """

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    drafted: int | None = None


@dataclass(frozen=True)
class CallDelta:
    """A streamed fragment of tool call number ``index`` of the answer.

    The name and the id come whole, in one fragment; ``arguments``, which is JSON text, comes in pieces to concatenate.
    """

    index: int
    name: str = ""
    arguments: str = ""
    id: str = ""


@dataclass(frozen=True)
class Delta:
    """A piece of a streamed answer; the last piece also has ``finish``, ``usage`` and ``model``.

    text       visible text
    steps      tokens, where the target reports them
    time       arrival in seconds since the request was sent
    reasoning  text of the model's thinking
    calls      fragments of tool calls
    error      why the answer is faulty, for example because of malformed tool calls; "" if it is not
    void       the tool calls streamed so far turned out to be malformed: discard them; their markup follows as text
    markup     in the last piece: the tool calls exactly as a local model wrote them (``text.chat.Message.raw_dsml``)
    stopped    in the last piece: the stop string that ended the answer
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
        """Return whether the delta contains generated output, so that its time counts as an arrival of tokens."""
        return self.shows or bool(self.steps)

    @property
    def shows(self) -> bool:
        """Return whether the delta contains text, reasoning or tool calls, rather than only tokens.

        A think tag has no text, and text that may be the beginning of a stop string is held back.
        """
        return bool(self.text or self.reasoning or self.calls)


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    steps      generated tokens, where the target reports them
    arrivals   seconds from the request to each delta with output
    sizes      length of the text in each of these deltas, in bytes of UTF-8
    seconds    duration of the request
    markup     the tool calls exactly as a local model wrote them (``text.chat.Message.raw_dsml``)
    error      why the answer is faulty, "" if it is not
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
        """Return the time to first token in seconds, None if nothing was streamed or nothing arrived."""
        return self.arrivals[0] if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Return the inter-token latencies in seconds.

        They are the times between deltas with output, so a delta of several tokens counts once.
        """
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


def added_up(deltas: Sequence[Delta]) -> Completion:
    """Return the completion that the deltas add up to."""
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if delta.void:
            calls.clear()
        for more in delta.calls:
            known = calls.get(more.index, ToolCall("", ""))
            calls[more.index] = ToolCall(known.name + more.name, known.arguments + more.arguments, more.id or known.id)
    arrived = [delta for delta in deltas if delta.brings]
    end = next((delta for delta in reversed(deltas) if delta.finish), Delta())
    return Completion(
        "".join(delta.text for delta in deltas), tuple(step for delta in deltas for step in delta.steps),
        Finish(end.finish) if end.finish else "", next((d.usage for d in reversed(deltas) if d.usage), Usage()),
        next((delta.model for delta in reversed(deltas) if delta.model), ""), tuple(delta.time for delta in arrived),
        deltas[-1].time if deltas else 0.0, "".join(delta.reasoning for delta in deltas),
        tuple(call for _, call in sorted(calls.items())), end.error, end.markup, tuple(map(_size, arrived)),
    )  # fmt: skip


def _size(delta: Delta) -> int:
    texts = [delta.text, delta.reasoning, *(call.name + call.arguments for call in delta.calls)]
    return len("".join(texts).encode("utf-8", "surrogatepass"))


def collect(deltas: Iterable[Delta]) -> Completion:
    """Collect a stream of deltas into its completion.

    Raise TargetError if the stream broke off or ended without a finish reason; the error's ``partial`` is then the
    completion so far, with finish ERROR.
    """
    seen: list[Delta] = []
    try:
        seen.extend(deltas)
        if not any(delta.finish for delta in seen):
            raise TargetError("the answer ended without a finish reason")
    except TargetError as error:
        error.partial = replace(added_up(seen), finish=Finish.ERROR, error=str(error))
        raise
    return added_up(seen)
