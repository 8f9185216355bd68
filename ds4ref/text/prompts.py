"""The prompt of a conversation, in the form that a model was trained on.

    prompt_of(tokenizer.profile, messages, schemas, mode)      a ``Rendered``
    encode_chat_prompt(tokenizer, system, text, mode)          a first turn as token ids for the command line

``profile`` is one of ``official.PROFILES``; None is May's form (``chat.render``), which ds4 uses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import TextError
from . import chat, official, protocol
from .chat import MAX_PREFIX, Message, answer_start, chat_start
from .official import Chat, Profile, Tool
from .rendered import Rendered

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


def prompt_of(
    profile: Profile | None, messages: Sequence[Message], schemas: Sequence[str] = (), mode: str = "high", *,
    in_place: bool = False, answer: bool = False, form: str = "",
) -> Rendered:  # fmt: skip
    """Render a conversation (``chat.render``).

    A profile other than May's decides itself where system texts stand, always starts an answer, and shows the answer's
    format ``form`` (a JSON schema as text, "{}" for any object).
    """
    if profile is None:
        return chat.render(messages, schemas, mode, in_place=in_place, answer=answer)
    asked = Chat(
        [*_messages(messages, profile)], [tool_of(schema) for schema in schemas], mode != "none",
        "high" if mode == "none" else mode, format="json_object" if form == "{}" else json.loads(form or "null"),
    )  # fmt: skip
    return official.render(asked, profile)


def tool_of(schema: str) -> Tool:
    """Return a tool from the JSON text of its function, as OpenAI or Anthropic write it."""
    function: dict[str, Any] = official.loads(schema)
    parameters = function.get("parameters") or function.get("input_schema") or {}
    if function.get("strict"):
        with suppress(ValueError):  # what the official API refuses is shown as it came
            parameters = official.strict_schema(parameters)
    return Tool(function.get("name") or "", function.get("description") or "", parameters)


def _messages(messages: Iterable[Message], profile: Profile) -> Iterator[Message]:
    """Yield messages as the official encoder's API hands them on: parts joined by empty lines, results on their own, a
    developer's text as the user's where system texts move to the front, no empty system texts."""
    roles = {"developer": "system" if profile.in_place else "user", "function": "tool"}
    for message in messages:
        role = roles.get(message.role, message.role)
        parts = [replace(part, role=roles.get(part.role, part.role)) for part in message.parts]
        if not profile.in_place and role == "system" and any(part.role == "user" for part in parts):
            role = "user"
        if role != "tool" and any(part.role == "tool" for part in parts):
            yield from _messages(parts, profile)
            continue
        texts = [profile.image if part.role == "image" else part.content
                 for part in parts if part.role in (role, "image")]  # fmt: skip
        message = replace(message, role=role, content="\n\n".join(texts) if texts else message.content, parts=())
        if message.content or role != "system":
            yield message


# --- token by token, for a command line


def encode_chat_prompt(tokenizer: Tokenizer, system: str, prompt: str, mode: str = "high") -> list[int]:
    """Return the token ids of a first turn; each text is encoded on its own as plain text.

    An empty system text adds nothing. The model's own template or profile is used if there is one. For a tokenizer
    without a chat protocol the ids are BOS and the prompt alone, which the model continues.
    """
    if tokenizer.renders:
        messages = [Message("system", system)] * bool(system) + [Message("user", prompt)]
        return encode_messages(tokenizer, messages, mode)
    ids = chat_start(tokenizer)
    if tokenizer.chats:
        ids += [*(tokenizer.encode(MAX_PREFIX) if mode == "max" else ()), *tokenizer.encode(system), tokenizer.user]
    return [*ids, *tokenizer.encode(prompt), *answer_start(tokenizer, mode)]


def encode_messages(tokenizer: Tokenizer, messages: list[Message], mode: str) -> list[int]:
    """Return the token ids of a conversation by the model's own template or profile; without the default system text,
    which nobody wrote, if the template refuses system texts (Gemma 2, early Mistral)."""
    try:
        return prompt_of(tokenizer.profile, messages, (), mode).encode(tokenizer)
    except TextError:
        if messages[0] != Message("system", protocol.DEFAULT_SYSTEM):
            raise
        return prompt_of(tokenizer.profile, messages[1:], (), mode).encode(tokenizer)
