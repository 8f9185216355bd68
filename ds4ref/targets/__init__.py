"""Engines as targets: one interface over the local engine, HTTP endpoints and external binaries.

    local, local:MODEL.gguf                 this engine; options backend, numerics, threads, ctx
    http://host:port/v1, https://...        any OpenAI-compatible endpoint; options model, prefill, per_minute, ...
    command:./ds4 -m MODEL.gguf             an external ds4 binary; options timeout, ctx

Abilities: ``base.Ability``. Heavy parts are imported when a target of that kind is opened.
"""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from .base import Ability, Completion, Delta, Prompt, Request, Step, Target, Token, Usage, collect

__all__ = [
    "Ability", "Completion", "Delta", "Prompt", "Request", "Step", "Target", "Token", "Usage", "collect", "open_target",
]  # fmt: skip


def open_target(spec: str, **options: Any) -> Target:
    """The target that ``spec`` names; UsageError for a spec or an option that cannot be."""
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
        raise UsageError(f"target {kind}: {str(error).split(') ')[-1]}") from None
    raise UsageError(f"unknown target {spec!r}: local[:MODEL], http(s)://HOST/v1 or command:BINARY ARGS")
