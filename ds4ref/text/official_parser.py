"""Streaming parser of answers in the chat formats 0731 and v4.1, equal to DeepSeek's own (docs/explanation/text.md 5).

An answer is reasoning, text, then tool calls. The beginning of a DSML tag opens the block of calls wherever it occurs,
even in reasoning, and nothing after it is text again. Both spellings of the tags are accepted. Unlike ``dsml_parser``,
this one repairs nothing and never turns a block back into text: anything in the block that is not a call is dropped,
and values that are not strings are passed on unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from . import rawjson
from .dsml import ToolCall
from .dsml_events import ArgumentsDelta, CallStart, Event, Generated, ReasoningDelta, TextDelta
from .protocol import DSML, THINK_CLOSE
from .stream import Cursor

_OPEN, _CLOSE = f"<{DSML}", f"</{DSML}"
_ENDS = (f"{_CLOSE}tool_calls>", f"{_CLOSE} calls>")
_INVOKE, _PARAMETER = 'invoke name="', "parameter name="
_STRING, _OTHER = 'true">', 'false">'

_Wait = Generator[None, None, None]
_Found = Generator[None, None, str]


class OfficialParser:
    """Parser of one answer, fed in pieces of any size.

    ``in_block`` is True inside a block of tool calls, ``done`` after it.

    thinking   whether the answer starts with reasoning
    tools      whether to recognise tool calls
    continues  whether the answer continues the reasoning or text of a prefix, so that newlines at its start are kept
    in_calls   whether the prompt ended by opening the block of calls
    """

    def __init__(self, thinking: bool, tools: bool = True, continues: bool = False, in_calls: bool = False):
        self._markers = (THINK_CLOSE, _OPEN) if tools else (THINK_CLOSE,)
        self._thinking = thinking
        self._cursor, self._events = Cursor(), list[Event]()
        self._calls: list[list[str]] = []  # for each call its name, followed by the fragments of its arguments
        self._texts: dict[type, list[str]] = {ReasoningDelta: [], TextDelta: []}
        self._rest: Callable[[str], None] = self._drop  # called at the end with the text that is still held back
        self.done = self.in_block = False
        self._rules = self._message(continues, in_calls)
        next(self._rules)

    def feed(self, chunk: str) -> list[Event]:
        """Parse the next piece of text and return the new events."""
        self._cursor.append(chunk)
        self._events = []
        next(self._rules)
        return self._events

    def finish(self) -> list[Event]:
        """End the input and return the remaining events. The beginning of a possible tag at the end counts as text, or
        as part of the value that it follows."""
        self._events = []
        self._rest(self._cursor.take())
        return self._events

    @property
    def result(self) -> Generated:
        """Return the answer as far as it is parsed; if it ends inside a call, the arguments of that call are
        incomplete."""
        calls = tuple(ToolCall(name, "".join(fragments)) for name, *fragments in self._calls)
        reasoning, content = ("".join(texts) for texts in self._texts.values())
        return Generated(reasoning, content, calls, complete=bool(calls), thinking_closed=not self._thinking)

    # --- output

    def _drop(self, text: str) -> None:
        pass

    def _show(self, text: str) -> None:
        if text:
            kind = ReasoningDelta if self._thinking else TextDelta
            self._texts[kind].append(text)
            self._events.append(kind(text))

    def _argument(self, fragment: str) -> None:
        if fragment:
            self._calls[-1].append(fragment)
            self._events.append(ArgumentsDelta(len(self._calls) - 1, fragment))

    # --- grammar: a bare ``yield`` waits for more text

    def _message(self, continues: bool, in_calls: bool) -> _Wait:
        yield
        if not in_calls:
            yield from self._text(continues)
        self.in_block = True
        while (yield from self._until(_INVOKE, *_ENDS)) == _INVOKE:
            yield from self._call()
        self.done, self.in_block = True, False
        while True:
            self._cursor.take()
            yield

    def _text(self, continues: bool) -> _Wait:
        """Emit reasoning and text up to a block of calls; newlines before the block, and around the end of the
        reasoning, are dropped."""
        cursor = self._cursor
        while True:
            while not continues and cursor.rest in ("", "\n" * len(cursor.rest)):
                cursor.take()
                yield
            if not continues:
                cursor.take(cursor.at + len(cursor.rest) - len(cursor.rest.lstrip("\n")))
            self._rest, continues = self._show, True
            found = cursor.first(*self._markers)
            while found is None:
                held = cursor.possible_start(*self._markers)
                if self._thinking or _OPEN in self._markers and cursor.possible_start(_OPEN) == held:
                    held = max(cursor.at, len(cursor.text[:held].rstrip("\n")))
                self._show(cursor.take(held))
                yield
                found = cursor.first(*self._markers)
            at, marker = found
            ends_reasoning = self._thinking and marker == THINK_CLOSE
            text = cursor.take(at)
            cursor.take(at + len(marker))
            self._show(text.rstrip("\n") if ends_reasoning or marker == _OPEN else text)
            if marker == _OPEN:
                self._rest = self._drop
                return
            if ends_reasoning:
                self._thinking, self._rest, continues = False, self._drop, False

    def _until(self, *markers: str) -> _Found:
        """Skip text up to and including the first of ``markers``, and return that marker."""
        while (found := self._cursor.first(*markers)) is None:
            yield
        self._cursor.take(found[0] + len(found[1]))
        return found[1]

    def _call(self) -> _Wait:
        while (end := self._cursor.first('"')) is None:
            yield
        self._calls.append([self._cursor.take(end[0])])
        self._cursor.take(end[0] + 1)
        self._events.append(CallStart(len(self._calls) - 1, self._calls[-1][0]))
        while (yield from self._until(_PARAMETER, _CLOSE)) == _PARAMETER:
            self._argument("{" if len(self._calls[-1]) == 1 else ", ")
            yield from self._name()
            is_string = (yield from self._until(_STRING, _OTHER)) == _STRING
            self._argument('"' if is_string else "")
            yield from self._value(_inside_quotes if is_string else str)
            self._argument('"' if is_string else "")
        self._argument("{}" if len(self._calls[-1]) == 1 else "}")

    def _name(self) -> _Wait:
        """Emit a parameter's name with its quotation marks; it ends at a quotation mark followed by a space."""
        while True:
            name, space, _ = self._cursor.rest.partition(" ")
            quoted = (self._calls[-1][-1] + name).endswith('"')
            self._argument(self._cursor.take(self._cursor.at + len(name)))
            if space:
                self._cursor.take(self._cursor.at + 1)
                self._argument(": " if quoted else " ")
                if quoted:
                    return
            else:
                yield

    def _value(self, spell: Callable[[str], str]) -> _Wait:
        cursor = self._cursor
        self._rest = lambda text: self._argument(spell(text))
        while (found := cursor.first(_CLOSE)) is None:
            self._rest(cursor.take(cursor.possible_start(_CLOSE)))
            yield
        self._rest(cursor.take(found[0]))
        cursor.take(found[0] + len(_CLOSE))
        self._rest = self._drop


def _inside_quotes(text: str) -> str:
    return rawjson.quote(text)[1:-1]
