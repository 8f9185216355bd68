"""The server's OpenAPI 3.1 description.

Requests are described by their types (``apis.requests``): only fields that have an effect; others are allowed and
ignored, as clients need (clients.md 10). Answers are described by their members, a stream by its media type alone;
docs/reference/server.md describes the events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..version import __version__
from .apis.requests import REQUESTS

if TYPE_CHECKING:
    from .service import Service

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
THING: Schema = {"type": "object"}
HTML = "text/html; charset=utf-8"


def thing(required: str = "", **properties: Schema) -> Schema:
    """Return the schema of an object that allows other members, too; ``required``: names separated by spaces."""
    return {"type": "object", "required": required.split(), "properties": properties}


_OPENAI_ERROR = thing("error", error=thing("message type", message=TEXT, type=TEXT))
ERROR = {"anyOf": [_OPENAI_ERROR, thing("type error", type={"const": "error"}, error=thing("message type"))]}
MODEL = thing("id object created owned_by name context_length type display_name created_at", object={"const": "model"})
TOKENS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}

ANSWERS = {
    "/v1/chat/completions": ("OpenAI chat completion", thing("id object created model choices usage")),
    "/v1/completions": ("OpenAI completion, with echo and log probabilities",
                    thing("id object created model choices usage")),
    "/v1/messages": ("Anthropic message", thing("id type role model content stop_reason usage", id=TEXT)),
    "/v1/responses": ("OpenAI response", thing("id object created_at status model output", status=TEXT)),
}  # fmt: skip
NEEDED = {"chat": "messages", "completions": "prompt", "messages": "messages", "responses": "input"}
GETS: dict[str, tuple[str, str | Schema]] = {
    "/": ("A page to chat with the model", HTML),
    "/watch": ("The status page", HTML),
    "/status": ("What the status page shows", thing("server totals queue live recent timelines")),
    "/health": ("Whether requests are taken on", thing("status", status=TEXT)),
    "/metrics": ("Figures for Prometheus", "text/plain"),
    "/openapi.json": ("This description", THING),
    "/v1/models": ("The model, for OpenAI's, Anthropic's and Codex's clients",
                   thing("object data models has_more first_id last_id", data={"type": "array", "items": MODEL})),
    "/v1/models/{id}": ("The model", MODEL),
    "/tokenizer_info": ("The tokenizer's control tokens", thing("eos_token bos_token")),
}  # fmt: skip
POSTS = {
    "/tokenize": ("Text to token ids", thing("prompt", prompt=TEXT, add_special_tokens={"type": "boolean"}),
                  thing("tokens count", tokens=TOKENS)),
    "/detokenize": ("Token ids to text", thing("tokens", tokens=TOKENS), thing("prompt", prompt=TEXT)),
}  # fmt: skip


def document(service: Service) -> dict[str, Any]:
    """Return the OpenAPI document of this server."""
    refs, schemas = msgspec.json.schema_components(REQUESTS.values(), ref_template="#/components/schemas/{name}")
    asked = dict(zip(REQUESTS, refs, strict=True))
    for name, field in NEEDED.items():
        schemas[REQUESTS[name].__name__]["required"] = [field]
    bad = {"description": "what was wrong", "content": json_body(ERROR)}
    ids = {"X-Request-Id": {"schema": TEXT}, "Server-Timing": {"schema": TEXT}}

    def post(summary: str, body: Schema, answered: Schema, streams: bool = False) -> dict[str, Any]:
        content = json_body(answered) | ({"text/event-stream": {}} if streams else {})  # 3.1 has no words for events
        responses = {"200": {"description": summary, "content": content, "headers": ids}, "default": bad}
        request = {"required": True, "content": json_body(body)}
        return {"post": {"summary": summary, "requestBody": request, "responses": responses}}

    paths: dict[str, Any] = {path: post(*of) for path, of in POSTS.items()}
    for path, (summary, answered) in GETS.items():
        content = {answered: {"schema": TEXT}} if isinstance(answered, str) else json_body(answered)
        responses = {"200": {"description": summary, "content": content}, "default": bad}
        paths[path] = {"get": {"summary": summary, "responses": responses}}
    one = {"type": "string", "enum": [service.settings.model]}
    paths["/v1/models/{id}"]["get"]["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": one}]
    for name, (path, (summary, answered)) in zip(REQUESTS, ANSWERS.items(), strict=True):
        paths[path] = post(summary, asked[name], answered, streams=True)
    count = thing("input_tokens", input_tokens={"type": "integer", "minimum": 0})
    paths["/v1/messages/count_tokens"] = post("Tokens of a message request", asked["messages"], count)
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "ds4-server", "version": __version__, "description": "docs/reference/server.md"},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if service.access.key:
        schemes = {"bearer": {"type": "http", "scheme": "bearer"},
                   "header": {"type": "apiKey", "in": "header", "name": "x-api-key"}}  # fmt: skip
        description["components"]["securitySchemes"] = schemes
        description["security"] = [{"bearer": []}, {"header": []}]
    return description


def json_body(schema: Schema) -> dict[str, Any]:
    """Return the OpenAPI ``content`` of a JSON body with ``schema``."""
    return {"application/json": {"schema": schema}}
