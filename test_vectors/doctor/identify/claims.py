"""What a server says about itself: shown, never used, and compared with what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ds4ref.errors import Ds4Error
from ds4ref.targets import Target

from ..served import UNKNOWN, Served

NAMES = {"0731": "0731", "0813": "0731", "vision-exp": "0731", "v4.1": "v4.1", "v4-1": "v4.1", "v41": "v4.1"}
"""Parts of a model's name that claim a template -> that template."""
LIMITS = re.compile("max_model_len|context|n_ctx$")
"""Names under which servers state their context limit."""
CLOSE = 0.05
"""Relative difference of a stated context limit that is none: servers count the answer's room differently."""


def read(target: Target) -> dict[str, Any]:
    """Return the model's name and its entry in the list of models of an HTTP target."""
    claims: dict[str, Any] = {}
    with suppress(Ds4Error, KeyError, TypeError, AttributeError):
        claims = {"model": target.model}  # type: ignore[attr-defined]
        for entry in target.transport.get("/models")["data"]:  # type: ignore[attr-defined]
            if entry.get("id") == claims["model"]:
                stated = {**entry, **(entry.get("meta") or {})}
                claims |= {key: value for key, value in stated.items()
                           if isinstance(value, int | str) and key not in ("id", "created")}  # fmt: skip
    return claims


def contradictions(claims: Mapping[str, Any], served: Served) -> list[str]:
    """Return a sentence for each claim that the measurements contradict."""
    out, name, profile = [], str(claims.get("model", "")).lower(), served.value("profile")
    claimed = next((form for part, form in NAMES.items() if part in name), None)
    if claimed and profile and profile != claimed:
        rendered = "another one" if profile == UNKNOWN else profile
        out.append(f"the name {claims['model']} stands for template {claimed}; it renders {rendered}")
    limit = int(served.value("context") or 0)
    for key, value in claims.items():
        if limit and LIMITS.search(key) and isinstance(value, int) and abs(value - limit) > CLOSE * limit:
            out.append(f"{key} is {value}; prompts longer than {limit} tokens are refused or cut")
    return out
