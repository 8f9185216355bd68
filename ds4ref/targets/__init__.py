"""Targets: one interface to whatever is tested, be it the local engine, an HTTP endpoint or an external binary.

    local, local:MODEL.gguf                 this engine; options ctx, sessions, and those of Engine.open. Commands
                                            also take options in the spec: local:MODEL.gguf?numerics=exact&threads=2
    http://host:port/v1, https://...        any OpenAI-compatible endpoint; options model, dialect, per_minute, ...
    command:./ds4 -m MODEL.gguf             an external ds4 binary; options timeout, ctx

``base.Ability`` lists what a target may be able to do. To keep start-up fast, the modules of a kind of target are
imported only when one is opened.
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


def open_target(spec: str, **options: Any) -> Target:
    """Open the target that ``spec`` describes ("local:MODEL.gguf", "http://HOST/v1", "command:BINARY ARGS").

    ``options`` are passed on to its class. Raise UsageError for an invalid spec or option.
    """
    kind, _, rest = spec.partition(":")
    try:
        if kind in ("http", "https"):
            from .openai import HttpTarget

            return HttpTarget(spec, **options)
        if kind == "command":
            from .command import CommandTarget

            return CommandTarget(rest, **options)
        if kind == "local":
            from .local import LocalTarget

            return LocalTarget.open(rest or None, **options)
    except TypeError as error:
        refused = str(error).split(") ")[-1].replace("got an unexpected keyword argument", "there is no option")
        raise UsageError(f"target {kind}: {refused}") from None
    raise UsageError(f"unknown target {spec!r}: local[:MODEL], http(s)://HOST/v1 or command:BINARY ARGS")
