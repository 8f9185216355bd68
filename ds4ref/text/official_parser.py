"""Streaming parser of what a model of profile 0731 or v4.1 writes, as DeepSeek's own parser reads it (text.md 5).

Reasoning, answer, then calls: the marker of a tag opens the block wherever it stands, in reasoning too, and nothing of
what follows becomes text again. Both spellings of the tags are read. Unlike ``dsml_parser``, nothing is repaired and no
block is taken back: what is no call is left out, values that are no strings are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from . import rawjson
from .dsml import ToolCall
from .dsml_parser import Cursor, NeedMore
from .dsml_events import ArgumentsDelta, CallEnd, CallStart, Done, Event, Generated, ReasoningDelta, TextDelta
from .protocol import DSML, THINK_CLOSE

_OPEN, _CLOSE = f"<{DSML}", f"</{DSML}"
_ENDS = (f"{_CLOSE}tool_calls>", f"{_CLOSE} calls>")
_INVOKE, _PARAMETER = 'invoke name="', "parameter name="


class OfficialParser:
    """Parser of one answer, fed in pieces of any size; ``done`` says that a block is closed.

    thinking   the answer starts with reasoning
    tools      calls are looked for
    continues  it goes on with the reasoning or text of a prefix: a newline at its start counts
    in_calls   the prompt opened the block of calls
    """

    def __init__(self, thinking: bool, tools: bool = True, continues: bool = False, in_calls: bool = False):
        self._thinking, self._tools = thinking, tools
        self._cursor, self._events = Cursor(), list[Event]()
        self._calls: list[list[str]] = []  # fragments of each call: its name, then its arguments
        self._texts: dict[type, list[str]] = {ReasoningDelta: [], TextDelta: []}
        self.done = False
        self._step: Callable[[], None] = self._text if continues else self._newlines
        if in_calls:
            self._step = self._between_calls

    def feed(self, chunk: str) -> list[Event]:
        """Parse a further piece and return the new events."""
        self._cursor.append(chunk)
        self._events = []
        try:
            while self._cursor.remaining:
                self._step()
        except NeedMore:
            pass
        return self._events

    def finish(self) -> list[Event]:
        """End the input and return the remaining events: what might have become a marker is text or a value."""
        self._events = []
        rest = self._cursor.take(len(self._cursor.text))
        if self._step == self._text:
            self._emit(rest)
        elif self._step in (self._string, self._other):
            self._argument(_inside_quotes(rest) if self._step == self._string else rest)
        return self._events

    @property
    def result(self) -> Generated:
        """Return what was parsed so far; arguments of a call that was cut off are cut off, too."""
        calls = tuple(ToolCall(name, "".join(fragments)) for name, *fragments in self._calls)
        reasoning, content = ("".join(texts) for texts in self._texts.values())
        return Generated(reasoning, content, calls, complete=bool(calls), thinking_closed=not self._thinking)

    # --- text

    def _emit(self, text: str) -> None:
        if text:
            kind = ReasoningDelta if self._thinking else TextDelta
            self._texts[kind].append(text)
            self._events.append(kind(text))

    def _newlines(self) -> None:
        """Skip newlines before reasoning or answer."""
        cursor = self._cursor
        cursor.take(len(cursor.text) - len(cursor.text[cursor.at :].lstrip("\n")))
        if cursor.remaining:
            self._step = self._text

    def _text(self) -> None:
        """Pass text on up to a marker; the newlines before the end of reasoning and before a block are dropped."""
        cursor = self._cursor
        markers = (THINK_CLOSE, _OPEN) if self._tools else (THINK_CLOSE,)
        found = [(at, marker) for marker in markers if (at := cursor.text.find(marker, cursor.at)) >= 0]
        if not found:
            held = cursor.possible_start(*markers)
            if self._thinking or self._tools and cursor.possible_start(_OPEN) == held:
                held = max(cursor.at, len(cursor.text[:held].rstrip("\n")))
            self._emit(cursor.take(held))
            raise NeedMore
        at, marker = min(found)
        text = cursor.take(at)
        cursor.take(at + len(marker))
        self._emit(text if marker == THINK_CLOSE and not self._thinking else text.rstrip("\n"))
        if marker == _OPEN:
            self._step = self._between_calls
        elif self._thinking:
            self._thinking, self._step = False, self._newlines

    # --- calls

    def _argument(self, fragment: str) -> None:
        if fragment:
            self._calls[-1].append(fragment)
            self._events.append(ArgumentsDelta(len(self._calls) - 1, fragment))

    def _until(self, *markers: str) -> tuple[str, str]:
        """Return the text before the first of ``markers``, and that marker; both are consumed."""
        cursor = self._cursor
        found = [(at, marker) for marker in markers if (at := cursor.text.find(marker, cursor.at)) >= 0]
        if not found:
            raise NeedMore
        at, marker = min(found)
        text = cursor.take(at)
        cursor.take(at + len(marker))
        return text, marker

    def _between_calls(self) -> None:
        if self._until(_INVOKE, *_ENDS)[1] == _INVOKE:
            self._step = self._name
        else:
            self.done, self._step = True, self._after
            self._events.append(Done())

    def _name(self) -> None:
        self._calls.append([self._until('"')[0]])
        self._events.append(CallStart(len(self._calls) - 1, self._calls[-1][0]))
        self._step = self._between_parameters

    def _between_parameters(self) -> None:
        first = len(self._calls[-1]) == 1
        if self._until(_PARAMETER, _CLOSE)[1] == _PARAMETER:
            self._argument("{" if first else ", ")
            self._step = self._parameter_name
        else:
            self._argument("{}" if first else "}")
            self._events.append(CallEnd(len(self._calls) - 1))
            self._step = self._between_calls

    def _parameter_name(self) -> None:
        """Pass the name on with its quotation marks, up to a space behind one of them."""
        name, space, _ = self._cursor.text[self._cursor.at :].partition(" ")
        quoted = (self._calls[-1][-1] + name).endswith('"')
        self._argument(self._cursor.take(self._cursor.at + len(name)))
        if space:
            self._cursor.take(self._cursor.at + 1)
            self._argument(": " if quoted else " ")
            self._step = self._kind if quoted else self._parameter_name

    def _kind(self) -> None:
        is_string = self._until('string="true">', 'string="false">')[1] == 'string="true">'
        self._argument('"' if is_string else "")
        self._step = self._string if is_string else self._other

    def _string(self) -> None:
        self._value(_inside_quotes, '"')

    def _other(self) -> None:
        self._value(str, "")

    def _value(self, spell: Callable[[str], str], end: str) -> None:
        cursor = self._cursor
        at = cursor.text.find(_CLOSE, cursor.at)
        self._argument(spell(cursor.take(at if at >= 0 else cursor.possible_start(_CLOSE))))
        if at < 0:
            raise NeedMore
        cursor.take(at + len(_CLOSE))
        self._argument(end)
        self._step = self._between_parameters

    def _after(self) -> None:
        self._cursor.take(len(self._cursor.text))


def _inside_quotes(text: str) -> str:
    return rawjson.quote(text)[1:-1]


_JSON_STARTS = ("```json\n", "```\n", "{", "[")
_JSON_END = "\n```"


class JsonText:
    """Filter of an answer in format ``json_object``: one space instead of the text before and after the JSON.

    The official parser writes one for each piece of a stream; here the result does not depend on how it was cut. After
    JSON without a fence everything is passed on.
    """

    def __init__(self) -> None:
        self._cursor = Cursor()
        self._fenced: bool | None = None  # None: before the JSON, or after it
        self._ended = False
        self._spaced = False

    def feed(self, text: str) -> str:
        """Return what is known to belong to the filtered answer."""
        self._cursor.append(text)
        return self._advance(final=False)

    def finish(self) -> str:
        """Return the rest at the end of the answer."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        cursor, out = self._cursor, ""
        if self._fenced is None and not self._ended:
            starts = [(at, start) for start in _JSON_STARTS if (at := cursor.text.find(start, cursor.at)) >= 0]
            at, start = min(starts, default=(len(cursor.text) if final else cursor.possible_start(*_JSON_STARTS), ""))
            before = len(cursor.text[:at].rstrip("\n")) if start or not final else at
            out = self._space(cursor.take(max(cursor.at, before)))
            if start:
                self._fenced = len(start) > 1
                cursor.take(at + (len(start) if self._fenced else 0))
        if self._fenced is not None:
            end = cursor.text.find(_JSON_END, cursor.at) if self._fenced else -1
            if end >= 0:
                out += cursor.take(end)
                cursor.take(end + len(_JSON_END))
                self._fenced, self._ended, self._spaced = None, True, False
            else:
                all_known = final or not self._fenced
                out += cursor.take(len(cursor.text) if all_known else cursor.possible_start(_JSON_END))
        if self._ended:
            out += self._space(cursor.take(len(cursor.text)))
        return out

    def _space(self, text: str) -> str:
        """Return a space for the first text before or after the JSON."""
        first = bool(text) and not self._spaced
        self._spaced = self._spaced or first
        return " " if first else ""
