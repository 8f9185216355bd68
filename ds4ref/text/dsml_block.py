"""Parser of one tool call block during generation, from its opener to its end tag (docs/explanation/text.md 4, 5).

``Block.step`` consumes input that can already be decided, from a cursor shared with the message parser, and emits
events. The block ends in one of three ways: closed, a quotation (an opener in the middle of prose), or malformed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from . import rawjson
from .dsml import ToolCall
from .dsml_events import ArgumentsDelta, CallEnd, CallStart, Event, Syntax
from .protocol import DIALECTS, WHITESPACE, Dialect
from .stream import partial_suffix

_MAX_TAG = 1 << 14
_SPACES = re.compile(rf"[{WHITESPACE}]*+")
_ATTRIBUTE = re.compile(rf'[{WHITESPACE}]([^{WHITESPACE}="]+)="([^"]*)"')
_ENTITY = re.compile("&(amp|lt|gt|quot|apos);")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_QUOTE_OR_BACKSLASH = re.compile(r'["\\]')


class NeedMore(Exception):
    """Raised when the next step needs more input."""


class Malformed(Exception):
    """Raised when the block violates the grammar; the message says how."""


class Cursor:
    """Buffered input of a parser.

    Text before index ``at`` is consumed; the current search has covered text up to ``scan`` without a match.
    """

    def __init__(self) -> None:
        self.text, self.at, self.scan = "", 0, 0

    def append(self, chunk: str) -> None:
        """Append input, dropping consumed text."""
        self.text = self.text[self.at :] + chunk
        self.scan, self.at = max(0, self.scan - self.at), 0

    def take(self, end: int) -> str:
        """Consume and return the text up to index ``end``."""
        taken, self.at, self.scan = self.text[self.at : end], end, end
        return taken

    def spaces(self, start: int) -> int:
        """Return the index of the first character at or after ``start`` that is not white space."""
        match = _SPACES.match(self.text, start)
        assert match is not None  # it matches the empty string
        return match.end()

    @property
    def remaining(self) -> int:
        """Return the number of characters not yet consumed."""
        return len(self.text) - self.at

    def possible_start(self, *words: str) -> int:
        """Return the index from which the rest of the text is a proper prefix of one of ``words``, else the end of the
        text."""
        tail = self.text[max(self.at, len(self.text) - max(map(len, words))) :]
        return len(self.text) - max(partial_suffix(tail, word) for word in words)


class Status(Enum):
    """State of a block."""

    OPEN = "open"
    CLOSED = "closed"
    QUOTATION = "quotation"


class Block:
    """The state machine of one block.

    lead   text consumed before: white space and the opener
    raw    list of strings that join to all consumed text
    calls  the finished calls; ``void()`` adds the call being read
    """

    def __init__(self, cursor: Cursor, tags: Dialect, lead: str):
        self.status = Status.OPEN
        self.raw = [lead]
        self.calls: list[ToolCall] = []
        self._cursor, self._tags = cursor, tags
        self._step: Callable[[list[Event]], None] = self._between_invokes
        self._name = ""
        self._fragments: list[str] = []  # arguments of the call being read
        self._first = True  # the innermost open object has no member yet
        self._nested = False  # the parameter being read is a member of another one
        self._member = ""  # comma, name and colon of the parameter being read
        self._value: list[str] = []  # body of a JSON parameter
        self._quoted = self._escaped = False  # inside a JSON string; after its backslash

    def step(self, events: list[Event]) -> None:
        """Take one step, appending to ``events``; raise NeedMore if input is missing, Malformed if this is no block."""
        self._step(events)

    @property
    def state(self) -> Syntax:
        """Return the syntax state at the end of the input so far."""
        pending, step = self._cursor.remaining, self._step
        if self.status is not Status.OPEN:
            return Syntax.OUTSIDE
        if step == self._json_body:
            if self._quoted:
                return Syntax.JSON_STRING
            return Syntax.STRUCTURAL if pending >= 2 else Syntax.JSON_STRUCTURAL
        if step in (self._string_body, self._string_or_nested):
            rest = self._cursor.text[self._cursor.at :].lstrip(WHITESPACE)
            return Syntax.STRUCTURAL if len(rest) >= 2 and rest[0] == "<" else Syntax.STRING_BODY
        return Syntax.STRUCTURAL

    @property
    def missing(self) -> str | None:
        """Return the closing tags that would complete the block; None if a value is open or no tag can complete it."""
        tags = self._tags
        if self._step == self._between_parameters:
            wanted = f"{tags.invoke_close}\n{tags.block_close}"
        elif self._step == self._between_invokes and self.calls:
            wanted = tags.block_close
        else:
            return None
        pending = self._cursor.text[self._cursor.at :].lstrip(WHITESPACE)
        return wanted[len(pending) :] if wanted.startswith(pending) else None

    def void(self) -> tuple[ToolCall, ...]:
        """Return all calls, including the unfinished one."""
        open_call = [ToolCall(self._name, "".join(self._fragments))] if self._fragments else []
        return (*self.calls, *open_call)

    # --- helpers of the steps

    def _take(self, end: int) -> str:
        taken = self._cursor.take(end)
        self.raw.append(taken)
        return taken

    def _emit(self, events: list[Event], fragment: str) -> None:
        if fragment:
            self._fragments.append(fragment)
            events.append(ArgumentsDelta(len(self.calls), fragment))

    def _next(self, *tags: str) -> str:
        """Skip white space and return which of ``tags`` follows, "" if none. Tags without ``>`` must end at a word
        boundary."""
        cursor = self._cursor
        self._take(cursor.spaces(cursor.at))
        for tag in tags:
            if cursor.text.startswith(tag, cursor.at):
                if tag.endswith(">") or self._word_ends(cursor.at + len(tag)):
                    return tag
        longest = max(map(len, tags))
        rest = cursor.text[cursor.at : cursor.at + longest]
        if any(tag.startswith(rest) for tag in tags) and len(rest) == cursor.remaining:
            raise NeedMore
        return ""

    def _word_ends(self, at: int) -> bool:
        after = self._cursor.text[at : at + 1]
        if not after:
            raise NeedMore
        return after in WHITESPACE + ">"

    def _attributes(self) -> dict[str, str]:
        """Consume a tag through its first ``>`` and return its attributes; the first of duplicates wins."""
        cursor = self._cursor
        end = cursor.text.find(">", max(cursor.at, cursor.scan))
        if (end if end >= 0 else len(cursor.text)) - cursor.at > _MAX_TAG:
            raise Malformed(f"a tag of more than {_MAX_TAG} characters")
        if end < 0:
            cursor.scan = len(cursor.text)
            raise NeedMore
        attributes: dict[str, str] = {}
        for name, value in _ATTRIBUTE.findall(self._take(end + 1)):
            attributes.setdefault(name, _ENTITY.sub(lambda match: _ENTITIES[match[1]], value))
        return attributes

    # --- structure

    def _between_invokes(self, events: list[Event]) -> None:
        tags = self._tags
        tag = self._next(tags.block_close, tags.invoke_open)
        if tag == tags.block_close:
            self._take(self._cursor.at + len(tag))
            self.status = Status.CLOSED
        elif tag:
            name = self._attributes().get("name")
            if not name:
                raise Malformed("an invoke tag without a name")
            self._name, self._first = name, True
            events.append(CallStart(len(self.calls), name))
            self._emit(events, "{")
            self._step = self._between_parameters
        elif self.calls:
            raise Malformed("text between two calls")
        else:
            self.status = Status.QUOTATION

    def _between_parameters(self, events: list[Event]) -> None:
        tags = self._tags
        tag = self._next(tags.invoke_close, tags.param_open)
        if tag == tags.invoke_close:
            self._take(self._cursor.at + len(tag))
            self._emit(events, "}")
            events.append(CallEnd(len(self.calls)))
            self.calls.append(ToolCall(self._name, "".join(self._fragments)))
            self._fragments = []
            self._step = self._between_invokes
        elif tag:
            self._open_parameter(events, nested=False)
        else:
            raise Malformed("text between two parameters")

    def _open_parameter(self, events: list[Event], nested: bool) -> None:
        attributes = self._attributes()
        if "name" not in attributes:
            raise Malformed("a parameter tag without a name")
        comma, self._first = "" if self._first else ",", False
        self._nested, self._member = nested, comma + rawjson.quote(attributes["name"]) + ":"
        kind = attributes.get("string")
        if kind is None and not nested:
            self._step = self._string_or_nested
        elif kind in (None, "true"):
            self._open_string(events)
        else:
            self._value, self._quoted, self._escaped = [], False, False
            self._step = self._json_body

    def _close_parameter(self) -> None:
        self._take(self._cursor.at + len(self._tags.param_close))
        self._step = self._between_leaves if self._nested else self._between_parameters

    def _string_or_nested(self, events: list[Event]) -> None:
        """Read a value without ``string`` attribute: an object if it consists of parameters, else a string."""
        cursor, tag = self._cursor, self._tags.param_open
        start = cursor.scan = cursor.spaces(max(cursor.at, cursor.scan))
        if cursor.text.startswith(tag, start):
            if self._word_ends(start + len(tag)):
                self._take(start)
                self._emit(events, self._member + "{")
                self._first = True
                self._step = self._between_leaves
                return
        elif tag.startswith(cursor.text[start : start + len(tag)]):
            raise NeedMore
        cursor.scan = cursor.at
        self._open_string(events)

    def _between_leaves(self, events: list[Event]) -> None:
        tags = self._tags
        tag = self._next(tags.param_open, tags.param_close, tags.invoke_close)
        if tag == tags.param_open:
            self._open_parameter(events, nested=True)
        elif tag:
            if tag == tags.param_close:  # optional
                self._take(self._cursor.at + len(tag))
            self._emit(events, "}")
            self._first = False
            self._step = self._between_parameters
        else:
            raise Malformed("text between two nested parameters")

    # --- values

    def _open_string(self, events: list[Event]) -> None:
        self._emit(events, self._member + '"')
        self._step = self._string_body

    def _string_body(self, events: list[Event]) -> None:
        """Emit text verbatim up to the closing tag; only an escaped closing tag is unescaped."""
        cursor = self._cursor
        pattern, partial = _STRING_ENDS[self._tags]
        match = pattern.search(cursor.text, cursor.at)
        if match is None:
            partial_match = partial.search(cursor.text, cursor.at)
            self._emit(events, _inside_quotes(self._take(partial_match.start() if partial_match else len(cursor.text))))
            raise NeedMore
        self._emit(events, _inside_quotes(self._take(match.start())))
        if match["close"]:
            self._emit(events, '"')
            self._close_parameter()
        else:
            self._take(match.end())
            again = match["again"]
            self._emit(events, _inside_quotes(("&" + again[4:] + "lt;" if again else "<") + match["rest"]))

    def _json_body(self, events: list[Event]) -> None:
        """Buffer a value until its closing tag: only then is it known whether it is JSON."""
        cursor, tag = self._cursor, self._tags.param_close
        end = cursor.text.find(tag, cursor.at)
        if end < 0:
            self._follow_json(self._take(cursor.possible_start(tag)))
            raise NeedMore
        self._follow_json(self._take(end))
        self._emit(events, self._member + json_value("".join(self._value)))
        self._close_parameter()

    def _follow_json(self, text: str) -> None:
        """Buffer ``text``, tracking whether it ends inside a JSON string."""
        self._value.append(text)
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            match = _QUOTE_OR_BACKSLASH.search(text, at)
            if match is None:
                return
            at = match.end()
            if match.group() == '"':
                self._quoted = not self._quoted
            else:
                self._escaped = self._quoted


def _string_ends(tags: Dialect) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for the end (or escaped end) of a string body, and for a prefix of one at the end of the text."""
    close = tags.param_close

    def prefixes(word: str) -> str:
        return "(?:" + re.escape(word[0]) + prefixes(word[1:]) + ")?" if word else ""

    full = rf"(?P<close>{re.escape(close)})|&(?P<again>(?:amp;)*)lt;(?P<rest>{re.escape(close[1:])})"
    escape = rf"&(?:amp;)*(?:{prefixes('amp')}|{prefixes('lt;' + close[1:-1])})"
    return re.compile(full), re.compile(rf"(?:<{prefixes(close[1:-1])}|{escape})\Z")


_STRING_ENDS = {dialect: _string_ends(dialect) for dialect in DIALECTS}


def _inside_quotes(text: str) -> str:
    return rawjson.quote(text)[1:-1]


def json_value(body: str) -> str:
    """Return the body of a ``string="false"`` parameter as compact JSON.

    An empty body becomes null; text after an object or array is ignored; a body that is not JSON becomes a string.
    """
    stripped = body.strip(WHITESPACE)
    if not stripped:
        return "null"
    try:
        end = rawjson.value_end(stripped)
    except ValueError:
        return rawjson.quote(body)
    if end < len(stripped) and stripped[0] not in "[{":
        return rawjson.quote(body)  # a date is not a number with something behind it
    return rawjson.minify(stripped[:end])
