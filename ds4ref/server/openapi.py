"""The server's OpenAPI 3.1 description.

It describes only fields that have an effect; others are allowed and ignored, as clients need (clients.md 10). A stream
is described by its media type alone; docs/reference/server.md describes the events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..version import __version__
from .apis.fields import BUDGETS, LENGTHS

if TYPE_CHECKING:
    from .service import Service

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
THING: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    """Return a reference to the schema of that name."""
    return {"$ref": f"#/components/schemas/{name}"}


def thing(required: str = "", **properties: Schema) -> Schema:
    """Return the schema of an object; ``required``: names of required members, separated by spaces.

    Undeclared members are allowed.
    """
    schema: Schema = {"type": "object", "properties": properties}
    return schema | ({"required": required.split()} if required else {})


def many(items: Schema, **more: Any) -> Schema:
    """Return the schema of an array of ``items``; ``more``: further keywords."""
    return {"type": "array", "items": items, **more}


def one_of(*values: str) -> Schema:
    """Return the schema of a string that is one of ``values``."""
    return {"type": "string", "enum": list(values)}


def nullable(schema: Schema) -> Schema:
    """Return ``schema`` extended to allow null."""
    return {"anyOf": [schema, {"type": "null"}]}


EFFORT = nullable(one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"))
STOP = nullable({"anyOf": [TEXT, many(TEXT, maxItems=256)]})
CONTENT = nullable({"anyOf": [TEXT, many(ref("Part"))]})

PENALTY = nullable({"type": "number", "minimum": -2, "maximum": 2})
SHARE = {"type": "number", "minimum": 0, "maximum": 1}
SAMPLING = {
    "temperature": {"type": "number", "minimum": 0}, "top_p": SHARE, "min_p": SHARE, "top_k": COUNT,
    "seed": {"type": "integer"}, "presence_penalty": PENALTY, "frequency_penalty": PENALTY,
    "logit_bias": nullable({"type": "object", "additionalProperties": {"type": "number", "minimum": -100,
                                                                       "maximum": 100},
                            "propertyNames": {"pattern": "^[0-9]{1,9}$"}}),
}  # fmt: skip
COMMON = {"model": TEXT, "stream": FLAG, **SAMPLING}
OPENAI = {
    **COMMON,
    **dict.fromkeys(("max_tokens", "min_tokens"), COUNT),
    **dict.fromkeys(LENGTHS[1:], {"type": "integer", "minimum": -1}),
    "ignore_eos": FLAG,
    "stop": STOP,
    "n": nullable({"type": "integer", "minimum": 1, "maximum": 128}),
    "stream_options": nullable(thing(include_usage=nullable(FLAG))),
    "reasoning_effort": EFFORT,
    "thinking": nullable({"anyOf": [FLAG, thing(type=TEXT)]}),
    "think": FLAG,
}

CALL = thing("function", id=TEXT, type=TEXT, function=thing("name arguments", name=TEXT, arguments=TEXT))

SCHEMAS: dict[str, Schema] = {
    "Error": {
        "anyOf": [
            thing("error", error=thing("message type", message=TEXT, type=TEXT)),
            thing("type error", type={"const": "error"}, error=thing("message type", message=TEXT, type=TEXT)),
        ]
    },
    "Part": {"anyOf": [TEXT, thing("type", type=TEXT, text=nullable(TEXT))]},
    "Model": thing(
        "id object created owned_by name context_length type display_name created_at",
        id=TEXT, object={"const": "model"}, created=COUNT, owned_by=TEXT, name=TEXT, context_length=COUNT,
        top_provider=THING, supported_parameters=many(TEXT), type={"const": "model"}, display_name=TEXT,
        created_at={"type": "string", "format": "date-time"},
    ),
    "Models": thing(
        "object data models has_more first_id last_id",
        object={"const": "list"}, data=many(ref("Model")), models=many(THING), has_more=FLAG, first_id=TEXT,
        last_id=TEXT,
    ),
    "Usage": thing(
        "prompt_tokens completion_tokens total_tokens",
        prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT,
        prompt_tokens_details=thing(cached_tokens=COUNT, cache_write_tokens=COUNT),
    ),
    "Message": thing(
        "role", role=one_of("system", "developer", "user", "assistant", "tool", "function"), content=CONTENT,
        reasoning_content=CONTENT, tool_calls=nullable(many(CALL)), tool_call_id=TEXT,
    ),
    "ChatRequest": thing(
        "messages", messages=many(ref("Message"), minItems=1), tools=nullable(many(THING)),
        tool_choice=nullable({"anyOf": [one_of("none", "auto", "required"), THING]}), max_completion_tokens=COUNT,
        response_format=nullable(thing("type", type=TEXT, json_schema=THING)), logprobs=FLAG,
        top_logprobs={"type": "integer", "minimum": 0, "maximum": 20}, include_reasoning=FLAG,
        **dict.fromkeys(BUDGETS, {"type": "integer", "minimum": -1}), **OPENAI,
    ),
    "Chat": thing(
        "id object created model choices usage", id=TEXT, object={"const": "chat.completion"}, created=COUNT,
        model=TEXT,
        choices=many(thing("index message finish_reason", index=COUNT, message=ref("Message"), finish_reason=TEXT)),
        usage=ref("Usage"),
    ),
    "CompletionRequest": thing(
        "prompt",
        prompt={"anyOf": [TEXT, many(TEXT), many(COUNT), many(many(COUNT, minItems=1))]}, echo=FLAG,
        apply_chat_template=FLAG,
        logprobs=nullable({"type": "integer", "minimum": 0}), **OPENAI,
    ),
    "Completion": thing(
        "id object created model choices usage", id=TEXT, object={"const": "text_completion"}, created=COUNT,
        model=TEXT, usage=ref("Usage"),
        choices=many(thing("index text finish_reason", index=COUNT, text=TEXT, finish_reason=TEXT)),
    ),
    "MessagesRequest": thing(
        "messages",
        messages=many(thing("role", role=one_of("system", "user", "assistant"), content=CONTENT), minItems=1),
        system=CONTENT, tools=nullable(many(THING)), tool_choice=nullable(thing("type", type=TEXT, name=TEXT)),
        max_tokens=COUNT, stop_sequences=nullable(many(TEXT, maxItems=256)), metadata=THING,
        thinking=nullable({"anyOf": [FLAG, thing(type=TEXT, budget_tokens=COUNT)]}),
        output_config=nullable(thing(effort=EFFORT, format=nullable(THING))), **COMMON,
    ),
    "AnthropicMessage": thing(
        "id type role model content stop_reason usage", id=TEXT, type={"const": "message"}, role={"const": "assistant"},
        model=TEXT, content=many(thing("type", type=TEXT)), stop_reason=TEXT, stop_sequence=nullable(TEXT),
        usage=thing("input_tokens output_tokens", input_tokens=COUNT, output_tokens=COUNT),
    ),
    "TokenCount": thing("input_tokens", input_tokens=COUNT),
    "ResponsesRequest": thing(
        "input", input={"anyOf": [TEXT, many(thing(type=TEXT))]}, instructions=nullable(TEXT),
        tools=nullable(many(THING)), tool_choice=nullable({"anyOf": [one_of("none", "auto", "required"), THING]}),
        max_output_tokens=COUNT, max_tokens=COUNT, **COMMON,
        reasoning=nullable(thing(effort=EFFORT, summary=nullable(TEXT))), text=nullable(thing(format=nullable(THING))),
    ),
    "Response": thing(
        "id object created_at status model output", id=TEXT, object={"const": "response"}, created_at=COUNT,
        status=TEXT, model=TEXT, output=many(thing("type", type=TEXT)), usage=THING,
    ),
    "TokenizeRequest": thing("prompt", prompt=TEXT, add_special_tokens=FLAG),
    "Tokens": thing("tokens count", tokens=many(COUNT), count=COUNT, max_model_len=COUNT),
    "DetokenizeRequest": thing("tokens", tokens=many(COUNT)),
    "Text": thing("prompt", prompt=TEXT),
    "TokenizerInfo": thing("eos_token bos_token", eos_token=TEXT, bos_token=TEXT, pad_token=TEXT, vocab_size=COUNT),
    "Health": thing("status", status=TEXT),
    "Status": thing("server totals queue live recent timelines", server=THING, totals=THING, queue=THING,
                    live=many(THING), recent=many(THING), timelines=THING),
}  # fmt: skip

for _name in [name for name in SCHEMAS if name.endswith("Request")]:  # null is absent
    _fields, _needed = SCHEMAS[_name]["properties"], SCHEMAS[_name].get("required", ())
    _fields |= {name: nullable(schema) for name, schema in _fields.items() if name not in _needed}

GENERATES = {
    "/v1/chat/completions": ("OpenAI chat completion", "ChatRequest", "Chat"),
    "/v1/completions": ("OpenAI completion, with echo and log probabilities", "CompletionRequest", "Completion"),
    "/v1/messages": ("Anthropic message", "MessagesRequest", "AnthropicMessage"),
    "/v1/responses": ("OpenAI response", "ResponsesRequest", "Response"),
}


def document(service: Service) -> dict[str, Any]:
    """Return the OpenAPI document of this server."""
    bad = {"default": {"description": "what was wrong", "content": json_body(ref("Error"))}}
    ids = {"X-Request-Id": {"schema": TEXT}, "Server-Timing": {"schema": TEXT}}

    def get(summary: str, schema: Schema | None, kind: str = "application/json", **more: Any) -> dict[str, Any]:
        content = json_body(schema) if schema is not None else {kind: {"schema": TEXT}}
        responses = {"200": {"description": summary, "content": content}, **bad}
        return {"get": {"summary": summary, "responses": responses, **more}}

    def post(summary: str, asked: Schema, answered: Schema, streams: bool = False) -> dict[str, Any]:
        content = json_body(answered)
        if streams:
            content["text/event-stream"] = {}  # OpenAPI 3.1 has no words for the events of a stream
        response = {"description": summary, "content": content, "headers": ids}
        body = {"required": True, "content": json_body(asked)}
        return {"post": {"summary": summary, "requestBody": body, "responses": {"200": response, **bad}}}

    name = {"name": "id", "in": "path", "required": True, "schema": one_of(service.settings.model)}
    paths: dict[str, Any] = {
        "/": get("A page to chat with the model", None, "text/html; charset=utf-8"),
        "/watch": get("The status page", None, "text/html; charset=utf-8"),
        "/status": get("What the status page shows", ref("Status")),
        "/health": get("Whether requests are taken on", ref("Health")),
        "/metrics": get("Figures for Prometheus", None, "text/plain"),
        "/openapi.json": get("This description", THING),
        "/v1/models": get("The model, for OpenAI's, Anthropic's and Codex's clients", ref("Models")),
        "/v1/models/{id}": get("The model", ref("Model"), parameters=[name]),
        "/tokenizer_info": get("The tokenizer's control tokens", ref("TokenizerInfo")),
        "/tokenize": post("Text to token ids", ref("TokenizeRequest"), ref("Tokens")),
        "/detokenize": post("Token ids to text", ref("DetokenizeRequest"), ref("Text")),
    }
    for api in service.apis:
        if api.path in GENERATES:
            summary, asked, answered = GENERATES[api.path]
            paths[api.path] = post(summary, ref(asked), ref(answered), streams=True)
        elif api.name == "count_tokens":
            paths[api.path] = post("Tokens of a message request", ref("MessagesRequest"), ref("TokenCount"))
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "ds4-server", "version": __version__, "description": "docs/reference/server.md"},
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }
    if service.access.key:
        schemes = {"bearer": {"type": "http", "scheme": "bearer"},
                   "header": {"type": "apiKey", "in": "header", "name": "x-api-key"}}  # fmt: skip
        description["components"] = {"schemas": SCHEMAS, "securitySchemes": schemes}
        description["security"] = [{"bearer": []}, {"header": []}]
    return description


def json_body(schema: Schema) -> dict[str, Any]:
    """Return the OpenAPI ``content`` of a JSON body with ``schema``."""
    return {"application/json": {"schema": schema}}
