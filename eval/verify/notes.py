"""Answer the questions of pack ``long`` from what they show, by reading the notes line by line."""

from __future__ import annotations

import re

from ..packs import Question
from .unverified import Unverified

_NOTE = re.compile(
    r"(?P<who>\w+ \w+) (?:has(?: moved to)? locker (?P<locker>[0-9]{5})|writes letters to (?P<other>\w+ \w+))\."
)
_ASKED = re.compile(
    r"Which locker does (?:the person to whom )?(?P<who>\w+ \w+)(?P<hop> writes letters)? have at the end of these "
    r"notes\? Give its number\."
)


def check(question: Question) -> None:
    """Answer the question; Unverified if the key is another answer, or if somebody writes twice."""
    *notes, asked = question.question.split("\n")
    locker: dict[str, str] = {}
    friend: dict[str, str] = {}
    for note in notes:
        if found := _NOTE.fullmatch(note):
            if found["other"] is None:
                locker[found["who"]] = found["locker"]
            elif friend.setdefault(found["who"], found["other"]) != found["other"]:
                raise Unverified(f"{question.id}: {found['who']} writes to two people")
    wanted = _ASKED.fullmatch(asked)
    if wanted is None:
        raise Unverified(f"{question.id}: what is asked was not understood")
    who = friend.get(wanted["who"], "") if wanted["hop"] else wanted["who"]
    if locker.get(who) != question.answer:
        raise Unverified(f"{question.id}: the notes say {locker.get(who)}, {question.answer} is the key")
