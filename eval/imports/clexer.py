"""The C that tables of texts are written in: tokens, comments, line splices, string literals, simple macros.

Bytes in, tokens out, as the first phases of a compiler make them. Not a preprocessor: ``#include`` is not followed,
macros with arguments are not expanded, and of conditions only constants and ``defined`` of what this file defines are
decided. Tokens that depend on another condition are there and say so (``Token.unsure``), the branches of both outcomes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Token(NamedTuple):
    """kind: "word", "string", "char", "number" or "mark" (one character); ``text`` as it stands; line from 1."""

    kind: str
    text: bytes
    line: int
    unsure: bytes = b""


class CError(Exception):
    """Text that no C compiler takes, with the line."""

    def __init__(self, line: int, reason: str):
        super().__init__(reason)
        self.line, self.reason = line, reason


LARGEST_EXPANSION = 100_000
"""Tokens that macros may add to a group: those of macros can double many times over."""
DEEPEST = 200
"""Conditions, and macros, inside each other."""

Macros = dict[bytes, "tuple[Token, ...] | None"]

_SPLICE = re.compile(rb"\\[ \t]*\r?\n")  # with spaces between, as gcc and clang read it
_SPACE = re.compile(rb"[ \t\r\f\v\n]+")
_STRING = re.compile(rb'(?:u8|[uUL])?"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"')
_CHAR = re.compile(rb"(?:u8|[uUL])?'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*'")
_WORD = re.compile(rb"[A-Za-z_$\x80-\xff][\w$\x80-\xff]*")
_NUMBER = re.compile(rb"\.?[0-9](?:[eEpP][+-]|'\w|[\w.])*")
_PLAIN = re.compile(rb"[^\n/\"']+")
_PATTERNS = (("space", _SPACE), ("string", _STRING), ("char", _CHAR), ("word", _WORD), ("number", _NUMBER))


# ---------------------------------------------------------------------------------------------------------- tokens


@dataclass
class Source:
    """A file taken apart. ``macros`` are those without arguments, None where the file has several of one name."""

    tokens: list[Token] = field(default_factory=list)
    macros: Macros = field(default_factory=dict)

    def expanded(self, group: Sequence[Token]) -> list[Token]:
        """``group`` with its macros replaced; CError if that grows without end."""
        done: list[Token] = []
        todo = [(b"", iter(group))]  # macros that are being replaced, the innermost last, and what is left of each
        line = 0
        for _ in range(len(group) + LARGEST_EXPANSION):
            token = next(todo[-1][1], None)
            if token is None:
                todo.pop()
                if not todo:
                    return done
                continue
            if len(todo) == 1:
                line = token.line
            body = self.macros.get(token.text) if token.kind == "word" else None
            if body is None or any(name == token.text for name, _ in todo):
                done.append(token._replace(line=line))
            elif len(todo) > DEEPEST:
                break
            else:
                todo.append((token.text, iter(body)))
        raise CError(line, "macros that grow without end")


def read(data: bytes) -> Source:
    """The tokens of a file; CError for a comment, a string or a character that is not closed."""
    data, line_of = _spliced(data.removeprefix(b"\xef\xbb\xbf"))
    made, conditions = Source(), _Conditions()
    for kind, text, at in _scan(data, line_of, conditions):
        if kind == "directive":
            _directive(text, line_of(at), made.macros, conditions)
        elif not conditions.off:
            made.tokens.append(Token(kind, text, line_of(at), conditions.unsure))
    return made


def _spliced(data: bytes) -> tuple[bytes, _Lines]:
    """Without backslash and line end; and what tells the line of an offset in what is left."""
    starts = [match.end() for match in re.finditer(rb"\n", data)]
    cuts = [(match.start(), match.end()) for match in _SPLICE.finditer(data)]
    return _SPLICE.sub(b"", data), _Lines(starts, cuts)


class _Lines:
    """Line numbers of offsets in text from which splices were cut."""

    def __init__(self, starts: list[int], cuts: list[tuple[int, int]]):
        self._starts, gone = starts, 0
        self._at, self._gone = [0], [0]
        for begin, end in cuts:
            self._at.append(begin - gone)
            gone += end - begin
            self._gone.append(gone)

    def __call__(self, offset: int) -> int:
        original = offset + self._gone[bisect_right(self._at, offset) - 1]
        return bisect_right(self._starts, original) + 1


def _scan(data: bytes, line_of: _Lines, conditions: _Conditions) -> Iterator[tuple[str, bytes, int]]:
    """(kind, text, offset) of tokens and directives."""
    at, fresh = 0, True  # fresh: nothing but space and comments on this line yet
    while at < len(data):
        if data.startswith((b"//", b"/*"), at):
            at = _after_comment(data, at, line_of)
            continue
        if fresh and data[at] == 0x23:
            text, end = _directive_text(data, at, line_of)
            yield "directive", text, at
            at = end
            continue
        found = next(((kind, match[0]) for kind, pattern in _PATTERNS if (match := pattern.match(data, at))), None)
        if found is None and data[at] in b"\"'" and not conditions.off:
            raise CError(line_of(at), "a string or character that is not closed on its line")
        kind, text = found or ("mark", data[at : at + 1])
        if kind != "space":
            yield kind, text, at
            fresh = False
        elif b"\n" in text:
            fresh = True
        at += len(text)


def _after_comment(data: bytes, at: int, line_of: _Lines) -> int:
    if data[at + 1] == 0x2F:
        end = data.find(b"\n", at)
        return len(data) if end < 0 else end
    end = data.find(b"*/", at + 2)
    if end < 0:
        raise CError(line_of(at), "a comment that is not closed")
    return end + 2


def _directive_text(data: bytes, at: int, line_of: _Lines) -> tuple[bytes, int]:
    """What stands after ``#``, comments replaced by spaces, and where the line ends."""
    parts, at = [], at + 1
    while at < len(data) and data[at] != 0x0A:
        if data.startswith((b"//", b"/*"), at):
            parts.append(b" ")
            at = _after_comment(data, at, line_of)
            continue
        match = _STRING.match(data, at) or _CHAR.match(data, at) or _PLAIN.match(data, at)
        text = match[0] if match else data[at : at + 1]
        parts.append(text)
        at += len(text)
    return b"".join(parts).strip(), at


# ------------------------------------------------------------------------------------------------------ directives


@dataclass
class _Branch:
    """Of one ``#if``: whether it is compiled, and whether one of those so far was; None where this is not decided."""

    compiled: bool | None
    before: bool | None
    condition: bytes


class _Conditions:
    """The ``#if`` that a place is in. ``off``: not compiled. ``unsure``: the conditions that are not decided here."""

    def __init__(self) -> None:
        self._open: list[_Branch] = []
        self.off, self.unsure = False, b""

    @property
    def depth(self) -> int:
        return len(self._open)

    def begin(self, holds: bool | None, text: bytes) -> None:
        self._open.append(_Branch(holds, holds, text))
        self._update()

    def other(self, holds: bool | None, text: bytes) -> None:
        """``#elif``, and ``#else``, which always holds."""
        if not self._open:
            return
        branch = self._open[-1]
        if branch.before or holds is False:
            branch.compiled = False
        else:
            branch.compiled = None if branch.before is None else holds
            branch.before = branch.compiled
        branch.condition += b" " + text
        self._update()

    def end(self) -> None:
        if self._open:
            self._open.pop()
            self._update()

    def _update(self) -> None:
        self.off = any(branch.compiled is False for branch in self._open)
        self.unsure = b"; ".join(branch.condition for branch in self._open if branch.compiled is None)


def _directive(text: bytes, line: int, macros: Macros, conditions: _Conditions) -> None:
    match = _WORD.match(text)
    if match is None:
        return
    name, rest = match[0], text[match.end() :].strip()
    if name in (b"if", b"ifdef", b"ifndef"):
        if conditions.depth == DEEPEST:
            raise CError(line, f"more than {DEEPEST} conditions inside each other")
        conditions.begin(_decided(name, rest, macros), b"#" + text)
    elif name in (b"elif", b"elifdef", b"elifndef"):
        conditions.other(_decided(name[2:], rest, macros), b"#" + text)
    elif name == b"else":
        conditions.other(True, b"#else")
    elif name == b"endif":
        conditions.end()
    elif name == b"define" and not conditions.off and (found := _WORD.match(rest)):
        _define(found[0], rest[found.end() :], line, macros, conditions.unsure)


def _define(name: bytes, body: bytes, line: int, macros: Macros, unsure: bytes) -> None:
    if body.startswith(b"("):
        macros[name] = None  # has arguments
        return
    try:
        scanned = _scan(body, _Lines([], []), _Conditions())
        tokens = tuple(Token(kind if kind != "directive" else "mark", text, line, unsure) for kind, text, _ in scanned)
    except CError:  # matters only where it is used
        macros[name] = None
        return
    known = macros.get(name, tokens)
    same = known is not None and [token.text for token in known] == [token.text for token in tokens]
    macros[name] = tokens if same else None


def _decided(name: bytes, rest: bytes, macros: Macros) -> bool | None:
    """Whether the condition holds; None if this file does not say."""
    if name in (b"ifdef", b"ifndef"):
        return (name == b"ifdef") if rest in macros else None
    if re.fullmatch(rb"[0-9]{1,9}", rest):
        return int(rest) != 0
    match = re.fullmatch(rb"(!?)\s*defined\s*\(?\s*(\w+)\s*\)?", rest)
    return (not match[1]) if match and match[2] in macros else None


# --------------------------------------------------------------------------------------------------------- strings

_ESCAPES = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11, b"e": 27, b"E": 27}
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]+)|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)


def literal(token: Token) -> bytes:
    """The bytes of a string or character literal, without the zero at its end; CError if no compiler takes it.

    A backslash before any other character is dropped, as gcc and clang do (they warn)."""
    prefix, quoted = re.match(rb"\w*", token.text)[0], token.text  # type: ignore[index]
    if prefix not in (b"", b"u8"):
        raise CError(token.line, "a wide string")

    def byte(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, other = match.groups()
        if octal or hexadecimal:
            value = int(octal, 8) if octal else int(hexadecimal[-9:], 16)
            if value > 255 or (hexadecimal and len(hexadecimal.lstrip(b"0")) > 2):
                raise CError(token.line, f"the escape {match[0].decode()} is more than a byte")
            return bytes([value])
        if short or long:
            value = int(short or long, 16)
            if value > 0x10FFFF or 0xD800 <= value < 0xE000:
                raise CError(token.line, f"the escape {match[0].decode()} is no character")
            return chr(value).encode()
        if other in b"xuU":
            raise CError(token.line, f"the escape \\{other.decode()} lacks digits")
        return bytes([_ESCAPES[other]]) if other in _ESCAPES else bytes(other)

    return _ESCAPE.sub(byte, quoted[len(prefix) + 1 : -1])
