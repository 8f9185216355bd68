"""Error responses: their status and wording, by which clients decide what to do (docs/reference/server.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .api import Refused, compact
from .turn import Failed

if TYPE_CHECKING:
    from .queue import Busy

OPENAI = {401: "authentication_error", 413: "request_too_large", 500: "server_error", 503: "server_error"}
ANTHROPIC = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
             429: "rate_limit_error", 500: "api_error", 503: "overloaded_error"}  # fmt: skip
"""The ``type`` of an error by HTTP status; "invalid_request_error" if not listed."""

PROMPT = {"chat": "messages", "completions": "prompt", "responses": "input"}
"""The request field that holds the prompt, by API."""

NO_RETRY = {"x-should-retry": "false"}
"""The header that keeps SDKs from retrying after a 503 that a second try would meet again."""


def overflow(api: str, tokens: int, ctx: int) -> Refused:
    """Return the error for a prompt longer than the context, worded so that coding agents compact their history."""
    counts = {"n_prompt_tokens": tokens, "n_ctx": ctx}
    if api == "messages":
        return Refused(400, f"prompt is too long: {tokens} tokens > {ctx} maximum", counts)
    extra = {"param": PROMPT.get(api), "code": "context_length_exceeded", **counts}
    return Refused(400, f"Prompt has {tokens} tokens, but the configured context size is {ctx} tokens", extra)


def busy(error: Busy) -> Refused:
    """Return the error (503) for a turn not accepted because the queue is full or closed."""
    if error.retry_after is None:
        return ending()
    return Refused(503, str(error), headers={"retry-after": str(error.retry_after)})


def ending() -> Refused:
    """Return the error (503) for a request during shutdown."""
    return Refused(503, "server shutting down", headers=NO_RETRY)


def failed(api: str, event: Failed, ctx: int) -> Refused:
    """Return the error for a turn that failed before any part of its answer was sent."""
    match event.code:
        case "context":
            return overflow(api, event.tokens, ctx) if event.tokens else Refused(400, event.message)
        case "form":
            return Refused(400, event.message)
        case "shutdown":
            return ending()
    return Refused(500, event.message)


def internal() -> Refused:
    """Return the error (500) for a bug in the server."""
    return Refused(500, "internal error")


def document(refused: Refused, api: str = "") -> bytes:
    """Return an error as JSON: in Anthropic's shape for its API, else in OpenAI's."""
    anthropic = api == "messages"
    kinds = ANTHROPIC if anthropic else OPENAI
    kind = kinds.get(refused.status, "invalid_request_error")
    error = {"message": refused.message, "type": kind, **refused.extra}
    shape: dict[str, Any] = {"type": "error", "error": error} if anthropic else {"error": error}
    return f"{compact(shape)}\n".encode()
