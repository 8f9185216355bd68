"""Chat templates of models: Jinja in a sandbox, in a process with limits (``limited``).

    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hello"}])

A template is part of an untrusted file: one that fails or exceeds a limit of time, memory or ``MAX_CHARACTERS`` is a
``TextError``.
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
    """A chat template and the control tokens it may insert; safe for several threads, which wait for each other."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None, seconds: float = SECONDS):
        """Take the Jinja text ``source``; raise TextError if it has more than a million characters."""
        if len(source) > MAX_SOURCE:
            raise TextError(f"a chat template of {len(source)} characters, at most {MAX_SOURCE} are allowed")
        self.source, self._tokens = source, dict(tokens or {})
        opening = {"do": "template", "template": source, "limit": MAX_CHARACTERS}
        self._process = LimitedProcess("the chat template", opening, size=len(source), seconds=seconds)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None, answer: bool = True,
        **variables: Any,
    ) -> str:  # fmt: skip
        """Render a conversation; with ``answer`` the text ends in the start of the assistant's turn.

        Raise TextError if the template fails or exceeds a limit.
        """
        values = {
            **self._tokens, **variables, "messages": list(messages), "tools": tools, "add_generation_prompt": answer,
        }  # fmt: skip
        size = len(json.dumps([values["messages"], tools]))
        return str(self._process.ask({"do": "render", "variables": values}, size)["text"])
