"""The conversation of a chat, and its rendering to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..text.chat import MAX_PREFIX, Message, answer_start, chat_start
from ..text.prompts import encode_messages

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer


@dataclass
class Turn:
    """A turn of the conversation: a message and its answer.

    user     the user's message
    mode     the thinking mode of the answer
    answer   token ids of the answer without EOS, None before there is one
    """

    user: str
    mode: str
    answer: list[int] | None = None


class Transcript:
    """A conversation. As tokens: BOS, the prefix of thinking mode "max" if it is on, system text, then the turns.

    ``mode`` is the thinking mode of later turns.
    """

    def __init__(self, tok: Tokenizer, system: str, mode: str):
        self.tok, self.system, self.mode = tok, system, mode
        self.turns: list[Turn] = []
        self._encoded: dict[str, list[int]] = {}

    @property
    def thinking(self) -> bool:
        """Whether the next answer will start inside ``<think>``."""
        return self.mode != "none"

    @property
    def ids(self) -> list[int]:
        """Token ids of the conversation, up to the start of the next answer.

        They are rendered by the model's own chat template or prompt format if it has one. Switching to or from mode
        "max" changes the beginning, and the template may drop parts of past turns; the tokens after such a change have
        to be evaluated again.
        """
        if self.tok.renders:
            return encode_messages(self.tok, self._messages(), self.mode)
        ids = chat_start(self.tok)
        if self.tok.chats:
            ids += [*(self._encode(MAX_PREFIX) if self.mode == "max" else ()), *self._encode(self.system)]
        for turn in self.turns:
            ids += [self.tok.user] * self.tok.chats + self._encode(turn.user) + answer_start(self.tok, turn.mode)
            if turn.answer is not None:
                ids += [*turn.answer, self.tok.eos]
        return ids

    def _messages(self) -> list[Message]:
        """Return the conversation as messages, each answer split into reasoning and text."""
        messages = [Message("system", self.system)] * bool(self.system)
        for turn in self.turns:
            messages.append(Message("user", turn.user))
            if turn.answer is not None:
                reasoning, content = self._split_answer(turn)
                messages.append(Message("assistant", content, reasoning))
        return messages

    def _encode(self, text: str) -> list[int]:
        """Return the token ids of a text. They are cached, since every turn renders the whole conversation again."""
        if text not in self._encoded:
            self._encoded[text] = self.tok.encode(text)
        return self._encoded[text]

    def open_turn(self, text: str) -> None:
        """Append a message of the user; ``ids`` then ends where the answer to it starts."""
        self.turns.append(Turn(text, self.mode))

    def close_turn(self, answer: Sequence[int]) -> None:
        """Set the answer of the last turn, including its reasoning (docs/explanation/text.md 3)."""
        self.turns[-1].answer = list(answer)

    def take_back(self) -> Turn:
        """Remove and return the last turn; UsageError if there is none."""
        if not self.turns:
            raise UsageError("nothing has been said yet")
        return self.turns.pop()

    def _split_answer(self, turn: Turn) -> tuple[str, str]:
        """Split an answer into reasoning and text."""
        ids, reasoning = turn.answer or [], []
        if self.tok.template is not None and ids[:1] != [self.tok.think_open]:
            return "", self._text(ids)  # these models generate the opening tag themselves if they think
        if ids[:1] == [self.tok.think_open]:
            ids = ids[1:]
        if turn.mode != "none":
            end = ids.index(self.tok.think_close) if self.tok.think_close in ids else len(ids)
            reasoning, ids = ids[:end], ids[end + 1 :]
        return self._text(reasoning), self._text(ids)

    def _text(self, ids: list[int]) -> str:
        return self.tok.decode(ids).decode("utf-8", "replace")
