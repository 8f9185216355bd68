"""Streaming parser of generated text: reasoning, visible text and tool calls (text.md 5).

One state machine serves every consumer. Feed it pieces of any size; it returns events, and at the end one result.
Neither the result nor the events, once neighbouring deltas are joined, depend on how the input was cut. To parse a
finished text, feed it at once. The parser also tells when to decode greedily (``state``) and when to stop (``done``).

Differences from ds4, which parses a second time at the end and by other rules (the last three follow from deciding
while streaming):

  * Markup inside reasoning is never a call; reasoning that never ends stays reasoning.
  * In text, ``<think>`` suspends the search for calls until ``</think>``.
  * A block is searched for only if the request had tools.
  * String values are verbatim; only the escape of their own closing tag is undone. A ``string="false"`` value that is
    not JSON becomes a string instead of spoiling all arguments.
  * Attributes are whole words; a missing ``string`` attribute means "true" everywhere.
  * ``raw_block`` starts with the exact white space between text and block.
  * The earliest opener counts, whatever its dialect.
  * An opener followed by anything but markup is a quotation: it is text, and the search continues.
  * A malformed or unterminated block is text, its leading white space included; reasoning before it stays reasoning.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

from .dsml_block import Block, Cursor, Malformed, NeedMore, Status
from .dsml_events import Done, Event, Failed, Generated, ReasoningDelta, Syntax, TextDelta
from .protocol import DIALECTS, THINK_CLOSE, THINK_OPEN, WHITESPACE

_OPENERS = {dialect.block_open: dialect for dialect in DIALECTS}
_TURNS = {True: (*_OPENERS, THINK_OPEN), False: tuple(_OPENERS)}
_TURN = {tags: re.compile("|".join(map(re.escape, words))) for tags, words in _TURNS.items()}
_SURROGATE = re.compile("[\ud800-\udfff]")


class DsmlParser:
    """Parser of one answer, fed as str, or as UTF-8 bytes cut anywhere (invalid bytes become U+FFFD).

    thinking  the prompt ended in ``<think>``
    tools     search for tool calls
    tags      recognise think tags; without it they are plain text
    """

    def __init__(self, thinking: bool, tools: bool = True, tags: bool = True):
        self._thinking, self._tools, self._tags = thinking, tools, tags
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cursor = Cursor()
        self._step: Callable[[], None] = self._begin if tags else self._in_text
        self._events: list[Event] = []
        self._space: list[str] = []  # white space after text: it may belong to a block
        self._block: Block | None = None
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._trailing: list[str] = []
        self._outcome = Generated(thinking_closed=not thinking)

    # --- outside view

    def feed(self, chunk: str | bytes) -> list[Event]:
        """Feed text and return the events that are now certain."""
        if isinstance(chunk, bytes):
            return self._run(self._decoder.decode(chunk))
        return self._run(self._decoder.decode(b"", True) + _SURROGATE.sub("\ufffd", chunk))

    def finish(self) -> list[Event]:
        """End the input and return the remaining events; then ``result`` is complete."""
        events = self._run(self._decoder.decode(b"", True))
        if self._block is not None:
            self._outcome.unterminated = True
            self._fail("the tool call block is not closed")
        rest = self._cursor.take(len(self._cursor.text))
        if self._step == self._in_reasoning or (self._step == self._begin and self._thinking):
            self._emit_reasoning(rest)
        else:
            self._emit_text(rest)
        return events

    @property
    def done(self) -> bool:
        """Return whether a block is closed: further text is ignored, so decoding can stop."""
        return self._outcome.complete

    @property
    def state(self) -> Syntax:
        """Return the syntax state at the end of the text so far, one of ds4's five (docs/explanation/text.md 5)."""
        return Syntax.OUTSIDE if self._block is None else self._block.state

    @property
    def missing(self) -> str | None:
        """Return the closing tags that would complete the open block; None if tags cannot complete it or no block is
        open."""
        return None if self._block is None else self._block.missing

    @property
    def result(self) -> Generated:
        """Return the parsed answer, which is final after ``finish``."""
        out = self._outcome
        out.reasoning, out.content = "".join(self._reasoning), "".join(self._content)
        out.trailing = "".join(self._trailing)
        return out

    # --- the machine

    def _run(self, chunk: str) -> list[Event]:
        self._cursor.append(chunk)
        self._events = []
        try:
            while self._cursor.remaining:
                self._step()
        except NeedMore:
            pass
        return self._events

    def _emit_text(self, text: str) -> None:
        """Emit text after the white space that was held back."""
        text = "".join(self._space) + text
        self._space.clear()
        if text:
            self._content.append(text)
            self._events.append(TextDelta(text))

    def _emit_reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._events.append(ReasoningDelta(text))

    def _begin(self) -> None:
        """Skip one leading think tag, which also opens reasoning."""
        cursor = self._cursor
        if cursor.text.startswith(THINK_OPEN):
            cursor.take(len(THINK_OPEN))
            self._outcome.thinking_closed = False
            self._step = self._in_reasoning
        elif THINK_OPEN.startswith(cursor.text):
            raise NeedMore
        else:
            self._step = self._in_reasoning if self._thinking else self._in_text

    def _in_reasoning(self) -> None:
        cursor = self._cursor
        end = cursor.text.find(THINK_CLOSE, cursor.at)
        self._emit_reasoning(cursor.take(end if end >= 0 else cursor.possible_start(THINK_CLOSE)))
        if end < 0:
            raise NeedMore
        cursor.take(end + len(THINK_CLOSE))
        self._outcome.thinking_closed = True
        self._step = self._in_text

    def _in_text(self) -> None:
        cursor = self._cursor
        if not self._tools:
            self._emit_text(cursor.take(len(cursor.text)))
            return
        match = _TURN[self._tags].search(cursor.text, cursor.at)
        text = cursor.take(match.start() if match else cursor.possible_start(*_TURNS[self._tags]))
        visible = text.rstrip(WHITESPACE)
        if visible:
            self._emit_text(visible)
        if len(visible) < len(text):
            self._space.append(text[len(visible) :])
        if match is None:
            raise NeedMore
        tag = cursor.take(match.end())
        if tag == THINK_OPEN:
            self._emit_text(tag)
            self._step = self._in_quoted_thinking
        else:
            self._block = Block(cursor, _OPENERS[tag], "".join(self._space) + tag)
            self._space.clear()
            self._step = self._in_block

    def _in_quoted_thinking(self) -> None:
        """After ``<think>`` in visible text: everything up to ``</think>`` is text, without calls."""
        cursor = self._cursor
        end = cursor.text.find(THINK_CLOSE, cursor.at)
        self._emit_text(cursor.take(end + len(THINK_CLOSE) if end >= 0 else cursor.possible_start(THINK_CLOSE)))
        if end < 0:
            raise NeedMore
        self._step = self._in_text

    def _in_block(self) -> None:
        block = self._block
        assert block is not None
        try:
            block.step(self._events)
        except Malformed as error:
            self._fail(str(error))
        if block.status is Status.CLOSED:
            out = self._outcome
            out.calls, out.raw_block, out.complete = tuple(block.calls), "".join(block.raw), True
            self._events.append(Done())
            self._block, self._step = None, self._after_block
        elif block.status is Status.QUOTATION:
            raw = "".join(block.raw)
            visible = raw.rstrip(WHITESPACE)
            self._emit_text(visible)
            self._space.append(raw[len(visible) :])
            self._block, self._step = None, self._in_text

    def _after_block(self) -> None:
        self._trailing.append(self._cursor.take(len(self._cursor.text)))

    def _fail(self, reason: str) -> None:
        """Give up the block: it becomes text, its calls are void, and no further block is looked for."""
        assert self._block is not None
        self._outcome.error, self._outcome.void_calls = reason, self._block.void()
        self._events.append(Failed(reason))
        self._emit_text("".join(self._block.raw))
        self._block, self._tools, self._step = None, False, self._in_text


def parse(text: str | bytes, thinking: bool, tools: bool = True) -> Generated:
    """Parse a finished text; arguments are those of ``DsmlParser``."""
    parser = DsmlParser(thinking, tools)
    parser.feed(text)
    parser.finish()
    return parser.result
