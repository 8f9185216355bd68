"""Events and result of the DSML parser (docs/explanation/text.md 5)."""

from __future__ import annotations

from dataclasses import dataclass

from .dsml import ToolCall


@dataclass(frozen=True)
class ReasoningDelta:
    """A further piece of reasoning."""

    text: str


@dataclass(frozen=True)
class TextDelta:
    """A further piece of the visible answer."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The start of tool call number ``index``."""

    index: int
    name: str


@dataclass(frozen=True)
class ArgumentsDelta:
    """A fragment of a call's arguments; all fragments of a call concatenate to compact JSON."""

    index: int
    fragment: str


@dataclass(frozen=True)
class Failed:
    """The end of a malformed or unterminated block: its calls are void, and its markup follows as text."""

    reason: str


Event = ReasoningDelta | TextDelta | CallStart | ArgumentsDelta | Failed


@dataclass
class Generated:
    """A generated message.

    reasoning        concatenated reasoning deltas
    content          concatenated text deltas
    calls            tool calls with compact JSON arguments; empty unless the block was closed
    raw_block        the block exactly as generated, from the white space before it through its end tag
    complete         a block was closed, perhaps an empty one
    thinking_closed  False while reasoning is open
    error            why a block was rejected, None otherwise
    unterminated     a block was rejected only because its end was missing
    trailing         text after the block, which is ignored
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    raw_block: str = ""
    complete: bool = False
    thinking_closed: bool = True
    error: str | None = None
    unterminated: bool = False
    trailing: str = ""

    def finish_reason(self, engine: str) -> str:
        """Return the finish reason for a client; ``engine`` says how decoding ended ("stop", "length", ...).

        It is "tool_calls" once a block was closed. A malformed block gives "stop", an unterminated one "error", unless
        decoding hit a limit, which stays "length".
        """
        if self.complete:
            return "tool_calls"
        if self.error is None or engine == "length":
            return engine
        return "error" if self.unterminated else "stop"
