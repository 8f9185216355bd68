"""Tables in C: arrays of structs written out in braces, each element as texts by the names of its fields.

    static const eval_case cases[] = {
        { .source = "AIME2025", .question = "How many " "...", .answer = "70" },     designated, in any order
        { "GPQA Diamond", "rec1", "Physics", "...", "...", {"a", "b"}, "A" },        or in the order of the fields

What is understood is what such tables are written with: designators (``.choice[2] =``, ``[7] =``), literals side by
side, macros without arguments, casts and parentheses around texts, compound literals, choices without braces of their
own. An element with anything else is not read, and says what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .clexer import CError, Source, Token, literal
from .records import Skip

Value = str | dict[int, str]
"""A text, or the texts of an array by their positions. Absent (NULL) ones are left out."""

NULLS = (b"NULL", b"nullptr")
DEEPEST = 8
"""Parentheses around a text; more are nobody's."""


@dataclass(frozen=True)
class Field:
    """Of a struct. ``depth``: 0 a number, 1 a text, 2 an array of texts of ``size`` (None: not known)."""

    name: str
    depth: int = 1
    size: int | None = None


@dataclass(frozen=True)
class Element:
    """One element of a table: the line it begins on, and its fields, or why it cannot be read."""

    line: int
    fields: dict[str, Value] = field(default_factory=dict)
    wrong: Skip | None = None

    @property
    def blank(self) -> bool:
        """Whether it says nothing, as the one that ends a table may."""
        return self.wrong is None and not any(self.fields.values())


# ---------------------------------------------------------------------------------------------------------- tables


def tables(source: Source, wanted: Sequence[Field], needed: Sequence[str]) -> Iterator[list[Element]]:
    """Every array of structs that have the fields ``needed``; what is read are those of ``wanted``. A struct that the
    file does not define is taken to be ``wanted``, if an element that can be read then has what is needed."""
    tokens, ends = source.tokens, _pairs(source.tokens)
    begins = {end: begin for begin, end in ends.items()}
    structs = _structs(source, ends)
    at = 1
    while at < len(tokens):
        if not _is(tokens[at], b"{") or at not in ends or not _is(tokens[at - 1], b"="):
            at += 1
            continue
        kind, dimensions = _declared(tokens, begins, at - 2)
        known = structs.get(kind)
        group = tokens[at : ends[at]]
        fits = any(_is(t, b"{") for t in group[1:]) if known is None else set(needed) <= {f.name for f in known}
        if dimensions == 1 and fits:
            found = list(_elements(source, group, known or wanted, {f.name for f in wanted}))
            if known or any(all(element.fields.get(name) for name in needed) for element in found):
                yield found
        at = ends[at] + 1


def _elements(source: Source, group: Sequence[Token], fields: Sequence[Field], wanted: set[str]) -> Iterator[Element]:
    """The elements of a table, in the order of their positions. ``group`` begins with its brace."""
    placed: dict[int, Element] = {}
    place, line = 0, group[0].line
    for item in _items(group[1:]):
        line = item[0].line if item else line
        try:
            path, value = _designated(item)
            if path and (len(path) > 1 or not isinstance(path[0], int)):
                raise Skip("an element with a designator that is no position", _shown(item))
            place = int(path[0]) if path else place
            placed[place] = Element(line, _element(source, value, fields, wanted, group[0].unsure))
        except Skip as wrong:
            placed[place] = Element(line, wrong=wrong)
        except CError as error:
            placed[place] = Element(line, wrong=Skip(error.reason, f"line {error.line}"))
        place += 1
    for position in sorted(placed):
        yield placed[position]


def _element(
    source: Source, value: Sequence[Token], fields: Sequence[Field], wanted: set[str], around: bytes
) -> dict[str, Value]:
    """The ``wanted`` fields of one struct. ``around`` is the condition under which the whole table stands."""
    group = source.expanded(value)
    unsure = next((token.unsure for token in group if token.unsure != around), b"")
    if unsure:
        raise Skip("depends on a condition that this file does not decide", unsure.decode("utf-8", "replace"))
    found: dict[str, Value] = {}
    names = [f.name for f in fields]
    at, position = 0, None  # where the next value without a designator belongs
    for item in _items(_inside(group)):
        path, tokens = _designated(item)
        if path:
            at, position = _pointed(path, names, item)
        elif at >= len(fields):
            raise Skip("more values than fields", _shown(item))
        of = fields[at]
        if of.depth < 2:
            if of.name in wanted:
                found[of.name] = _text(tokens, of) or ""
            at += 1
        elif position is None and (of.size is None or _is(_uncast(tokens)[0], b"{")):
            if of.name in wanted:
                found[of.name] = _texts(tokens, of)
            at += 1
        else:
            position = position or 0
            held = found.setdefault(of.name, {})
            if of.name in wanted and isinstance(held, dict):
                _place(held, position, _text(tokens, of), of)
            position += 1
            if position == of.size:
                at, position = at + 1, None
    return found


def _pointed(path: Sequence[str | int], names: Sequence[str], item: Sequence[Token]) -> tuple[int, int | None]:
    """The field, and the position in it, that a designator points to."""
    if path[0] not in names:
        raise Skip("a designator that names no field", _shown(item))
    position = path[1] if len(path) > 1 else None
    if len(path) > 2 or isinstance(position, str):
        raise Skip("a designator that is not understood", _shown(item))
    return names.index(str(path[0])), position


# ---------------------------------------------------------------------------------------------------------- values


def _text(tokens: Sequence[Token], of: Field) -> str | None:
    """The text that these tokens are; None for NULL. Skip for anything else."""
    tokens = _uncast(tokens)
    for _ in range(DEEPEST):
        if len(tokens) < 3 or tokens[0].text not in (b"{", b"(") or _pairs(tokens).get(0) != len(tokens) - 1:
            break
        tokens = _uncast(tokens[1:-1])
    if len(tokens) == 1 and (tokens[0].text in NULLS or (_number(tokens) == 0 and of.depth > 0)):
        return None
    if of.depth == 0 and len(tokens) == 1 and tokens[0].kind in ("number", "char"):
        number = _number(tokens)
        return str(number) if number is not None else _decoded(literal(tokens[0]), of)
    if not tokens or any(token.kind != "string" for token in tokens):
        raise Skip(f"{of.name} is not a text", _shown(tokens))
    return _decoded(b"".join(map(literal, tokens)), of)


def _decoded(data: bytes, of: Field) -> str:
    """What C sees of the bytes of a literal; Skip if it is not UTF-8, or not all of it."""
    seen, zero, rest = data.partition(b"\0")
    if rest.strip(b"\0"):
        raise Skip(f"{of.name} goes on after a zero byte, where C takes it to end")
    try:
        return seen.decode()
    except UnicodeDecodeError as error:
        raise Skip(f"{of.name} is not UTF-8", f"byte 0x{seen[error.start]:02x}") from None


def _texts(tokens: Sequence[Token], of: Field) -> dict[int, str]:
    """The texts of an array in braces, or none of NULL."""
    tokens = _uncast(tokens)
    if not _is(tokens[0], b"{"):
        if _text(tokens, of) is not None:
            raise Skip(f"{of.name} is one text, not an array", _shown(tokens))
        return {}
    found: dict[int, str] = {}
    position = 0
    for item in _items(_inside(tokens)):
        path, value = _designated(item)
        if path:
            if len(path) > 1 or not isinstance(path[0], int):
                raise Skip("a designator that is not understood", _shown(item))
            position = path[0]
        _place(found, position, _text(value, of), of)
        position += 1
    return found


def _place(held: dict[int, str], position: int, text: str | None, of: Field) -> None:
    """The last one for a position counts, as in C. NULL is no text, and may stand behind the last one."""
    held.pop(position, None)
    if text is not None:
        if of.size is not None and position >= of.size:
            raise Skip(f"{of.name} has more than {of.size} texts")
        held[position] = text


def _number(tokens: Sequence[Token]) -> int | None:
    """The value of a plain integer, None for anything else."""
    if len(tokens) != 1 or tokens[0].kind != "number":
        return None
    match = re.fullmatch(rb"(?:(0[xX][0-9A-Fa-f]+)|(0[0-7]*)|([1-9][0-9]*))[uUlL]{0,3}", tokens[0].text[:40])
    return None if match is None else int(match[1] or match[2] or match[3], 16 if match[1] else 8 if match[2] else 10)


# --------------------------------------------------------------------------------------------------------- grammar


def _is(token: Token, mark: bytes) -> bool:
    return token.kind == "mark" and token.text == mark


_CLOSES = {b")": b"(", b"]": b"[", b"}": b"{"}


def _pairs(tokens: Sequence[Token]) -> dict[int, int]:
    """Where each bracket that is closed is closed. What does not fit is left over: both branches of an undecided
    condition are there, and may open a block twice."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in (b"(", b"[", b"{"):
            opened.append(at)
        elif wanted := _CLOSES.get(token.text):
            while opened and wanted == b"{" and tokens[opened[-1]].text != b"{":
                opened.pop()
            if opened and tokens[opened[-1]].text == wanted:
                found[opened.pop()] = at
    return found


def _inside(tokens: Sequence[Token]) -> Sequence[Token]:
    """What stands between the braces that hold all of ``tokens``; Skip if they do not."""
    tokens = _uncast(tokens)
    if not tokens or not _is(tokens[0], b"{") or _pairs(tokens).get(0) != len(tokens) - 1:
        raise Skip("not written out in braces", _shown(tokens))
    return tokens[1:-1]


def _items(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """What commas separate on the outermost level, nothing between two of them; nothing follows the last one."""
    depth = begin = 0
    for at, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in (b"(", b"[", b"{"):
            depth += 1
        elif token.text in _CLOSES:
            depth -= 1
        elif token.text == b"," and not depth:
            yield tokens[begin:at]
            begin = at + 1
    if begin < len(tokens):
        yield tokens[begin:]


def _designated(item: Sequence[Token]) -> tuple[list[str | int], Sequence[Token]]:
    """``.name[3] = value``: what comes before the equals sign, and what after it."""
    if not item:
        raise Skip("a value is missing between two commas")
    path: list[str | int] = []
    at = 0
    while at + 1 < len(item) and item[at].text in (b".", b"[") and item[at].kind == "mark":
        if _is(item[at], b"."):
            path.append(item[at + 1].text.decode("utf-8", "replace"))
            at += 2
        else:
            number = _number(item[at + 1 : at + 2])
            if number is None or at + 2 >= len(item) or not _is(item[at + 2], b"]"):
                raise Skip("a designator that is no plain number", _shown(item))
            path.append(number)
            at += 3
    if not path:
        return path, item
    if at + 1 >= len(item) or not _is(item[at], b"="):
        raise Skip("a designator without a value", _shown(item))
    return path, item[at + 1 :]


def _uncast(tokens: Sequence[Token]) -> Sequence[Token]:
    """Without casts, or the type of a compound literal, in front."""
    while len(tokens) > 1 and _is(tokens[0], b"("):
        end = next((i for i, token in enumerate(tokens) if _is(token, b")")), len(tokens))
        kinds = tokens[1:end]
        if end + 1 >= len(tokens) or not kinds or kinds[0].kind != "word":
            break
        if any(t.kind not in ("word", "number") and t.text not in (b"*", b"[", b"]") for t in kinds):
            break
        tokens = tokens[end + 1 :]
    return tokens


def _shown(tokens: Sequence[Token]) -> str:
    return b" ".join(token.text[:40] for token in tokens[:8]).decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------------ declarations


def _declared(tokens: Sequence[Token], begins: dict[int, int], at: int) -> tuple[bytes, int]:
    """Of the declaration whose last token before ``=`` is at ``at``: the name of its type ("" if it has none, or the
    place of a struct without a name), and how many dimensions it has."""
    arrays = 0
    while at in begins and tokens[at].text in (b"]", b")"):
        arrays += tokens[at].text == b"]"
        at = begins[at] - 1
        at -= tokens[at].text == b"__attribute__"
    at -= 1  # the name
    if at in begins and tokens[at].text == b"}":
        return _place_name(begins[at]), arrays
    return (tokens[at].text if at >= 0 and tokens[at].kind == "word" else b""), arrays


def _place_name(brace: int) -> bytes:
    """What a struct without a name is called here; no word of C looks like it."""
    return b"{%d" % brace


def _structs(source: Source, ends: dict[int, int]) -> dict[bytes, list[Field]]:
    """Structs that the file defines, by tag, by the name that a typedef gives, and by place; none inside another."""
    tokens = source.tokens
    found: dict[bytes, list[Field]] = {}
    last = 0
    for begin, end in sorted(ends.items()):
        if begin < last or not _is(tokens[begin], b"{"):
            continue
        tag = begin - 1 if tokens[begin - 1].kind == "word" else -1
        if tag < 0 or b"struct" not in (tokens[tag].text, tokens[tag - 1].text):
            continue
        last, fields = end, list(_fields(source, tokens[begin + 1 : end]))
        found[_place_name(begin)] = fields
        if tokens[tag].text != b"struct":
            found[tokens[tag].text] = fields
        before = tokens[tag - (1 if tokens[tag].text == b"struct" else 2)].text
        if before == b"typedef" and end + 1 < len(tokens):
            found[tokens[end + 1].text] = fields
    return found


def _fields(source: Source, body: Sequence[Token]) -> Iterator[Field]:
    """``const char *source, *id; const char *choice[10]; char answer[32];``"""
    begin = 0
    for at, token in enumerate(body):
        if not _is(token, b";"):
            continue
        for item in _items(body[begin:at]):
            words = [i for i, t in enumerate(item) if t.kind == "word"]
            names = [i for i in words if not any(_is(t, b"[") for t in item[:i])]
            if not names:
                continue
            stars = sum(_is(t, b"*") for t in item[: names[-1]])
            sizes = [i for i in range(names[-1], len(item)) if _is(item[i], b"[")]
            size = _number(source.expanded(item[sizes[0] + 1 : sizes[0] + 2])) if sizes else None
            depth = min(2, stars + len(sizes))
            yield Field(item[names[-1]].text.decode("utf-8", "replace"), depth, size if depth == 2 else None)
        begin = at + 1
