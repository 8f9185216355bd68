"""Answer the questions of pack ``long`` from what they show, by reading the notes line by line."""

from __future__ import annotations

import re

from ds4ref.eval.packs import Question

_NOTE = re.compile(
    r"(?P<who>\w+ \w+) (?:has(?: moved to)? locker (?P<locker>[0-9]{5})|writes letters to (?P<other>\w+ \w+))\."
)
_ASKED = re.compile(
    r"Which locker does (?:the person to whom )?(?P<who>\w+ \w+)(?P<hop> writes letters)? have at the end of these "
    r"notes\? Give its number\."
)


def answer(question: Question) -> str:
    """Return the locker that the notes say; nobody may write to two people."""
    *notes, asked = question.question.split("\n")
    locker: dict[str, str] = {}
    friend: dict[str, str] = {}
    for note in filter(None, map(_NOTE.fullmatch, notes)):
        if note["other"] is None:
            locker[note["who"]] = note["locker"]
        else:
            assert friend.setdefault(note["who"], note["other"]) == note["other"], f"{note['who']} writes to two people"
    wanted = _ASKED.fullmatch(asked)
    assert wanted is not None, f"{question.id}: what is asked was not understood"
    return locker[friend[wanted["who"]] if wanted["hop"] else wanted["who"]]
