"""Chat templates of models: Jinja in a sandbox, in a separate process with limits (``limited``).

    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hello"}])

A template is part of an untrusted file: one that fails, or exceeds a limit of time, memory or ``MAX_CHARACTERS`` of
output, raises ``TextError``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TextError
from .limited import SECONDS, LimitedProcess

MAX_SOURCE = 1 << 20
MAX_CHARACTERS = 1 << 24


class ChatTemplate:
    """A chat template. Several threads may use it; they wait for each other.

    source   the Jinja text
    tokens   control tokens that it may insert, by variable name: "bos_token" -> "<s>"
    seconds  processor time allowed for a conversation, before additional time for its size
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None, seconds: float = SECONDS):
        """Raise TextError if ``source`` has more than a million characters; it is compiled by the first ``render``."""
        if len(source) > MAX_SOURCE:
            raise TextError(f"a chat template of {len(source)} characters, at most {MAX_SOURCE} are allowed")
        self.source, self._tokens = source, dict(tokens or {})
        opening = {"do": "template", "template": source, "limit": MAX_CHARACTERS}
        self._process = LimitedProcess("the chat template", opening, size=len(source), seconds=seconds)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None, answer: bool = True,
        **variables: Any,
    ) -> str:  # fmt: skip
        """Render a conversation as text.

        messages   messages as dicts in the OpenAI API's form
        tools      tools in the same form, None for none
        answer     end with the start of the assistant's turn
        variables  further variables of the template

        Raise TextError if the template fails or exceeds a limit.
        """
        values = {
            **self._tokens, **variables, "messages": list(messages), "tools": tools, "add_generation_prompt": answer,
        }  # fmt: skip
        size = len(json.dumps([values["messages"], tools]))
        return str(self._process.ask({"do": "render", "variables": values}, size)["text"])
