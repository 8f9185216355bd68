"""Streaming parser of generated text: reasoning, visible text and DSML tool calls (docs/explanation/text.md 5).

Feed it pieces of any size; it returns events, and at the end one result. Neither the result nor the events, once
adjacent deltas are joined, depend on how the input was cut. To parse a finished text, feed it at once. The parser also
reports when the next token should be picked greedily (``greedy``) and when decoding can stop (``done``).

Each rule of the grammar is a generator, in which a bare ``yield`` waits for more text. A "block" is a group of tool
calls between an opening and a closing tag.

Differences from ds4, which parses the text a second time at the end, by other rules (the last three follow from
deciding while streaming):

  * Markup inside reasoning is never a call; reasoning that never ends stays reasoning.
  * In visible text, no calls are recognised between ``<think>`` and ``</think>``.
  * A block is recognised only if the request had tools.
  * String values are verbatim; only the escape of their own closing tag is undone. A ``string="false"`` value that is
    not JSON becomes a string instead of making all arguments invalid.
  * Attributes are whole words; a missing ``string`` attribute means "true" everywhere.
  * ``raw_block`` starts with the exact white space between text and block.
  * The earliest opening tag counts, whichever of the spellings it has (``protocol.DIALECTS``).
  * An opening tag that is followed by anything but markup is a quotation: it is text, and the search continues.
  * A malformed or unterminated block is text, including the white space before it; reasoning before it stays reasoning.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator

from . import rawjson
from .dsml import ToolCall
from .dsml_events import ArgumentsDelta, CallStart, Event, Failed, Generated, ReasoningDelta, TextDelta
from .protocol import DIALECTS, THINK_CLOSE, THINK_OPEN, WHITESPACE, Dialect
from .stream import partial_suffix

_OPENERS = {dialect.block_open: dialect for dialect in DIALECTS}
_TURNS = {True: (*_OPENERS, THINK_OPEN), False: tuple(_OPENERS)}
_TURN = {tags: re.compile("|".join(map(re.escape, words))) for tags, words in _TURNS.items()}
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_TAG = 1 << 14
_SPACES = re.compile(rf"[{WHITESPACE}]*+")
_ATTRIBUTE = re.compile(rf'[{WHITESPACE}]([^{WHITESPACE}="]+)="([^"]*)"')
_ENTITY = re.compile("&(amp|lt|gt|quot|apos);")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ESCAPED = re.compile(r"\\.", re.DOTALL)

_Wait = Generator[None, None, None]


class _Malformed(Exception):
    """Raised when a block of calls violates the grammar; the message says how."""


class DsmlParser:
    """Parser of one answer, fed as str, or as UTF-8 bytes cut anywhere (invalid bytes become U+FFFD).

    thinking  whether the prompt ended with ``<think>``, so that the answer starts with reasoning
    tools     whether to recognise tool calls
    tags      whether to recognise think tags; otherwise they are plain text
    """

    def __init__(self, thinking: bool, tools: bool = True, tags: bool = True):
        self._tools, self._tags = tools, tags
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._at = "", 0  # input, and how much of it is consumed
        self._events: list[Event] = []
        self._space: list[str] = []  # white space after text: it may belong to a block
        self._raw: list[str] | None = None  # the open block as far as it is consumed; None outside a block
        self._calls: list[ToolCall] = []
        self._fragments: list[str] = []  # arguments of the call being read
        self._inside = ""  # kind of the parameter value being read: "string", "json", "" outside a value
        self._quoted = False  # inside a quoted string of a JSON value
        self._thinking = thinking
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._trailing: list[str] = []
        self._outcome = Generated(thinking_closed=not thinking)
        self._rules = self._message()
        next(self._rules)

    # --- public interface

    def feed(self, chunk: str | bytes) -> list[Event]:
        """Parse the next piece of text; return the events that are certain by now, whatever follows."""
        if isinstance(chunk, bytes):
            return self._run(self._decoder.decode(chunk))
        return self._run(self._decoder.decode(b"", True) + _SURROGATE.sub("\ufffd", chunk))

    def finish(self) -> list[Event]:
        """End the input and return the remaining events; then ``result`` is complete."""
        events = self._run(self._decoder.decode(b"", True))
        if self._raw is not None:
            self._outcome.unterminated = True
            self._fail("the tool call block is not closed")
        rest = self._take(len(self._text))
        self._reason(rest) if self._thinking else self._show(rest)
        return events

    @property
    def done(self) -> bool:
        """Return whether a block of calls was closed: further text is ignored, so decoding can stop."""
        return self._outcome.complete

    @property
    def in_block(self) -> bool:
        """Return whether the text is inside a block of calls."""
        return self._raw is not None

    @property
    def greedy(self) -> bool:
        """Return whether the next token belongs to the markup of a call rather than to a text value, and so should be
        picked at temperature 0."""
        if self.in_block and self._inside == "string":
            rest = self._text[self._at :].lstrip(WHITESPACE)
            return len(rest) >= 2 and rest[0] == "<"
        return self.in_block and not (self._inside == "json" and self._quoted)

    @property
    def result(self) -> Generated:
        """Return the answer as far as it is parsed; it is final after ``finish``."""
        out = self._outcome
        out.reasoning, out.content = "".join(self._reasoning), "".join(self._content)
        out.trailing = "".join(self._trailing)
        return out

    # --- input and output

    def _run(self, chunk: str) -> list[Event]:
        self._text, self._at, self._events = self._text[self._at :] + chunk, 0, []
        next(self._rules)
        return self._events

    def _take(self, end: int) -> str:
        """Consume and return the text up to index ``end``."""
        taken, self._at = self._text[self._at : end], end
        if self._raw is not None:
            self._raw.append(taken)
        return taken

    def _possible_start(self, *words: str) -> int:
        """Return the index from which the text may be the beginning of one of ``words``: where its rest is a proper
        prefix of one. If there is none, return the end of the text."""
        tail = self._text[max(self._at, len(self._text) - max(map(len, words))) :]
        return len(self._text) - max(partial_suffix(tail, word) for word in words)

    def _after_spaces(self) -> int:
        match = _SPACES.match(self._text, self._at)
        assert match is not None  # it matches the empty string
        return match.end()

    def _show(self, text: str) -> None:
        """Emit visible text, after the white space that was held back before it."""
        text = "".join(self._space) + text
        self._space.clear()
        if text:
            self._content.append(text)
            self._events.append(TextDelta(text))

    def _show_but_space(self, text: str) -> None:
        """Emit visible text, but hold back the white space at its end, which may belong to a block."""
        visible = text.rstrip(WHITESPACE)
        if visible:
            self._show(visible)
        if len(visible) < len(text):
            self._space.append(text[len(visible) :])

    def _reason(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._events.append(ReasoningDelta(text))

    def _emit(self, fragment: str) -> None:
        if fragment:
            self._fragments.append(fragment)
            self._events.append(ArgumentsDelta(len(self._calls), fragment))

    def _fail(self, reason: str) -> None:
        """Give up the open block: it becomes text, its calls do not count, and no other block is recognised."""
        raw, self._raw, self._tools = "".join(self._raw or ()), None, False
        self._outcome.error = reason
        self._events.append(Failed(reason))
        self._show(raw)

    # --- the answer

    def _message(self) -> _Wait:
        yield
        if self._tags:
            while THINK_OPEN.startswith(self._text) and self._text != THINK_OPEN:
                yield
            if self._text.startswith(THINK_OPEN):  # the model starts its reasoning, or repeats the tag of the prompt
                self._take(len(THINK_OPEN))
                self._thinking, self._outcome.thinking_closed = True, False
        while self._thinking:
            end = self._text.find(THINK_CLOSE, self._at)
            self._reason(self._take(end if end >= 0 else self._possible_start(THINK_CLOSE)))
            if end < 0:
                yield
            else:
                self._take(end + len(THINK_CLOSE))
                self._thinking, self._outcome.thinking_closed = False, True
        while not self.done:
            yield from self._visible()
        while True:
            self._trailing.append(self._take(len(self._text)))
            yield

    def _visible(self) -> _Wait:
        """Read visible text up to a block of calls or a think tag, and then that block or the thinking."""
        match = _TURN[self._tags].search(self._text, self._at) if self._tools else None
        if not self._tools:
            self._show(self._take(len(self._text)))
        else:
            end = match.start() if match else self._possible_start(*_TURNS[self._tags])
            self._show_but_space(self._take(end))
        if match is None:
            yield
            return
        tag = self._take(match.end())
        if tag != THINK_OPEN:
            yield from self._block(_OPENERS[tag], tag)
            return
        self._show(tag)
        while (end := self._text.find(THINK_CLOSE, self._at)) < 0:
            self._show(self._take(self._possible_start(THINK_CLOSE)))
            yield
        self._show(self._take(end + len(THINK_CLOSE)))

    def _block(self, tags: Dialect, tag: str) -> _Wait:
        """Read a block of calls after its opening tag ``tag``. It may be complete, or malformed, or not a block at all
        but text that quotes the tag."""
        self._raw = ["".join(self._space) + tag]
        self._space.clear()
        try:
            closed = yield from self._invokes(tags)
        except _Malformed as error:
            self._fail(str(error))
            return
        raw, self._raw = "".join(self._raw), None
        if closed:
            self._outcome.calls, self._outcome.raw_block, self._outcome.complete = tuple(self._calls), raw, True
        else:
            self._show_but_space(raw)

    # --- inside a block

    def _next(self, *tags: str) -> Generator[None, None, str]:
        """Skip white space and return which of ``tags`` follows, without consuming it; "" if none does. A tag given
        without ``>`` must be followed by white space or ``>``."""
        longest = max(map(len, tags))
        while True:
            self._take(self._after_spaces())
            rest = self._text[self._at : self._at + longest + 1]
            for tag in tags:
                if rest.startswith(tag) and (tag.endswith(">") or rest[len(tag) :][:1] in (*WHITESPACE, ">")):
                    return tag
            if not any(tag.startswith(rest) for tag in tags):
                return ""
            yield

    def _attributes(self) -> Generator[None, None, dict[str, str]]:
        """Consume a tag through its ``>`` and return its attributes; the first of duplicates wins."""
        while True:
            end = self._text.find(">", self._at)
            if (end if end >= 0 else len(self._text)) - self._at > _MAX_TAG:
                raise _Malformed(f"a tag of more than {_MAX_TAG} characters")
            if end >= 0:
                break
            yield
        found = reversed(_ATTRIBUTE.findall(self._take(end + 1)))
        return {name: _ENTITY.sub(lambda match: _ENTITIES[match[1]], value) for name, value in found}

    def _invokes(self, tags: Dialect) -> Generator[None, None, bool]:
        """Read calls up to the end of the block and return True; return False if anything but a call or the end comes
        first."""
        while True:
            tag = yield from self._next(tags.block_close, tags.invoke_open)
            if tag == tags.block_close:
                self._take(self._at + len(tag))
                return True
            if not tag and self._calls:
                raise _Malformed("text between two calls")
            if not tag:
                return False
            name = (yield from self._attributes()).get("name")
            if not name:
                raise _Malformed("an invoke tag without a name")
            self._fragments = []
            self._events.append(CallStart(len(self._calls), name))
            self._emit("{")
            yield from self._parameters(tags)
            self._emit("}")
            self._calls.append(ToolCall(name, "".join(self._fragments)))

    def _parameters(self, tags: Dialect) -> _Wait:
        comma = ""
        while True:
            tag = yield from self._next(tags.invoke_close, tags.param_open)
            if tag == tags.invoke_close:
                self._take(self._at + len(tag))
                return
            if not tag:
                raise _Malformed("text between two parameters")
            yield from self._parameter(tags, comma, nested=False)
            comma = ","

    def _leaves(self, tags: Dialect) -> _Wait:
        """Read the parameters nested inside another parameter, whose closing tag is optional."""
        comma = ""
        while (tag := (yield from self._next(tags.param_open, tags.param_close, tags.invoke_close))) == tags.param_open:
            yield from self._parameter(tags, comma, nested=True)
            comma = ","
        if not tag:
            raise _Malformed("text between two nested parameters")
        if tag == tags.param_close:
            self._take(self._at + len(tag))

    def _parameter(self, tags: Dialect, comma: str, nested: bool) -> _Wait:
        attributes = yield from self._attributes()
        if "name" not in attributes:
            raise _Malformed("a parameter tag without a name")
        member, kind = comma + rawjson.quote(attributes["name"]) + ":", attributes.get("string")
        if kind is not None and kind != "true":
            value = yield from self._json(tags.param_close)
            self._emit(member + json_value(value))
        elif kind is None and not nested and (yield from self._has_leaves(tags.param_open)):
            self._emit(member + "{")
            yield from self._leaves(tags)
            self._emit("}")
        else:
            self._emit(member + '"')
            yield from self._string(tags)
            self._emit('"')

    def _has_leaves(self, tag: str) -> Generator[None, None, bool]:
        """Return whether a value without ``string`` attribute is an object, that is, begins with a nested parameter."""
        self._inside = "string"
        while True:
            start = self._after_spaces()
            rest = self._text[start : start + len(tag) + 1]
            if not tag.startswith(rest):
                break
            yield
        if not rest.startswith(tag) or rest[-1] not in WHITESPACE + ">":
            return False
        self._take(start)
        self._inside = ""
        return True

    def _string(self, tags: Dialect) -> _Wait:
        """Emit a string value verbatim up to its closing tag, which is consumed; an escaped closing tag is
        unescaped."""
        self._inside = "string"
        pattern, partial = _STRING_ENDS[tags]
        while True:
            match = pattern.search(self._text, self._at)
            if match is None:
                begun = partial.search(self._text, self._at)
                self._emit(_inside_quotes(self._take(begun.start() if begun else len(self._text))))
                yield
                continue
            self._emit(_inside_quotes(self._take(match.start())))
            self._take(match.end())
            if match["close"]:
                self._inside = ""
                return
            again = match["again"]
            self._emit(_inside_quotes(("&" + again[4:] + "lt;" if again else "<") + match["rest"]))

    def _json(self, tag: str) -> Generator[None, None, str]:
        """Return the text of a ``string="false"`` value up to the closing tag ``tag``, which is consumed.

        Nothing is emitted before: only at the end is it known whether the value is JSON.
        """
        self._inside, self._quoted = "json", False
        value: list[str] = []
        escape = ""
        while (end := self._text.find(tag, self._at)) < 0:
            value.append(self._take(self._possible_start(tag)))
            plain = _ESCAPED.sub("", escape + value[-1])
            escape = "\\" * plain.endswith("\\")
            self._quoted ^= plain.count('"') % 2 == 1
            yield
        value.append(self._take(end))
        self._take(end + len(tag))
        self._inside = ""
        return "".join(value)


def parse(text: str | bytes, thinking: bool, tools: bool = True) -> Generated:
    """Parse a finished text; the other parameters are those of ``DsmlParser``."""
    parser = DsmlParser(thinking, tools)
    parser.feed(text)
    parser.finish()
    return parser.result


def _string_ends(tags: Dialect) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return two patterns: the closing tag of a string value, plain or escaped; and the beginning of one at the end of
    the text, which may be completed by more text."""
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
        return rawjson.quote(body)  # a date such as 2026-07-31 is not the number 2026 with trailing text
    return rawjson.minify(stripped[:end])
