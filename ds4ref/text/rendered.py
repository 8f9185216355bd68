"""A rendered prompt that remembers where its text came from.

ds4's server renders one string and then recognises control strings anywhere in it, also in what a user, a file or a
tool wrote. Here a prompt is a list of parts, and a part says which control strings may become tokens in it: those that
the protocol put there. The bytes are the same; only injected control strings stay text (docs/text.md 2).

    prompt.text                                 what ds4 would render
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

ALL = re.compile("|".join(map(re.escape, protocol.SPECIALS)))
MARKER = re.compile(re.escape(protocol.DSML))


class Part(NamedTuple):
    """A stretch of text, and the control strings that count in it: None, only the DSML marker, or all."""

    text: str
    control: re.Pattern[str] | None


class Conversation(NamedTuple):
    """What a prompt was rendered from, for models that come with a template of their own: messages and tools in the
    form of the OpenAI protocol (a tool as the JSON text of its function), and the thinking mode."""

    messages: list[dict[str, Any]]
    tools: list[str]
    mode: str


class Rendered:
    """Parts in order. Text between two control tokens is one span for the tokenizer, however many parts it has."""

    conversation: Conversation | None = None

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def plain(self, text: str) -> Rendered:
        """Append text that somebody wrote: nothing in it is control."""
        return self._add(text, None)

    def protocol(self, text: str) -> Rendered:
        """Append text of the protocol itself: control strings in it are tokens."""
        return self._add(text, ALL)

    def markup(self, text: str) -> Rendered:
        """Append a DSML block as the model wrote it: only the DSML marker is a token."""
        return self._add(text, MARKER)

    def extend(self, parts: list[Part]) -> Rendered:
        """Append finished parts."""
        self.parts += parts
        return self

    def _add(self, text: str, control: re.Pattern[str] | None) -> Rendered:
        if text:
            self.parts.append(Part(text, control))
        return self

    @property
    def text(self) -> str:
        """The rendered bytes, as text."""
        return "".join(part.text for part in self.parts)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids; by the tokenizer's own template if it has one and this is a whole conversation."""
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
                if control_id >= 0:  # a vocabulary without a protocol for chats knows beginning and end at most
                    ids.append(control_id)
                pending, at = [], match.end()
            pending.append(text[at:])
        return ids + tokenizer.encode("".join(pending))


def _by_template(found: Conversation, tokenizer: Tokenizer) -> list[int]:
    """Ids of a conversation as the model itself renders it; an answer begins unless the last message is one."""
    tools = [{"type": "function", "function": json.loads(text)} for text in found.tools]
    answer = not found.messages or found.messages[-1]["role"] != "assistant"
    ids: list[int] = tokenizer.chat(  # type: ignore[attr-defined]
        found.messages, tools=tools or None, answer=answer, thinking=found.mode
    )
    return ids
