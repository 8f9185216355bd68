"""Code shared by the parsers of several APIs: it turns fields of a request into parts of a turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Raw

from ...errors import TextError
from ...text.chat import THINK_MAX_MIN_CTX, Message, resolve_mode
from ...text.schemas import Schema
from ..api import About, Refused, bad
from ..turn import Api, Choice, Turn
from .requests import Format, Request, Thinking, ToolChoice


def turn_of(
    api: Api,
    request: Request,
    about: About,
    messages: Sequence[Message],
    chosen: tuple[Choice, list[Schema]],
    lengths: Sequence[str],
    **more: Any,
) -> Turn:
    """Return the turn for a conversation, in which known tool calls keep the text that the model wrote.

    chosen     tool choice and tools (``choose``)
    lengths    names of the request's fields that limit the answer's length
    more       further fields of the turn

    Raises Refused if the answer continues a message, but must be JSON or a tool call, which it can only be as a whole.
    """
    choice, tools = chosen
    known = messages if about.tools is None else about.tools.attach(messages)
    turn = Turn(
        api, request.model or "", tuple(known), tuple(tools), max_tokens=request.limit(about, *lengths),
        sampling=request.sampling(), choice=choice, profile=about.profile, **more,
    )  # fmt: skip
    if messages[-1].prefix and (turn.format or choice.kind in ("required", "named")):
        raise bad("an answer that continues a message cannot be held to a format or to a tool call")
    return turn


@contextmanager
def reading() -> Iterator[None]:
    """Context manager that turns TextError into Refused (400)."""
    try:
        yield
    except TextError as error:
        raise bad(str(error)) from None


def given(raw: Raw) -> str | None:
    """Return the JSON text of a request's field, None if it is absent or null."""
    text = bytes(raw).decode()
    return None if text in ("", "null") else text


def needed(raw: Raw, name: str) -> str:
    """Return the JSON text of the request's field ``name``; raises Refused if it is absent or null."""
    text = given(raw)
    if text is None:
        raise Refused(400, f"missing {name}")
    return text


def known_roles(messages: Sequence[Message], *roles: str) -> list[Message]:
    """Return the messages; raise Refused if there are none, or one has a role that is not in ``roles``."""
    if not messages:
        raise bad("there are no messages")
    for message in messages:
        if message.role not in roles:
            raise bad(f"the role {message.role[:100]!r} is not known: choose from {', '.join(roles)}")
    return list(messages)


def check_results(messages: Sequence[Message], error: str) -> None:
    """Raise Refused if a tool result's call is missing; ``error``: the message, with ``{}`` for the call's id."""
    known = {call.id for message in messages for call in message.calls}
    for call_id in (call_id for message in messages for call_id in message.result_ids):
        if call_id not in known:
            raise Refused(400, error.format(call_id[:100]))


def switched(*values: bool | Thinking | None) -> tuple[bool | None, bool]:
    """Return whether thinking is switched on (None: unspecified), and whether any of the fields is there.

    values: the request's fields that switch thinking, None for absent ones; the last that says on or off counts.
    """
    chosen, there = None, [value for value in values if value is not None]
    for value in there:
        on = value if isinstance(value, bool) else {"enabled": True, "disabled": False}.get(value.type or "")
        chosen = chosen if on is None else on
    return chosen, bool(there)


def mode(about: About, effort: str | None, chosen: bool | None, model: str | None, explicit: bool) -> str:
    """Return the thinking mode ("none", "low", "high" or "max") of a request.

    effort     the effort that it asks for
    chosen     whether it switches thinking on or off, None for neither
    model      the model that it names
    explicit   whether it mentions thinking at all

    Only in the prompt format of May, mode "max" needs a large context, and effort "none" overrules the switch.
    """
    ctx = about.ctx
    if about.profile is not None:
        ctx, effort = THINK_MAX_MIN_CTX, None if effort == "none" and chosen else effort
    with reading():
        return resolve_mode(ctx, effort, chosen, model or "", explicit)


def choose(
    asked: str | ToolChoice | None, tools: list[Schema], parallel: bool | None, kinds: Sequence[str]
) -> tuple[Choice, list[Schema]]:
    """Return the tool choice of a request and the tools that it allows.

    asked      the request's ``tool_choice``
    tools      the declared tools
    parallel   whether the request allows several calls at once, None if unspecified
    kinds      types of ``tool_choice`` that name a tool

    Raises Refused for an unknown choice, or if it demands a call of a tool that does not exist.
    """
    kind, name = ("auto" if asked is None else asked if isinstance(asked, str) else asked.type or ""), ""
    if isinstance(asked, ToolChoice):
        if kind == "allowed_tools":
            allowed = asked.allowed_tools or asked
            names = {tool.named for tool in allowed.tools or ()}
            tools, kind = [tool for tool in tools if tool.name in names], allowed.mode or ""
        elif kind in kinds:
            kind, name = "named", asked.named
    if kind not in ("auto", "none", "required", "any", "named"):
        raise Refused(400, f"tool_choice={kind[:100]} not supported")
    ready = {tool.name for tool in tools if tool.callable}
    if kind in ("required", "any", "named") and not ready:
        raise Refused(400, "tool_choice demands a call, but there are no tools")
    if kind == "named" and name not in ready:
        raise Refused(400, f"tool_choice names the tool {name[:100]!r}, which is not among the tools")
    demanded = {"none": "none", "required": "required", "any": "required", "named": "named"}.get(kind, "auto")
    return Choice(demanded, name, parallel is not False), tools  # type: ignore[arg-type]


def schema_format(form: Format | None, where: str) -> str:
    """Return the JSON schema, as text, of the answer format that a request demands: "" for none, "{}" for any object.

    ``where``: name of the request's field, for error messages.
    """
    if form is None or form.type == "text":
        return ""
    if form.type == "json_object":
        return "{}"
    if form.type != "json_schema":
        raise bad(f"type of {where} is {form.type[:100]!r}: choose from text, json_object, json_schema")
    schema = given((form.json_schema or form).schema) or "{}"
    if schema not in ("true", "false") and not schema.startswith("{"):
        raise bad(f"schema of {where} is not a JSON object")
    return schema
