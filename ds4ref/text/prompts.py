"""Renders the prompt of a conversation in the chat format that a model was trained on.

    prompt_of(tokenizer.profile, messages, schemas, mode)      a ``Rendered``
    encode_chat_prompt(tokenizer, system, text, mode)          a first turn as token ids for the command line

``profile`` is one of ``official.PROFILES``; None means the format of May 2026 (``chat.render``), which ds4 uses.
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
    """Render a conversation in the format ``profile``.

    schemas   tool schemas as JSON text
    mode      thinking mode
    in_place  as in ``chat.render``; with a profile, that decides where system messages go
    answer    as in ``chat.render``; with a profile, an answer is always started
    form      format of the answer, which only prompts of a profile mention: a JSON schema as text, "{}" for any object,
              "" for free text
    """
    if profile is None:
        return chat.render(messages, schemas, mode, in_place=in_place, answer=answer)
    asked = Chat(
        [*_messages(messages, profile)], [tool_of(schema) for schema in schemas], mode != "none",
        "high" if mode == "none" else mode, format="json_object" if form == "{}" else json.loads(form or "null"),
    )  # fmt: skip
    return official.render(asked, profile)


def tool_of(schema: str) -> Tool:
    """Return a tool from the JSON text of its function, in the form of OpenAI's or Anthropic's API."""
    try:
        function: dict[str, Any] = official.loads(schema)
    except ValueError:  # numbers out of range or lone surrogates, which DeepSeek's API would refuse
        function = json.loads(schema)
    parameters = function.get("parameters") or function.get("input_schema") or {}
    if function.get("strict"):
        with suppress(ValueError):  # a schema that DeepSeek's API would refuse is shown unchanged
            parameters = official.strict_schema(parameters)
    return Tool(function.get("name") or "", function.get("description") or "", parameters)


def _messages(messages: Iterable[Message], profile: Profile) -> Iterator[Message]:
    """Yield messages as DeepSeek's API passes them to its encoder.

    Parts of a message are joined by empty lines, tool results become messages of their own, and empty system messages
    are dropped. Developer messages count as the user's in profile 0731, as system messages in v4.1.
    """
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


# --- prompts as token ids


def encode_chat_prompt(tokenizer: Tokenizer, system: str, prompt: str, mode: str = "high") -> list[int]:
    """Return the token ids of a conversation of a system text and a user's prompt, with the start of the answer.

    Control strings in the texts stay text. An empty system text is left out. The model's own template or profile is
    used if there is one. For a tokenizer without a chat format the ids are those of BOS and the prompt alone, which the
    model continues.
    """
    if tokenizer.renders:
        messages = [Message("system", system)] * bool(system) + [Message("user", prompt)]
        return encode_messages(tokenizer, messages, mode)
    ids = chat_start(tokenizer)
    if tokenizer.chats:
        ids += [*(tokenizer.encode(MAX_PREFIX) if mode == "max" else ()), *tokenizer.encode(system), tokenizer.user]
    return [*ids, *tokenizer.encode(prompt), *answer_start(tokenizer, mode)]


def encode_messages(tokenizer: Tokenizer, messages: list[Message], mode: str) -> list[int]:
    """Return the token ids of a conversation, rendered with the model's own template or profile.

    If the template refuses system messages (as those of Gemma 2 and early Mistral do), the default system text, which
    no user wrote, is left out.
    """
    try:
        return prompt_of(tokenizer.profile, messages, (), mode).encode(tokenizer)
    except TextError:
        if messages[0] != Message("system", protocol.DEFAULT_SYSTEM):
            raise
        return prompt_of(tokenizer.profile, messages[1:], (), mode).encode(tokenizer)
