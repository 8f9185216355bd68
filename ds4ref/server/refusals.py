"""Error responses: status and wording, which clients match to decide what to do (docs/reference/server.md).

``options`` of all functions: which deviations from ds4's server are on (``deviations``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .api import Api, Question, Refused
from .deviations import on
from .turn import Failed

if TYPE_CHECKING:
    from .worker import Busy

Options = Mapping[str, bool]

KINDS = {
    "messages": {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        500: "api_error",
        503: "overloaded_error",
    },
    "": {401: "authentication_error", 500: "server_error", 503: "server_error"},
}
"""The ``type`` of an error by API ("": all others) and HTTP status; "invalid_request_error" if not listed."""

PROMPT = {"chat": "messages", "completions": "prompt", "responses": "input"}
"""The request field that holds the prompt, by API."""

HISTORY = {"messages": ("Anthropic", "messages"), "responses": ("Responses", "input")}

TOO_LONG = "Prompt has {tokens} tokens, but the configured context size is {ctx} tokens"
TOO_LONG_MESSAGES = "prompt is too long: {tokens} tokens > {ctx} maximum"


def refused(api: str, status: int, message: str, **more: Any) -> Refused:
    """Return an error with the ``type`` that ``api`` uses for ``status``; ``more``: further arguments of Refused."""
    kinds = KINDS.get(api, KINDS[""])
    return Refused(status, message, kinds.get(status, "invalid_request_error"), **more)


def overflow(api: str, tokens: int, ctx: int, options: Options) -> Refused:
    """Return the error for a prompt longer than the context, worded so that coding agents compact their history."""
    counts = {"n_prompt_tokens": tokens, "n_ctx": ctx}
    if api == "messages":
        words = TOO_LONG_MESSAGES if on(options, "prompt-too-long") else TOO_LONG
        return refused(api, 400, words.format(tokens=tokens, ctx=ctx), extra=counts)
    extra = {"param": PROMPT.get(api), "code": "context_length_exceeded", **counts}
    return refused(api, 400, TOO_LONG.format(tokens=tokens, ctx=ctx), extra=extra)


def busy(api: str, error: Busy, options: Options) -> Refused:
    """Return the error (503) for a turn not accepted because the queue is full or closed."""
    if error.retry_after is None:
        return ending(api, options)
    return refused(api, 503, str(error), headers={"retry-after": str(error.retry_after)})


def ending(api: str, options: Options) -> Refused:
    """Return the error (503) for a request during shutdown."""
    return refused(api, 503, "server shutting down", headers=_no_retry(options))


def _no_retry(options: Options) -> dict[str, str]:
    """Return the header that stops SDKs from retrying after 409 and 503."""
    return {"x-should-retry": "false"} if on(options, "no-retry") else {}


def failed(api: str, event: Failed, ctx: int, options: Options) -> Refused:
    """Return the error for a turn that failed before any part of its answer was sent."""
    match event.code:
        case "context":
            return overflow(api, event.tokens, ctx, options) if event.tokens else refused(api, 400, event.message)
        case "continuation":
            who, field = HISTORY.get(api, ("Its", "messages"))
            message = f"{who} continuation state is not available; retry by replaying the full {field} history"
            return refused(api, 409, message, headers=_no_retry(options))
        case "form":
            return refused(api, 400, event.message)
        case "shutdown":
            return ending(api, options)
    return refused(api, 500, event.message)


def internal(api: str) -> Refused:
    """Return the error (500) for a bug in the server."""
    return refused(api, 500, "internal error")


def document(message: str, kind: str = "invalid_request_error", **extra: Any) -> bytes:
    """Return an error as OpenAI's JSON document; used for paths that belong to no API."""
    error = {"message": message, "type": kind, **extra}
    return json.dumps({"error": error}, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def body(api: Api | Question, refused: Refused, options: Options) -> bytes:
    """Return the JSON document of an error in the shape of ``api``.

    With "anthropic-errors" off, most errors of /v1/messages have OpenAI's shape, as in ds4.
    """
    anthropic = api.name in ("messages", "count_tokens") and "n_prompt_tokens" not in refused.extra
    if anthropic and not on(options, "anthropic-errors"):
        return document(refused.message, refused.kind, **refused.extra)
    return api.error(refused)
