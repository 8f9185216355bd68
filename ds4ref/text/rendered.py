"""A rendered prompt that records which of its text may contain control tokens.

ds4's server renders one string and then recognises control strings anywhere in it, even if a user, a file or a tool
wrote them. Here a prompt is a list of parts, and each part says which control strings become tokens in it: only those
that the chat format itself inserted. The text is the same as ds4's, but injected control strings stay text
(docs/explanation/text.md 2).

    prompt.text                                 the string that ds4 would render
    prompt.encode(tokenizer)                    safe
    tokenizer.encode_rendered(prompt.text)      ds4's way; equal unless some message contains a control string
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from . import protocol

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

ALL = re.compile("|".join(map(re.escape, (*protocol.SPECIALS, *protocol.LATER))))
MARKER = re.compile(re.escape(protocol.DSML))


class TextPart(NamedTuple):
    """A piece of a prompt. ``control`` matches the control strings that become tokens in it: None, only the DSML marker
    (``MARKER``), or ``ALL``."""

    text: str
    control: re.Pattern[str] | None


class Conversation(NamedTuple):
    """The conversation that a prompt was rendered from, kept for models that render it with their own chat template.

    messages  messages as dicts in the OpenAI API's form
    tools     JSON text of each tool's function
    mode      thinking mode
    answer    whether the prompt ends with the start of an answer; a last message that is a ``prefix`` stays open
    """

    messages: list[dict[str, Any]]
    tools: list[str]
    mode: str
    answer: bool


class Rendered:
    """A prompt as a list of parts. Text between two control tokens is encoded as one, even across parts."""

    conversation: Conversation | None = None

    def __init__(self) -> None:
        self.parts: list[TextPart] = []

    def plain(self, text: str) -> Rendered:
        """Append text from a user, file or tool: control strings in it stay text."""
        return self._add(text, None)

    def protocol(self, text: str) -> Rendered:
        """Append text of the chat format itself: control strings in it become control tokens."""
        return self._add(text, ALL)

    def markup(self, text: str) -> Rendered:
        """Append a DSML block as the model wrote it: only the DSML marker becomes a token."""
        return self._add(text, MARKER)

    def extend(self, parts: list[TextPart]) -> Rendered:
        """Append parts that were rendered elsewhere."""
        self.parts += parts
        return self

    def _add(self, text: str, control: re.Pattern[str] | None) -> Rendered:
        if text:
            self.parts.append(TextPart(text, control))
        return self

    @property
    def text(self) -> str:
        """Return the whole text of the prompt."""
        return "".join(part.text for part in self.parts)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Return the token ids of the prompt, by the tokenizer's own chat template if there is one and the prompt has a
        ``conversation``.
        """
        if tokenizer.template is not None and self.conversation is not None:
            return _by_template(self.conversation, tokenizer)
        ids: list[int] = []
        pending: list[str] = []
        for text, control in self.parts:
            at = 0
            for match in control.finditer(text) if control else ():
                pending.append(text[at : match.start()])
                ids += tokenizer.encode("".join(pending))
                control_id = tokenizer.special_id(match.group())
                if control_id >= 0:  # a vocabulary without a chat format lacks most control tokens
                    ids.append(control_id)
                pending, at = [], match.end()
            pending.append(text[at:])
        return ids + tokenizer.encode("".join(pending))


def _by_template(conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
    """Encode a conversation with the model's own chat template."""
    tools = [{"type": "function", "function": json.loads(text)} for text in conversation.tools]
    ids: list[int] = tokenizer.chat(  # type: ignore[attr-defined]
        conversation.messages, tools=tools or None, answer=conversation.answer, thinking=conversation.mode
    )
    return ids
