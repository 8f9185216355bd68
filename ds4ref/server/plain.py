"""Endpoints without generation: models, tokens, health, metrics, and the page to chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .api import Refused
from .apis.fields import members_of, typed
from .apis.messages import Messages
from .apis.requests import Id
from .endpoint import JSON, body_of, translated
from .limits import check_json, inflate

if TYPE_CHECKING:
    from .service import Service

PARAMETERS = (
    "tools", "tool_choice", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "stream",
    "reasoning_effort", "response_format", "logprobs", "top_logprobs", "n", "logit_bias", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip

CSP = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; " \
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # fmt: skip


class Tokenize(msgspec.Struct):
    """The body of a request to /tokenize."""

    prompt: str
    add_special_tokens: bool | None = None


class Detokenize(msgspec.Struct):
    """The body of a request to /detokenize."""

    tokens: list[Id]


class Plain:
    """Request handlers of the endpoints without generation."""

    def __init__(self, service: Service):
        self.service = service
        self._chat = files(__package__).joinpath("chat.html").read_bytes()
        self._codex = msgspec.json.decode(files(__package__).joinpath("codex.json").read_bytes())

    # --- models

    async def models(self, request: Request) -> Response:
        """Return the list of models for OpenAI's and Anthropic's clients, with the catalogue that Codex reads."""
        one = self._model()
        return answer(
            {
                "object": "list",
                "data": [one],
                "models": [self._catalogue()],
                "has_more": False,
                "first_id": one["id"],
                "last_id": one["id"],
            }
        )

    async def model(self, request: Request) -> Response:
        """Return the description of one model by id."""
        if unquote(request.path_params["id"]) != self.service.settings.model:
            name = unquote(request.path_params["id"])[:100]
            raise Refused(404, f"there is no model {name!r}", {"code": "model_not_found"})
        return answer(self._model())

    def _model(self) -> dict[str, Any]:
        s, ctx = self.service.settings, self.service.ctx
        most = self.service.max_tokens
        return {
            "id": s.model,
            "object": "model",
            "created": s.created,
            "owned_by": "ds4ref",
            "name": s.title or s.model,
            "context_length": ctx,
            "top_provider": {"context_length": ctx, "max_completion_tokens": most, "is_moderated": False},
            "supported_parameters": PARAMETERS,
            "type": "model",
            "display_name": s.title or s.model,
            "created_at": datetime.fromtimestamp(s.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "max_input_tokens": ctx - 1,
            "max_tokens": most,
        }

    def _catalogue(self) -> dict[str, Any]:
        """Return the model's entry in the catalogue that Codex reads: codex.json with this model's name and context."""
        s = self.service.settings
        own = {"slug": s.model, "display_name": s.title or s.model, "context_window": self.service.ctx}
        return self._codex | own

    # --- tokens

    async def tokenizer_info(self, request: Request) -> Response:
        """Return the tokenizer's properties that lm-evaluation-harness needs."""
        tokenizer = self.service.worker.engine.tokenizer
        bos, eos = tokenizer.token_string(tokenizer.bos), tokenizer.token_string(tokenizer.eos)
        return answer(
            {
                "tokenizer_class": "ds4ref",
                "vocab_size": len(tokenizer),
                "model_max_length": self.service.ctx,
                "bos_token": bos,
                "eos_token": eos,
                "pad_token": eos,
                "chat_template": None,
                "add_bos_token": False,
                "add_eos_token": False,
            }
        )

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of the request's ``prompt``; control tokens written in it are recognised."""
        return await self._answered(request, self._tokens)

    def _tokens(self, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        asked = typed(members_of(body)[0], Tokenize)
        tokenizer = self.service.worker.engine.tokenizer
        ids = tokenizer.encode_rendered(asked.prompt)
        tokens = [tokenizer.bos, *ids] if asked.add_special_tokens else ids
        return {"tokens": tokens, "count": len(tokens), "max_model_len": self.service.ctx}

    async def detokenize(self, request: Request) -> Response:
        """Return the text of the request's ``tokens``; invalid UTF-8 becomes U+FFFD."""
        return await self._answered(request, self._text)

    def _text(self, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        ids, tokenizer = typed(members_of(body)[0], Detokenize).tokens, self.service.worker.engine.tokenizer
        if max(ids, default=0) >= len(tokenizer):
            raise Refused(400, f"tokens must be token ids (0..{len(tokenizer) - 1})")
        return {"prompt": tokenizer.decode(ids).decode("utf-8", "replace")}

    async def count_tokens(self, request: Request) -> Response:
        """Return the number of tokens of a message request's prompt (Anthropic)."""
        return await self._answered(request, self._count)

    def _count(self, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        turn, _ = Messages().read(body, self.service.about(headers), counted=True)
        return {"input_tokens": len(turn.rendered().encode(self.service.worker.engine.tokenizer))}

    async def _answered(self, request: Request, work: Callable[[bytes, Mapping[str, str]], dict[str, Any]]) -> Response:
        """Receive a request's body; return the result of ``work(body, headers)`` as JSON response.

        The work runs in a thread, since a prompt may have a million tokens and the event loop serves other clients.
        """
        service, headers = self.service, request.scope["state"]["headers"]
        body = await body_of(request.scope, request.receive, service, request.scope["state"]["exchange"])

        def answered() -> Response:
            whole = inflate(body, headers.get("content-encoding", ""), service.limits)
            check_json(whole, service.limits)
            with translated():
                return answer(work(whole, headers))

        try:
            return await service.aside(answered)
        finally:
            service.body_budget.give(len(body))

    # --- monitoring

    async def health(self, request: Request) -> Response:
        """Return whether the server accepts requests."""
        if self.service.draining:
            return answer({"status": "draining"}, 503)
        if not self.service.worker.alive:
            return answer({"status": "the inference thread has ended"}, 503)
        return answer({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the Prometheus format that the client accepts."""
        body, kind = self.service.metrics.page(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    async def chat(self, request: Request) -> Response:
        """Return the HTML of the chat page, which sends its requests to /v1/chat/completions."""
        headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": CSP}
        return Response(self._chat, headers={**headers, "x-content-type-options": "nosniff"})


def answer(value: Mapping[str, Any], status: int = 200) -> Response:
    """Return an object as JSON response: without spaces, unescaped UTF-8, a newline at the end."""
    return Response(msgspec.json.encode(value) + b"\n", status, headers={"content-type": JSON})
