"""Engines as targets: one interface over the local engine, HTTP endpoints and external binaries.

    local, local:MODEL.gguf                 this engine; options backend, numerics, threads, ctx, sessions, also
                                            in the spec: local:MODEL.gguf?numerics=exact&backend=reference
    http://host:port/v1, https://...        any OpenAI-compatible endpoint; options model, dialect, per_minute, ...
    command:./ds4 -m MODEL.gguf             an external ds4 binary; options timeout, ctx

``base.Ability`` lists what a target may be able to do. Heavy modules are imported when a target of their kind is
opened.
"""

from __future__ import annotations

from typing import Any

from ..cancellation import Cancellation
from ..errors import UsageError
from ..text.chat import Message
from ..text.dsml import ToolCall
from .answer import CallDelta, Completion, Delta, Finish, Step, Token, Usage, collect
from .base import Ability, Prompt, Request, Target

__all__ = [
    "Ability", "CallDelta", "Cancellation", "Completion", "Delta", "Finish", "Message", "Prompt", "Request", "Step",
    "Target", "Token", "ToolCall", "Usage", "collect", "open_target",
]  # fmt: skip


_NUMBERS = ("threads", "ctx", "sessions")
_OPTIONS = ("backend", "numerics", *_NUMBERS)


def _query(text: str) -> dict[str, Any]:
    """Parse the options inside a spec; UsageError for an unknown or malformed one."""
    options: dict[str, Any] = {}
    for part in filter(None, text.split("&")):
        name, equals, value = part.partition("=")
        if name not in _OPTIONS or not equals:
            names = ", ".join(f"{name}=" for name in _OPTIONS)
            raise UsageError(f"target option {part[:40]!r}: choose from {names}")
        if name in _NUMBERS:
            if not value.isdecimal() or not 0 < int(value) < 1 << 31:
                raise UsageError(f"target option {name} must be a number above 0, not {value[:20]!r}")
            options[name] = int(value)
        else:
            options[name] = value
    return options


def open_target(spec: str, **options: Any) -> Target:
    """Open the target that ``spec`` describes; raise UsageError for an invalid spec or option."""
    kind, _, rest = spec.partition(":")
    if spec.startswith("local?"):
        kind, rest = "local", spec.removeprefix("local")
    try:
        if kind in ("http", "https"):
            from .openai import HttpTarget

            return HttpTarget(spec, **options)
        if kind == "command":
            from .command import CommandTarget

            return CommandTarget(rest, **options)
        if kind == "local":
            from .local import LocalTarget

            path, _, query = rest.partition("?")
            return LocalTarget.open(path or None, **options | _query(query))
    except TypeError as error:
        raise UsageError(f"target {kind}: {str(error).split(') ')[-1]}") from None
    raise UsageError(f"unknown target {spec!r}: local[:MODEL], http(s)://HOST/v1 or command:BINARY ARGS")
