"""What can go wrong with a request, as a status and in the words that clients look for (docs/server.md).

``options`` are the departures from the server that this one is modelled on (``deviations``).
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
"""The ``type`` of an error by API and status; "invalid_request_error" for all others."""

PROMPT = {"chat": "messages", "completions": "prompt", "responses": "input"}
"""The field that holds the prompt."""

HISTORY = {"messages": ("Anthropic", "messages"), "responses": ("Responses", "input")}

TOO_LONG = "Prompt has {tokens} tokens, but the configured context size is {ctx} tokens"
TOO_LONG_MESSAGES = "prompt is too long: {tokens} tokens > {ctx} maximum"


def refused(api: str, status: int, message: str, **more: Any) -> Refused:
    """An error of ``api``; ``more`` is what Refused takes."""
    kinds = KINDS.get(api, KINDS[""])
    return Refused(status, message, kinds.get(status, "invalid_request_error"), **more)


def overflow(api: str, tokens: int, ctx: int, options: Options) -> Refused:
    """The prompt does not fit. The words are those by which pi, Qwen Code and Claude Code know that they should compact
    their history."""
    counts = {"n_prompt_tokens": tokens, "n_ctx": ctx}
    if api == "messages":
        words = TOO_LONG_MESSAGES if on(options, "prompt-too-long") else TOO_LONG
        return refused(api, 400, words.format(tokens=tokens, ctx=ctx), extra=counts)
    extra = {"param": PROMPT.get(api), "code": "context_length_exceeded", **counts}
    return refused(api, 400, TOO_LONG.format(tokens=tokens, ctx=ctx), extra=extra)


def busy(api: str, error: Busy, options: Options) -> Refused:
    """The queue is full, or closed."""
    if error.retry_after is None:
        return ending(api, options)
    return refused(api, 503, str(error), headers={"retry-after": str(error.retry_after)})


def ending(api: str, options: Options) -> Refused:
    """The server is being shut down."""
    return refused(api, 503, "server shutting down", headers=_in_vain(options))


def _in_vain(options: Options) -> dict[str, str]:
    """SDKs ask again after 409 and 503 unless they are told that it is of no use."""
    return {"x-should-retry": "false"} if on(options, "no-retry") else {}


def failed(api: str, event: Failed, ctx: int, options: Options) -> Refused:
    """What the worker says before anything of an answer went out."""
    match event.code:
        case "context":
            return overflow(api, event.tokens, ctx, options) if event.tokens else refused(api, 400, event.message)
        case "continuation":
            who, what = HISTORY.get(api, ("Its", "messages"))
            message = f"{who} continuation state is not available; retry by replaying the full {what} history"
            return refused(api, 409, message, headers=_in_vain(options))
        case "form":
            return refused(api, 400, event.message)
        case "shutdown":
            return ending(api, options)
    return refused(api, 500, event.message)


def internal(api: str) -> Refused:
    """A bug of ours."""
    return refused(api, 500, "internal error")


def document(message: str, kind: str = "invalid_request_error", **extra: Any) -> bytes:
    """The error document where no API has one of its own."""
    error = {"message": message, "type": kind, **extra}
    return json.dumps({"error": error}, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def body(api: Api | Question, refused: Refused, options: Options) -> bytes:
    """The document of an error, in the shape of its API. ds4 says all but one thing on /v1/messages in OpenAI's."""
    anthropic = api.name in ("messages", "count_tokens") and "n_prompt_tokens" not in refused.extra
    if anthropic and not on(options, "anthropic-errors"):
        return document(refused.message, refused.kind, **refused.extra)
    return api.error(refused)
