"""Find the question of a pack that an answer is to; strictly, since the answer to another text is no answer.

The record's question must be the question's text or its whole prompt, to the letter but for white space at the ends,
and the prompt that was sent must hold it. Choices are read from that prompt, by the letters that it shows them under,
so that letters mean what the model saw, in whatever order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from ..packs import EXAM, LETTERS, Question
from ..prompt import user_text
from .sources import Answer

_LETTERED = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+", re.MULTILINE)


class Refused(Exception):
    """Raised for an answer that cannot be judged by the pack."""


class Matcher:
    """Finds questions of ``questions`` by their texts."""

    def __init__(self, questions: Sequence[Question]):
        self.ids = {q.id for q in questions}
        self._by_text: dict[str, list[Question]] = defaultdict(list)
        for q in questions:
            for text in dict.fromkeys((q.question.strip(), user_text(q).strip())):
                self._by_text[text].append(q)

    def find(self, answer: Answer) -> tuple[Question, tuple[int, ...]]:
        """Return the question, and the index of the choice shown at each letter; Refused says why there is none."""
        if answer.refused:
            raise Refused(answer.refused)
        found = next((self._by_text[t.strip()] for t in answer.asked if t.strip() in self._by_text), [])
        if not found:
            raise Refused("the pack's question with this id has another text" if answer.id in self.ids else
                          "the question is not in the pack")  # fmt: skip
        sent = [q for q in found if q.question.strip() in answer.prompt]
        if not sent:
            raise Refused("the prompt does not contain the question")
        if any(q.tools or q.called for q in sent):
            raise Refused("the question is asked with tools, which the log does not show")
        orders = [(q, order) for q in sent if (order := shown(q, answer.prompt)) is not None]
        if not orders:
            raise Refused("the prompt does not show the pack's choices with a letter each")
        own = [entry for entry in orders if entry[0].id == answer.id]
        if len(orders) > 1 and not own:
            raise Refused(f"{len(orders)} questions of the pack have this text, none of them this id")
        return (own or orders)[0]


def shown(question: Question, prompt: str) -> tuple[int, ...] | None:
    """Return the order in which a prompt shows the choices, () for the pack's own or without any; None if it shows
    others or none."""
    if question.kind not in EXAM or not question.choices:
        return ()
    rest = prompt[prompt.rindex(question.question.strip()) + len(question.question.strip()) :]
    marks = list(_LETTERED.finditer(rest))[: len(question.choices)]
    if "".join(mark[1] for mark in marks) != LETTERS[: len(question.choices)]:
        return None
    ends = [*(mark.start() for mark in marks[1:]), len(rest)]
    texts = [rest[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    wanted = [choice.strip() for choice in question.choices]
    last = max((choice for choice in wanted if f"{texts[-1]}\n".startswith(f"{choice}\n")), key=len, default="")
    texts[-1] = last  # what is behind the last choice belongs to the form of the prompt
    if sorted(texts) != sorted(wanted):
        return None
    order = tuple(wanted.index(text) for text in texts)
    return () if order == tuple(range(len(order))) else order
