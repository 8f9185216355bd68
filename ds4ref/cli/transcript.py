"""A chat's conversation: turns as token ids, saved to and loaded from a file.

The file is JSON with ``messages`` as in OpenAI's API, so that other tools can read it, and with the tokens of each
answer, so that loading it into the same model restores the conversation exactly. A plain list of messages from another
tool can be loaded, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..text.chat import MAX_PREFIX, MODES, Message, answer_start, chat_start, encode_by_template, encode_message

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

FORMAT = "ds4-chat-1"


@dataclass
class Turn:
    """A turn of the conversation.

    user     the user's message
    mode     the thinking mode of the answer
    answer   token ids of the answer without EOS, None before it
    """

    user: str
    mode: str
    answer: list[int] | None = None


class Transcript:
    """A conversation: BOS, Think-Max prefix if any, system text, then turns.

    ``mode`` is the thinking mode of later turns.
    """

    def __init__(self, tok: Tokenizer, system: str, mode: str):
        self.tok, self.system, self.mode = tok, system, mode
        self.turns: list[Turn] = []
        self._encoded: dict[tuple[str, str], list[int]] = {}

    @property
    def thinking(self) -> bool:
        """Whether the next answer will start inside ``<think>``."""
        return self.mode != "none"

    @property
    def ids(self) -> list[int]:
        """Token ids of the conversation, up to the start of the next answer.

        Rendered by the model's own template if it has one. Switching to or from mode "max" changes the beginning, and
        the template may drop parts of past turns; the tokens after such a change have to be evaluated again.
        """
        if self.tok.template is not None:
            return encode_by_template(self.tok, self._messages(), self.mode)
        ids = chat_start(self.tok)
        if self.mode == "max" and self.tok.chats:
            ids += self._encode("plain", MAX_PREFIX)
        ids += self._encode("system", self.system)
        for turn in self.turns:
            ids += [*self._encode("user", turn.user), *answer_start(self.tok, turn.mode)]
            if turn.answer is not None:
                ids += [*turn.answer, self.tok.eos]
        return ids

    def _messages(self) -> list[Message]:
        messages = [Message("system", self.system)] * bool(self.system)
        for turn in self.turns:
            messages.append(Message("user", turn.user))
            if turn.answer is not None:
                reasoning, content = self._split_answer(turn)
                messages.append(Message("assistant", content, reasoning))
        return messages

    def _encode(self, role: str, text: str) -> list[int]:
        """Return the token ids of a text, cached, since every turn renders the conversation again."""
        key = role, text
        if key not in self._encoded:
            ids = self.tok.encode(text) if role == "plain" else encode_message(self.tok, role, text)
            self._encoded[key] = ids
        return self._encoded[key]

    def open_turn(self, text: str) -> None:
        """Append a user message; ``ids`` then ends where its answer starts."""
        self.turns.append(Turn(text, self.mode))

    def close_turn(self, answer: Sequence[int]) -> None:
        """Set the answer of the last turn, including its reasoning (docs/explanation/text.md 3)."""
        self.turns[-1].answer = list(answer)

    def take_back(self) -> Turn:
        """Remove and return the last turn; UsageError if there is none."""
        if not self.turns:
            raise UsageError("nothing has been said yet")
        return self.turns.pop()

    # --- files

    def to_json(self, model: str) -> dict[str, Any]:
        """Return the conversation as JSON values for saving; ``model``: name of the model."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.user, "think": turn.mode})
            reasoning, content = self._split_answer(turn)
            answer = {"role": "assistant", "content": content, "tokens": turn.answer}
            messages.append(answer | ({"reasoning_content": reasoning} if reasoning else {}))
        return {"format": FORMAT, "model": model, "vocab": len(self.tok), "messages": messages}

    def _split_answer(self, turn: Turn) -> tuple[str, str]:
        """Split an answer into reasoning and text."""
        ids, reasoning = turn.answer or [], []
        if self.tok.template is not None and ids[:1] != [self.tok.think_open]:
            return "", self._text(ids)  # such models say themselves when they think
        if ids[:1] == [self.tok.think_open]:
            ids = ids[1:]
        if turn.mode != "none":
            end = ids.index(self.tok.think_close) if self.tok.think_close in ids else len(ids)
            reasoning, ids = ids[:end], ids[end + 1 :]
        return self._text(reasoning), self._text(ids)

    def _text(self, ids: list[int]) -> str:
        return self.tok.decode(ids).decode("utf-8", "replace")

    def loaded(self, text: str) -> Transcript:
        """Return the conversation stored in the text of a file; raises UsageError naming its mistake."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"not JSON: {error}") from None
        messages = data.get("messages") if isinstance(data, dict) else data
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise UsageError("not a conversation: expected a list of messages")
        same = isinstance(data, dict) and data.get("format") == FORMAT and data.get("vocab") == len(self.tok)
        transcript, systems = Transcript(self.tok, "", self.mode), []
        for at, message in enumerate(messages):
            role, content = message.get("role"), message.get("content") or ""
            waiting = bool(transcript.turns) and transcript.turns[-1].answer is None
            if not isinstance(content, str):
                raise UsageError(f"message {at} is not plain text")
            if role in ("system", "developer") and not transcript.turns:
                systems.append(content)
            elif role == "user" and not waiting:
                think = message.get("think")
                transcript.turns.append(Turn(content, think if think in MODES else self.mode))
            elif role == "assistant" and waiting:
                transcript.close_turn(self._answer(message, content, transcript.turns[-1].mode, same))
            else:
                raise UsageError(f"message {at} is out of turn: system text, then user and assistant one by one")
        if transcript.turns and transcript.turns[-1].answer is None:
            raise UsageError("the last message has no answer")
        transcript.system = "\n\n".join(systems)
        return transcript

    def _answer(self, message: dict[str, Any], content: str, mode: str, same: bool) -> list[int]:
        tokens = message.get("tokens")
        if same and isinstance(tokens, list) and all(type(t) is int and 0 <= t < len(self.tok) for t in tokens):
            return tokens
        ids = self.tok.encode(content)
        if mode == "none":
            return ids
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        return [*self.tok.encode(str(reasoning)), self.tok.think_close, *ids]
