"""What an answer is worth: right, wrong, ambiguous or missing.

    grade(question, text)    text is what a model put out, its reasoning apart or still in it

Four steps. ``plain`` makes plain text of what is outside of thinking. ``statements`` finds where an answer is stated,
and how expressly; ``values`` reads what is stated there. ``_decide`` lets the last statement of the highest rank count,
unless a later one contradicts it or the text takes it back. Nothing is guessed: two answers, or one that may be cut
off, are "ambiguous", no statement at all is "missing", and ``why`` says which.

Left out on purpose: reckoning (2^5 is not 32), numbers in words, paraphrases of a choice.
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect
from collections.abc import Iterable, Sequence

from ..log import Grade
from ..packs import Question, line_set
from ..prompt import key
from . import plain, values, words
from .statements import FINDERS, LEFT, SAID, Output, Statement, at_clauses, taken_back

_REFUTED, _REOPENED = (re.compile(words.alternatives(table)) for table in (words.REFUTED, words.REOPENED))
_CONFIRMED = re.compile(words.alternatives(words.CONFIRMED))
_BLANK = re.compile(rf"(?:[\W_]|{words.alternatives(words.FILLER)})*+")
_NEXT_TURN = re.compile(r"^(?:question|problem|exercise|human|user|q)(?: ?[0-9]{1,3})?[:.)]", re.MULTILINE)
_UNFINISHED = re.compile(r"[^\W_][ ,'/_+-]*\Z")


def grade(question: Question, text: str, *, order: Sequence[int] = (), reasoning: str = "", finish: str = "") -> Grade:
    """Grade the visible answer ``text``.

    ``order``: which choice stood at each letter. ``reasoning`` is what was thought apart from it; it counts for
    nothing, and is told from an empty output. ``finish``: "length" where the output was cut off; a value that touches
    the cut is ambiguous. Any text will do; time is linear in its length.
    """
    output = _output(question, text, order, finish)
    cut = ", cut off" if finish == "length" else ""
    if not output.text:
        why = "nothing but thinking" if reasoning.strip() or plain.tidy(plain.one_alphabet(text)) else "empty"
        return Grade("missing", "", why + cut)
    found = _decide(output)
    if found is None:
        return Grade("missing", "", "no statement of an answer" + cut)
    value = found.value
    if value.unclear:
        return Grade("ambiguous", ", ".join(value.given), f"{found.how}: {value.unclear}")
    given, right = value.given[0], key(question, order)
    good = values.within(given, line_set(right) or frozenset()) if question.kind == "lines" else given == right
    why = found.how + (f", {value.by}" if value.by else "")
    if question.kind == "choice" and given not in question.letters:
        why += f", none of {question.letters}"
    return Grade("right" if good else "wrong", given, why)


def _output(question: Question, text: str, order: Sequence[int], finish: str) -> Output:
    flat = plain.plain(text)
    shown = tuple(_folded(question.choices[i]) for i in order or range(len(question.choices)))
    cut = finish == "length" and _UNFINISHED.search(plain.one_alphabet(text[-200:])) is not None
    return Output(flat, flat.lower().replace("_", " "), question.kind, shown, cut)


@functools.lru_cache(maxsize=1024)
def _folded(choice: str) -> str:
    return values.fold(plain.plain(choice))


def _decide(output: Output) -> Statement | None:
    """The statement that counts, an unclear one among them, or None."""
    found = _in_order(one for find in FINDERS for one in find(output))
    output, found = _one_answer(output, found)
    if not found:
        return None
    taken, instead = taken_back(output, found[0].value.end)
    found = _in_order([*found, *instead])
    best = max(one.rank for one in found)
    at = max(i for i, one in enumerate(found) if one.rank == best)
    chosen, end = found[at], found[at].value.end
    for later in found[at + 1 :]:
        if later.start < chosen.value.end:
            continue  # a part of it
        if later.value.given == chosen.value.given:
            end = max(end, later.value.end)
        elif later.rank > LEFT and (_any_within(taken, end, later.start) or chosen.value.unclear):
            chosen, end = later, later.value.end
        elif later.rank >= SAID and not later.value.unclear:
            return _unclear([chosen, later], "contradicted by a later statement")
    beside = _beside(
        output, [one for one in found if one.rank == chosen.rank and one.value.end <= chosen.start], chosen, taken
    )
    if len({one.value.given for one in beside}) > 1:
        return _unclear(beside, "several answers, one behind the other")
    if at_clauses(_REFUTED, output.low, end):
        return _unclear([chosen], "taken back, and nothing put in its place")
    reopened = at_clauses(_REOPENED, output.low, end)
    if reopened and not _CONFIRMED.search(output.low, reopened[0].end()):
        return _unclear([chosen], "opened again, and not confirmed")
    if output.cut and not output.text[end:].strip(" .)]}\x03\"'|"):
        return _unclear([chosen], "the output was cut off, perhaps within it")
    return chosen


def _in_order(found: Iterable[Statement]) -> list[Statement]:
    return sorted(found, key=lambda one: (one.start, one.rank))


def _any_within(places: list[int], start: int, stop: int) -> bool:
    return bisect(places, stop) > bisect(places, start - 1)


def _one_answer(output: Output, found: list[Statement]) -> tuple[Output, list[Statement]]:
    """Up to where a model that has answered goes on with a question of its own."""
    said = next((one for one in found if one.rank >= SAID), None)
    turn = _NEXT_TURN.search(output.low, said.value.end) if said else None
    if turn is None:
        return output, found
    cut = output._replace(text=output.text[: turn.start()], low=output.low[: turn.start()])
    return cut, [one for one in found if one.start < turn.start()]


def _beside(output: Output, before: list[Statement], last: Statement, taken: list[int]) -> list[Statement]:
    """``last`` and the statements before it with nothing said between them: not one after the other, but several."""
    found = [last]
    for one in reversed(before):
        start = one.value.end
        apart = found[0].start - start > values.REACH or not _BLANK.fullmatch(output.low, start, found[0].start)
        if apart or _any_within(taken, start, found[0].start):
            break
        found.insert(0, one)
    return found


def _unclear(these: Sequence[Statement], why: str) -> Statement:
    given = tuple(dict.fromkeys(itertools.chain.from_iterable(one.value.given for one in these)))
    return these[-1]._replace(value=these[-1].value._replace(given=given, unclear=why))


def self_test() -> tuple[int, list[str]]:
    """Grade the corpus: how many outputs it holds, and a line for each that is graded otherwise than it should be."""
    from .corpus import failures

    return failures()
