"""Asks a server about conversations under several reasoning settings, and for the number of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ds4ref.errors import Ds4Error
from ds4ref.targets import Completion, Delta, Message, Prompt, Request, Target
from ds4ref.targets.transport import Refused

from ..limits import Limit
from .shapes import BASE, Shape

if TYPE_CHECKING:
    from ds4ref.targets.openai import HttpTarget

SETTINGS = ("default", "off", "on", "low", "high", "max")
"""What a request says about reasoning: nothing, off, on, or on with an effort."""
EFFORTS = ("low", "high", "max")


def fields_of(setting: str) -> dict[str, Any]:
    """Return the request fields that say ``setting``, for all kinds of server; each knows some of these fields."""
    if setting == "default":
        return {}
    on = setting != "off"
    effort = {"reasoning_effort": setting} if setting in EFFORTS else {}
    template = {"thinking": on, "enable_thinking": on, **effort}
    return {"thinking": {"type": "enabled" if on else "disabled"}, "chat_template_kwargs": template, **effort}


class Asker:
    """Sends small requests to a target.

    Fields that an HTTP server refuses are left out; a setting is refused if none of its fields can be sent. Other
    targets take a thinking mode with every prompt, so that they have no settings "default" and "on".

    refused   setting -> why
    requests  number of requests sent
    answered  number of requests that were answered
    """

    def __init__(self, target: Target, limit: Limit):
        self.target, self.limit = target, limit
        self.http = target.kind == "http"
        self.refused: dict[str, str] = {}
        self.requests = self.answered = 0
        self._fields: dict[str, dict[str, Any]] = {}
        self._no_usage = self._no_counter = False

    @property
    def settings(self) -> list[str]:
        """Return the settings that are not refused."""
        known = SETTINGS if self.http else ("off", *EFFORTS)
        return [name for name in known if name not in self.refused]

    def answer(self, shape: Shape, setting: str, tokens: int = 1, top: int = 0) -> Completion | None:
        """Return the greedy answer to a conversation; None if there is none."""
        mode = "none" if setting in ("default", "off", "on") else setting
        prompt = Prompt.conversation(shape.messages, shape.tools, mode)
        with suppress(Ds4Error):
            target = self._asking(setting) if self.http else self.target
            return None if target is None else self._complete(target, prompt, tokens, top)
        self.limit.check()
        return None

    def count(self, shape: Shape, setting: str) -> int | None:
        """Return the number of prompt tokens of a conversation, None if it cannot be asked.

        It is that of an answer's ``usage``, else, if the setting is explicit, that of /v1/messages/count_tokens.
        """
        if not self._no_usage:
            answer = self.answer(shape, setting)
            if answer is not None and answer.usage.prompt is not None:
                return answer.usage.prompt
            self._no_usage = answer is not None
        return self._counted(shape, setting) if self._no_usage and not self._no_counter else None

    def text(self, text: str) -> int | None:
        """Return the number of prompt tokens of a plain text, None if it cannot be asked."""
        with suppress(Ds4Error):
            return self._complete(self.target, Prompt.plain(text), 1, 0).usage.prompt
        self.limit.check()
        return None

    def greet(self) -> None:
        """Send one plain request, from whose refusal the target learns the server's dialect."""
        with suppress(Ds4Error):
            self._complete(self.target, Prompt(BASE.messages), 1, 0)
        self.limit.check()

    def stream(self, messages: Sequence[Message], tokens: int) -> list[Delta]:
        """Return the deltas of a greedy streamed answer of exactly ``tokens`` tokens, where the server can do that."""
        self.requests += 1
        request = Request(Prompt.conversation(messages), tokens, cancel=self.limit, exact=True)
        deltas = list(self.target.stream(request))
        self.limit.check()
        return deltas

    def _complete(self, target: Target, prompt: Prompt, tokens: int, top: int) -> Completion:
        self.requests += 1
        answer = target.complete(Request(prompt, tokens, top_logprobs=top, cancel=self.limit))
        self.limit.check()
        self.answered += 1
        return answer

    def _asking(self, setting: str) -> HttpTarget | None:
        """Return the target with the fields of a setting, None if they are refused.

        All fields are tried together once, then one by one.
        """
        wanted = fields_of(setting)
        if setting not in self._fields and setting not in self.refused:
            taken = wanted if not wanted or self._takes(setting, wanted) else {
                name: value for name, value in wanted.items() if self._takes(setting, {name: value})
            }  # fmt: skip
            if wanted and not (taken.keys() - {"thinking"} if setting in EFFORTS else taken):
                self.refused.setdefault(setting, "refused")
            else:
                self.refused.pop(setting, None)
                self._fields[setting] = taken
        return self._with(self._fields[setting]) if setting in self._fields else None

    def _takes(self, setting: str, fields: dict[str, Any]) -> bool:
        try:
            self._complete(self._with(fields), Prompt(BASE.messages), 1, 0)
        except Refused as error:
            self.refused[setting] = str(error)
            return False
        return True

    def _with(self, fields: dict[str, Any]) -> HttpTarget:
        """Return the target with further request fields, and none of its dialect's about reasoning."""
        from ds4ref.targets.openai import HttpTarget

        assert isinstance(self.target, HttpTarget)
        other = HttpTarget(self.target.name, self.target.model, dialect="plain", extra=self.target.extra | fields,
                           accept=self.target.accept, transport=self.target.transport)  # fmt: skip
        other.dialect.limit = self.target.dialect.limit
        return other

    def _counted(self, shape: Shape, setting: str) -> int | None:
        if not self.http or setting == "default" or shape.tools:
            return None
        from ds4ref.targets.openai import HttpTarget

        assert isinstance(self.target, HttpTarget)
        texts = [message.content for message in shape.messages if message.role == "system"]
        turns = [{"role": m.role, "content": m.content} for m in shape.messages if m.role != "system"]
        switch = {"type": "disabled"} if setting == "off" else {"type": "enabled", "budget_tokens": 1024}
        body = {"model": self.target.model, "messages": turns, "thinking": switch,
                **({"system": "\n\n".join(texts)} if texts else {}),
                **({"output_config": {"effort": setting}} if setting in EFFORTS else {})}  # fmt: skip
        self.requests += 1
        try:
            count = self.target.transport.post("/messages/count_tokens", body, self.limit)["input_tokens"]
        except Refused as error:
            self._no_counter = error.status in (404, 405, 501)
            return None
        except (Ds4Error, KeyError, TypeError):
            self.limit.check()
            return None
        return count if isinstance(count, int) else None
