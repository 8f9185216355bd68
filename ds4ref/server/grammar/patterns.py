"""Regular expressions of JSON schemas: ``pattern``.

A pattern says what may be found somewhere in a string, in the dialect of ECMA-262; Python's validators read it as one
of Python's. What comes out of here matches the whole string, in the syntax of the library, and only what both dialects
match: ``\\d`` is an ASCII digit, ``\\D`` no digit of any script. What they do not see alike, or what no finite
automaton can tell (look-around, references, word boundaries), is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from . import TooLarge, Unsupported
from .matching import anchored, matches

MOST_LENGTH = 4096
MOST_DEPTH = 40
MOST_SIZE = 20_000
"""Characters of a pattern, nesting of its groups, and characters after its repetitions are written out."""

_UNICODE_DIGIT = r"\p{Nd}"
_UNICODE_WORD = r"\p{L}\p{M}\p{N}\p{Pc}\x{200c}\x{200d}"
_UNICODE_SPACE = r"\s\x{1c}-\x{1f}\x{85}\x{180e}\x{feff}"
_ASCII = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x{20}\x{9}-\x{d}"}
_WIDE = {"d": _UNICODE_DIGIT, "w": _UNICODE_WORD, "s": _UNICODE_SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_DOT = r"[^\x{a}\x{d}\x{2028}\x{2029}]"
_NO_CONTROLS = r"&&[^\x{0}-\x{7}\x{b}\x{e}-\x{1f}\x{7f}]"
"""Classes leave out control characters without a short escape in JSON: the library writes some of them wrongly."""
_ANYTHING = r"(?s:.*)"
_LIKELY = "0a1A -_./" + "".join(map(chr, range(0x21, 0x7F))) + "\n\t\r\u00e9\u0436\u05d0\u3042\u4e2d\ud55c\u20ac"
"""Characters that are tried as members of a set."""


@dataclass(frozen=True)
class _Node:
    """A parsed piece: "set" (``text`` matches one character), "seq", "alt", "rep" (``low`` to ``high``, None: without
    end), "any" (anything at all), and the anchors "bol" and "eol"."""

    kind: str
    text: str = ""
    parts: tuple[_Node, ...] = ()
    low: int = 0
    high: int | None = None


_BOL, _EOL, _ANY = _Node("bol"), _Node("eol"), _Node("any")


@dataclass(frozen=True)
class Pattern:
    """An expression for whole strings: its text for the library, the fewest characters that it matches, and a short
    string that it does, None if none was found."""

    text: str
    least: int
    example: str | None = None


@lru_cache(256)
def search(source: str) -> Pattern:
    """The strings in which ``source`` is found. Unsupported, TooLarge, or Unsupported "pattern" if it is none."""
    tree = _Reader(source).read()
    if _size(tree) > MOST_SIZE:
        raise TooLarge(f"a pattern stands for more than {MOST_SIZE} characters once its repetitions are written out")
    tree = _edge(_edge(tree, 0), -1)
    if _has_anchor(tree):
        raise Unsupported("pattern with an anchor in its middle", why=source[:80])
    text, example = _write(tree), _example(tree)
    return Pattern(text, _least(tree), example if example is not None and matches(anchored(text), example) else None)


class _Reader:
    """Recursive descent over one pattern; the depth is bounded before the stack is."""

    def __init__(self, source: str):
        if len(source) > MOST_LENGTH:
            raise TooLarge(f"a pattern of more than {MOST_LENGTH} characters")
        self.source, self.at, self.depth = source, 0, 0

    def read(self) -> _Node:
        tree = self._alternatives()
        if self.at < len(self.source):
            raise self._bad("an unbalanced parenthesis")
        return tree

    def _bad(self, what: str) -> Unsupported:
        return Unsupported(f"pattern with {what}", why=repr(self.source[:80]))

    def _peek(self, count: int = 1) -> str:
        return self.source[self.at : self.at + count]

    def _take(self, word: str) -> bool:
        if self.source.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def _alternatives(self) -> _Node:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise TooLarge(f"a pattern whose groups nest more than {MOST_DEPTH} deep")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self.depth -= 1
        return branches[0] if len(branches) == 1 else _Node("alt", parts=tuple(branches))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.source) and self._peek() not in "|)":
            atom = self._atom()
            parts.append(self._repeated(atom))
        return parts[0] if len(parts) == 1 else _Node("seq", parts=tuple(parts))

    def _repeated(self, atom: _Node) -> _Node:
        low: int
        high: int | None
        if self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("?"):
            low, high = 0, 1
        elif (counts := self._counts()) is not None:
            low, high = counts
        else:
            return atom
        if atom in (_BOL, _EOL):
            raise self._bad("a repeated anchor")
        if self._take("+"):
            raise self._bad("a possessive quantifier")
        self._take("?")  # lazy or not, the strings are the same
        if self._peek() in ("*", "+") or self._peek() == "?":
            raise self._bad("a quantifier of a quantifier")
        return _Node("rep", parts=(atom,), low=low, high=high)

    def _counts(self) -> tuple[int, int | None] | None:
        """``{n}``, ``{n,}`` or ``{n,m}``; None where the brace is a character."""
        end = self.source.find("}", self.at)
        if self._peek() != "{" or end < 0:
            return None
        low, comma, high = self.source[self.at + 1 : end].partition(",")
        if not low and comma and high.isdigit():
            raise self._bad("a repetition without its lower bound")  # a word to one dialect, a repetition to the other
        if not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None
        if max(len(low), len(high)) > 6 or max(int(low), int(high or 0)) > MOST_SIZE:
            raise TooLarge(f"a repetition of more than {MOST_SIZE} in a pattern")
        counts = int(low), int(high) if high else (None if comma else int(low))
        if counts[1] is not None and counts[1] < counts[0]:
            raise self._bad("a repetition whose bounds are the wrong way round")
        self.at = end + 1
        return counts

    def _atom(self) -> _Node:
        char = self._peek()
        self.at += 1
        if char == "^":
            return _BOL
        if char == "$":
            return _EOL
        if char == ".":
            return _Node("set", _DOT)
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char in "*+?":
            raise self._bad("nothing to repeat")
        return _Node("set", _char(self._code(char)))

    def _code(self, char: str) -> int:
        if "\ud800" <= char <= "\udfff":
            raise self._bad("a lone surrogate")
        return ord(char)

    def _group(self) -> _Node:
        if self._take("?"):
            named = self._take("<") or self._take("P<")
            if named and self._peek() not in ("=", "!"):
                end = self.source.find(">", self.at)
                if end < 0:
                    raise self._bad("a group name without end")
                self.at = end + 1
            elif not named and self._take(":"):
                pass
            elif named or self._peek() in ("=", "!"):
                raise self._bad("look-around")
            elif self._peek() == ">":
                raise self._bad("an atomic group")
            else:
                raise self._bad("inline flags, conditions or references")
        inner = self._alternatives()
        if not self._take(")"):
            raise self._bad("an unbalanced parenthesis")
        return inner

    def _escape(self) -> _Node:
        char = self._peek()
        if char.lower() in ("d", "w", "s") and char:
            self.at += 1
            kind = char.lower()
            return _Node("set", f"[{_ASCII[kind]}]" if char == kind else f"[^{_WIDE[kind]}{_NO_CONTROLS}]")
        if char in ("p", "P"):
            return _Node("set", f"[{self._property()}]")
        return _Node("set", _char(self._escaped_code(False)))

    def _property(self) -> str:
        """``\\p{Name}``: only with the names of general categories, which all dialects that know it share."""
        end = self.source.find("}", self.at)
        name = self.source[self.at + 2 : end]
        if self._peek(2)[1:] != "{" or end < 0 or not (1 <= len(name) <= 2 and name[0] in "LMNPSZC" and name.isalpha()):
            raise self._bad("a character property other than a general category")
        negated = self._peek() == "P"
        self.at = end + 1
        return rf"\{'P' if negated else 'p'}{{{name}}}"

    def _escaped_code(self, in_class: bool) -> int:
        """The character after a backslash."""
        char = self._peek()
        self.at += 1
        if char in _CONTROLS and char:
            return _CONTROLS[char]
        if char == "0" and not self._peek().isdigit():
            return 0
        if char == "x":
            return self._hex(2)
        if char == "u":
            return self._unicode()
        if char == "b" and in_class:
            return 8
        if char in ("b", "B"):
            raise self._bad("a word boundary")
        if char and char in "123456789k":
            raise self._bad("a back-reference")
        if not char or (char.isascii() and char.isalnum()):
            raise self._bad(f"the escape \\{char}")
        return self._code(char)

    def _hex(self, digits: int) -> int:
        found = self._peek(digits)
        if len(found) != digits or any(digit not in "0123456789abcdefABCDEF" for digit in found):
            raise self._bad("an escape without its digits")
        self.at += digits
        return int(found, 16)

    def _unicode(self) -> int:
        code = self._hex(4)
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):
            low = self._hex(4)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        if 0xD800 <= code < 0xE000:
            raise self._bad("a lone surrogate")
        return code

    def _class(self) -> _Node:
        negated = self._take("^")
        if self._peek() == "]":
            raise self._bad("an empty class, or a class that begins with a bracket")
        found = ""
        while not self._take("]"):
            if self.at >= len(self.source):
                raise self._bad("a class without end")
            first = self._class_item(negated)
            if self._peek() == "-" and self._peek(2)[1:] not in ("]", ""):
                self.at += 1
                last = self._class_item(negated)
                if isinstance(first, str) or isinstance(last, str) or last < first:
                    raise self._bad("a range that is none")
                found += f"{_in_class(first)}-{_in_class(last)}"
            else:
                found += first if isinstance(first, str) else _in_class(first)
        return _Node("set", f"[{'^' if negated else ''}{found}{_NO_CONTROLS}]")

    def _class_item(self, negated: bool) -> int | str:
        """A character's code, or the text of a set. What is to be left out is taken in its widest sense."""
        char = self._peek()
        self.at += 1
        if char != "\\":
            if not char:
                raise self._bad("a class without end")
            return self._code(char)
        kind = self._peek()
        if kind in ("p", "P"):
            return self._property()
        if kind.lower() not in ("d", "w", "s") or not kind:
            return self._escaped_code(True)
        self.at += 1
        if kind.islower():
            return (_WIDE if negated else _ASCII)[kind]
        return f"[^{(_ASCII if negated else _WIDE)[kind.lower()]}]"


# --- from "found somewhere" to "all of it"


def _edge(node: _Node, end: int) -> _Node:
    """``node`` with anything in front of it (``end`` 0) or behind it (-1), but where an anchor forbids it."""
    anchor = _BOL if end == 0 else _EOL
    if node == anchor:
        return _Node("seq")
    if node.kind == "alt":
        return _Node("alt", parts=tuple(_edge(part, end) for part in node.parts))
    if node.kind == "seq" and node.parts:
        parts = list(node.parts)
        if parts[end] == anchor:
            del parts[end]
            return _held(_Node("seq", parts=tuple(parts)), end)
        parts[end] = _edge(parts[end], end)
        return _Node("seq", parts=tuple(parts))
    return _Node("seq", parts=(_ANY, node) if end == 0 else (node, _ANY))


def _held(node: _Node, end: int) -> _Node:
    """``node`` where an anchor holds already, without those that say so again."""
    if node == (_BOL if end == 0 else _EOL):
        return _Node("seq")
    if node.kind == "alt":
        return _Node("alt", parts=tuple(_held(part, end) for part in node.parts))
    if node.kind == "seq" and node.parts:
        parts = list(node.parts)
        again = parts[end] == (_BOL if end == 0 else _EOL)
        parts[end] = _held(parts[end], end)
        if again and len(parts) > 1:
            del parts[end]
            return _held(_Node("seq", parts=tuple(parts)), end)
        return _Node("seq", parts=tuple(parts))
    return node


def _has_anchor(node: _Node) -> bool:
    return node in (_BOL, _EOL) or any(map(_has_anchor, node.parts))


def _size(node: _Node) -> int:
    inner = sum(map(_size, node.parts)) + (node.kind == "set")
    return inner * max(1, node.low, node.high or 0) if node.kind == "rep" else inner


def _least(node: _Node) -> int:
    if node.kind == "set":
        return 1
    if node.kind == "rep":
        return node.low * _least(node.parts[0])
    if node.kind == "alt":
        return min(map(_least, node.parts))
    return sum(map(_least, node.parts))


def _example(node: _Node) -> str | None:
    """A short string that ``node`` matches."""
    if node.kind == "set":
        return _member(node.text)
    found = [_example(part) for part in node.parts if node.kind != "rep" or node.low]
    if node.kind == "alt":
        return min((text for text in found if text is not None), key=len, default=None)
    made = "".join(text for text in found if text is not None) * (node.low if node.kind == "rep" else 1)
    return None if None in found else made


@lru_cache(512)
def _member(text: str) -> str | None:
    """A character of a set."""
    return next((char for char in _LIKELY if matches(anchored(text), char)), None)


def _write(node: _Node) -> str:
    if node.kind == "set":
        return node.text
    if node.kind == "any":
        return _ANYTHING
    if node.kind == "alt":
        return f"(?:{'|'.join(map(_write, node.parts))})"
    if node.kind == "seq":
        return "".join(map(_write, node.parts))
    counts = f"{{{node.low},{'' if node.high is None else node.high}}}"
    return f"(?:{_write(node.parts[0])}){counts}"


def _char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else rf"\x{{{code:x}}}"


def _in_class(code: int) -> str:
    return _char(code)
