"""API stage: formats of answers (JSON schemas), tool calls at every effort, and limits of reasoning.

A call is lost if its complete markup is in the text or the reasoning, or if the scored tokens spell more calls than the
answer reports. That a model calls nothing is no fault of the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ds4ref.conformance.talk import NotOffered, Skip, Wrong, shown
from ds4ref.text.dsml_parser import DsmlParser

from ..finding import Outcome
from .examination import Stage
from .schemas import CORPUS, SchemaCase, fault
from .wire import BROKEN, HELD, UNSURE, Json, Reply, Subject, Unsure, Wire, names_of

CITIES = ("Oslo", "Paris", "Lima")


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def tool(name: str, description: str, parameters: Json, **more: Any) -> Json:
    """Return the declaration of a tool."""
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters, **more},
    }


TOOLS = [
    tool("weather", "The weather of a city.", _object(city={"type": "string", "enum": [*CITIES]},
                                                      tomorrow={"type": "boolean"})),
    tool("clock", "The time of a city.", _object(city={"type": "string", "enum": [*CITIES]})),
]  # fmt: skip
ASK = "What will the weather be in Oslo and in Paris tomorrow? Call the tool weather once for each city."
SIMPLE = _object(answer={"type": "string", "enum": ["yes", "no"]}, sure={"type": "boolean"})
ROOM = 400
"""Length of answers with calls or JSON, in tokens."""
FIRST = 4
"""Number of schemas after which a server that has held none of them is not asked for more."""
BUDGETS = ("thinking_token_budget", "thinking_budget", "reasoning_budget", "thinking_budget_tokens")
"""Names of the field for the number of tokens of reasoning, by server."""
BUDGET, OVER = 8, 32
"""Budget of reasoning that is tried, and by how many tokens it may be exceeded (a closing sentence)."""


def form(schema: Json) -> Json:
    """Return the request fields that ask for an answer that fits ``schema``."""
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "form", "strict": True, "schema": schema}}
    }


def on(wire: Wire, effort: str) -> Json:
    """Return the request fields that switch reasoning on, or off for the effort "none"."""
    if effort == "none":
        return wire.off
    opposite: Json = dict.fromkeys(wire.off)
    if "chat_template_kwargs" in wire.off:
        opposite["chat_template_kwargs"] = dict.fromkeys(wire.off["chat_template_kwargs"], True)
    return {**opposite, **wire.target.dialect.switch(effort), "reasoning_effort": effort}


# --- JSON schemas


def _fits(schema: Json, text: str) -> str:
    """Raise Wrong unless ``text`` is JSON that fits ``schema``."""
    try:
        value = json.loads(text)
    except ValueError:
        raise Wrong(f"not JSON: {shown(text)[:80]!r}") from None
    if why := fault(schema, value):
        raise Wrong(why)
    return ""


def _begins(schema: Json, text: str) -> None:
    """Raise Wrong unless an unfinished ``text`` begins an object with a member that ``schema`` allows."""
    key = re.match(r'\s*\{\s*"((?:[^"\\]|\\.)*)', text, re.DOTALL)
    try:
        begun = key is None or any(name.startswith(json.loads(f'"{key[1]}"')) for name in schema["properties"])
    except ValueError:  # cut inside an escape
        begun = True
    if not begun or key is None and not re.fullmatch(r"\s*(\{\s*)?", text):
        raise Wrong(f"not its beginning: {shown(text)[:80]!r}")


def _answered(wire: Wire, case: SchemaCase, attempt: int) -> str:
    """Ask for a value that does not fit, under the schema; raise Wrong if the answer does not fit either."""
    text = f"Reply with exactly this JSON and nothing else: {json.dumps(case.invalid, ensure_ascii=False)}"
    reply = wire.chat(text, attempt > 0, max_tokens=ROOM, **form(case.schema))
    if reply.finish == "length":
        _begins(case.schema, reply.text)
        raise Skip(f"not finished after {ROOM} tokens")
    return _fits(case.schema, reply.text)


def _called(wire: Wire, case: SchemaCase, attempt: int) -> str:
    """The same for the arguments of a tool that has to be called."""
    tools = [tool("submit", "Takes a value.", case.schema, strict=True)]
    text = f"Call the tool submit with exactly these arguments: {json.dumps(case.invalid, ensure_ascii=False)}"
    choice = {"type": "function", "function": {"name": "submit"}}
    reply = wire.chat(text, attempt > 0, max_tokens=ROOM, tools=tools, tool_choice=choice)
    if not reply.calls or reply.finish == "length":
        raise Skip("no call" if not reply.calls else f"not finished after {ROOM} tokens")
    return _fits(case.schema, reply.calls[0][2])


def answers(wire: Wire, stage: Stage) -> None:
    """Check that answers fit the schemas of the corpus."""
    _held(wire, stage, "JSON schemas", _answered, 1, "response_format")


def arguments(wire: Wire, stage: Stage) -> None:
    """Check that the arguments of a demanded strict tool fit its schema; a server without a grammar for them ignores
    ``strict``."""
    rows = _held(wire, stage, "tool schemas", _called, 1 if wire.case.long else 3)
    if len(rows.names(BROKEN)) > len(rows.names(HELD)):
        stage.checks[-1].outcome = Outcome.UNSURE
        stage.checks[-1].notes.append("strict is not enforced: arguments are the model's")


def _held(wire: Wire, stage: Stage, name: str, run: Callable[..., str], every: int, field: str = "") -> Subject:
    """Add the finding of one use of the corpus, of which every ``every``-th schema is asked for.

    field: the field that carries the schema; a server that takes any value of it does not know it
    """
    cases = [case for case in CORPUS if case.quick or not wire.case.quick][::every]
    limit = "a model that would fit the schema by itself hides that it is ignored"
    step = "Ask with curl for one of these schemas (test_vectors/prompts/schemas.jsonl): is the grammar built from it?"
    with Subject(wire, stage, name, step, limit=limit) as rows:
        for case in cases:
            rows.check(case.name, partial(run, wire, case))
            if len(rows.rows) == FIRST and not rows.names(HELD):
                break
        if field and rows.names(BROKEN) and not rows.names(HELD) and not wire.known(field):
            for row in rows.names(BROKEN):
                rows.rows[row] = UNSURE, f"{field} has no effect, and any value of it is taken: {rows.rows[row][1]}"
    return rows


# --- tool calls


def written(text: str, names: Sequence[str]) -> list[str]:
    """Return the names of complete calls of declared tools that ``text`` spells as markup, in DSML or as JSON."""
    parser = DsmlParser(False)
    parser.feed(re.sub(r"(</?\uff5cDSML\uff5c) ", r"\1", text).replace("DSML\uff5ccalls>", "DSML\uff5ctool_calls>"))
    parser.finish()
    calls = [call.name for call in parser.result.calls] if parser.result.complete else []
    for match in re.finditer(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", text, re.DOTALL):
        try:
            calls.append(str(json.loads(match[1]).get("name")))
        except (ValueError, AttributeError):
            continue
    return [name for name in calls if name in names]


def checked(reply: Reply, tools: Sequence[Json], choice: str) -> str:
    """Raise Wrong if a call is lost, cut, or not told by the finish reason."""
    names, cut = names_of(tools), reply.finish == "length"
    for where, text in (("content", reply.text), ("reasoning", reply.reasoning)):
        if lost := written(text, names):
            raise Wrong(
                f"a call of {lost[0]} is in the {where}: {shown(text)[:60]!r}, {len(reply.calls)} calls reported"
            )
    spelled = written((reply.raw or b"").decode("utf-8", "replace").rpartition("</think>")[2], names)
    if len(spelled) > len(reply.calls) and not cut:
        raise Wrong(f"the model wrote {len(spelled)} calls, {len(reply.calls)} are reported")
    if reply.finish == "tool_calls" and not reply.calls:
        raise Wrong("finish_reason tool_calls without a call")
    if not reply.calls:
        if choice != "auto" and not cut:
            raise Unsure(f"tool_choice {choice} is not followed: {shown(reply.text)[:60]!r}")
        raise Skip("no call")
    for number, name, arguments in reply.calls:
        if not number or not name:
            raise Wrong(f"a call without id or name: {shown([number, name])}")
        if not cut and not isinstance(_value(arguments), dict):
            raise Wrong(f"arguments of {name} are no JSON object: {shown(arguments)[:60]!r}")
    if len({number for number, _, _ in reply.calls}) < len(reply.calls):
        raise Wrong("two calls with one id")
    if not cut and reply.finish not in (("tool_calls", "stop") if choice == "named" else ("tool_calls",)):
        raise Wrong(f"finish_reason {reply.finish!r} with {len(reply.calls)} calls")
    return f"{len(reply.calls)} calls"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


CHOICES: dict[str, Any] = {
    "auto": "auto", "required": "required", "named": {"type": "function", "function": {"name": "weather"}}
}  # fmt: skip


def calls(wire: Wire, stage: Stage) -> None:
    """Ask for calls at every effort, with every choice; more than one call, and one at most."""

    def ask(attempt: int, effort: str, choice: str, **more: Any) -> str:
        asked = {"max_tokens": ROOM, "tools": TOOLS, "tool_choice": CHOICES[choice], **on(wire, effort), **more}
        try:
            reply = wire.chat(ASK, attempt > 0, logprobs=True, top_logprobs=2, **asked)
        except NotOffered:
            reply = wire.chat(ASK, attempt > 0, **asked)
        result = checked(reply, TOOLS, choice)
        if more.get("parallel_tool_calls") is False and len(reply.calls) > 1:
            raise Unsure(f"parallel_tool_calls false, and {len(reply.calls)} calls")
        return result

    limit = (
        "only calls that the model makes are seen; a call whose markup is nowhere in the answer needs log probabilities"
    )
    step = ("Look at the raw text of the answer: the reasoning's end and the calls' markup are parsed by the server "
            "(vllm#53831: calls lost at high effort)")  # fmt: skip
    with Subject(wire, stage, "tool calls", step, limit=limit) as rows:
        for effort in ("none", "max") if wire.case.quick else ("none", "low", "high", "max"):
            for choice in CHOICES if effort == "none" or rows.names(HELD) else ("auto",):
                rows.check(f"effort {effort}, {choice}", partial(ask, effort=effort, choice=choice))
        if rows.names(HELD):
            rows.check("one call at most", partial(ask, effort="none", choice="required", parallel_tool_calls=False))


# --- reasoning


def thinking(wire: Wire, stage: Stage) -> None:
    """Check that reasoning can be switched off, and that a budget that the server knows ends it."""

    def length(reply: Reply) -> int:
        if reply.usage.reasoning is not None:
            return reply.usage.reasoning
        tokenizer = wire.case.tokenizer
        return len(reply.reasoning) // 4 if tokenizer is None else len(tokenizer.encode(reply.reasoning))

    def off(attempt: int, fields: Json) -> str:
        cleared: Json = dict.fromkeys(wire.off)
        reply = wire.chat(ASK, attempt > 0, **{**cleared, **fields})
        if reply.reasoning:
            raise Unsure(f"reasoning all the same: {shown(reply.reasoning)[:60]!r}")
        return ""

    def apart(attempt: int) -> str:
        reply = wire.chat(ASK, attempt > 0, max_tokens=160, **on(wire, "high"))
        if not reply.reasoning and "</think>" in reply.text.strip():
            raise Unsure(f"reasoning in the content: {shown(reply.text)[:60]!r}")
        return f"{length(reply)} tokens of reasoning"

    def budget(attempt: int, field: str) -> str:
        asked = {"max_tokens": 160, **on(wire, "high")}
        prompts = (ASK, "Prove that there are infinitely many primes.", "Name three rivers.")
        free, prompt = max((length(wire.chat(text, **asked)), text) for text in prompts)
        if free < BUDGET + 2 * OVER:
            raise Skip(f"{free} tokens of reasoning without a budget: too few to tell")
        if not wire.known(field):
            raise NotOffered("the server does not know this field")
        used = length(wire.chat(prompt, attempt > 0, **asked, **{field: BUDGET}))
        if used > BUDGET + OVER:
            raise Wrong(f"{used} tokens of reasoning where {BUDGET} are the budget ({free} without one)")
        return f"{used} tokens of reasoning where {BUDGET} are the budget, {free} without one"

    with Subject(
        wire, stage, "reasoning", "Send the request with and without the budget, and count reasoning_content"
    ) as rows:
        for name, fields in (("reasoning_effort none", {"reasoning_effort": "none"}),
                             ("thinking disabled", {"thinking": {"type": "disabled"}})):  # fmt: skip
            rows.check(name, partial(off, fields=fields))
        rows.check("reasoning apart", apart)
        for field in BUDGETS:
            rows.check(field, partial(budget, field=field))
