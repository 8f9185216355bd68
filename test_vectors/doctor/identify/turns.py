"""Prompts of several turns with the mistakes that servers make in earlier turns, most of them with as many tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ds4ref.text.protocol import ASSISTANT, THINK_CLOSE, THINK_OPEN, USER
from ds4ref.text.tokenizer import Tokenizer


def mistakes(ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[tuple[str, list[int]]]:
    """Yield (what is wrong, token ids) for a prompt in DeepSeek's form, given as token ids; nothing for another
    form."""
    user, assistant, opening, closing = (tokenizer.encode_rendered(text) for text in
                                         (USER, ASSISTANT, THINK_OPEN, THINK_CLOSE))  # fmt: skip
    users, answers = ([at for at, token in enumerate(ids) if [token] == marker] for marker in (user, assistant))
    if len(users) < 2 or len(answers) < 2 or not users[0] < answers[0] < users[1]:
        return
    earlier = set(answers[:-1])
    tags = {at + 1 for at in earlier if [ids[at + 1]] in (opening, closing)}

    def without(left_out: set[int]) -> list[int]:
        return [token for at, token in enumerate(ids) if at not in left_out]

    def swapped(places: set[int], token: list[int]) -> list[int]:
        return [token[0] if at in places else old for at, old in enumerate(ids)]

    yield "earlier answers follow the user's marker", swapped(earlier, user)
    yield "earlier messages follow the assistant's marker", swapped(set(users[:-1]), assistant)
    yield "earlier answers have no marker", without(earlier)
    yield "earlier answers are not ended by EOS", without({at for at in range(users[-1]) if ids[at] == tokenizer.eos})
    yield "earlier answers are left out", without(set(range(answers[0], users[-1])))
    yield "earlier turns are left out", without(set(range(users[0], users[-1])))
    if tags:
        yield "earlier answers have no thinking tag", without(tags)
        yield "earlier answers begin with <think>", swapped(tags, opening)
        yield "earlier answers begin with </think>", swapped(tags, closing)
