"""Events and result of the parsers of generated text (docs/explanation/text.md 5)."""

from __future__ import annotations

from dataclasses import dataclass

from .dsml import ToolCall


@dataclass(frozen=True)
class ReasoningDelta:
    """The next piece of the reasoning."""

    text: str


@dataclass(frozen=True)
class TextDelta:
    """The next piece of the visible answer."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The start of tool call number ``index``, from 0, to the tool ``name``."""

    index: int
    name: str


@dataclass(frozen=True)
class ArgumentsDelta:
    """The next fragment of the arguments of call ``index``; together the fragments of a call are compact JSON."""

    index: int
    fragment: str


@dataclass(frozen=True)
class Failed:
    """The end of a malformed or unterminated block: its calls do not count, and its markup follows as text."""

    reason: str


Event = ReasoningDelta | TextDelta | CallStart | ArgumentsDelta | Failed


@dataclass
class Generated:
    """A generated message, as parsed.

    reasoning        all reasoning
    content          all visible text
    calls            tool calls with compact JSON arguments; empty unless their block was closed
    raw_block        the block of calls exactly as generated, from the white space before it through its end tag
    complete         whether a block of calls was closed, perhaps an empty one
    thinking_closed  False while the text is inside the reasoning
    error            why a block was rejected; None if none was
    unterminated     whether a block was rejected only because its end was missing
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
        """Return the finish reason to report to a client.

        engine: why decoding ended ("stop", "length", ...).
        It is "tool_calls" if a block of calls was closed. A malformed block gives "stop", an unterminated one "error",
        except that "length" (decoding hit a limit) stays "length".
        """
        if self.complete:
            return "tool_calls"
        if self.error is None or engine == "length":
            return engine
        return "error" if self.unterminated else "stop"
