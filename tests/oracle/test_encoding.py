"""Prompts and answers of profiles 0731 and v4.1 against DeepSeek's own encoder and parser, on drawn cases.

Conversations are those that the API takes: each call has its results, in any order, directly after it. Outputs hold
pieces of markup in any order, and calls with one tag spoiled, cut anywhere. Left out are the start of a marker with a
newline behind it, after which the official parser forgets that newlines before a block are dropped, and names with a
space, which it cuts off there.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall
from ds4ref.text.dsml_events import ArgumentsDelta, CallStart, Event, ReasoningDelta, TextDelta
from ds4ref.text.official import PROFILES, Chat, Tool, loads, render, strict_schema
from ds4ref.text.official_parser import OfficialParser
from ds4ref.text.protocol import DSML

recipe = pytest.importorskip("deepseek_recipe")
pytestmark = pytest.mark.oracle

ENCODINGS = {
    "0731": (recipe.DeepseekV4Encoding, recipe.ModelVersion.DeepseekV4Pro),
    "v4.1": (recipe.DeepseekV41Encoding, recipe.ModelVersion.DeepseekV41Flash),
}
BLOCKS, CASES = range(20), 50
TEXTS = ["", "a", "two\nlines", " x ", "é中😀", "<think>", "</think>", f"<{DSML}tool_calls>", "\n\n", "\u2028\x00"]
VALUES: list[Any] = [
    "v", "", "a\nb", '"q" \\', f"</{DSML}parameter>", 1, -7, 2.5, 1e5, 1e-5, 1.5e-6, 1e-7, 1e16, 1e22,
    123456789012345678,
    True, None, [], [1, "x", {"k": [2.0]}], {}, {"é": "中", "a": None},
]  # fmt: skip
ARGUMENTS = ["", "city=Oslo", "[1]", '"s"', '{"a": 1e400}', '{"i": 18446744073709551616}', '{"m": -0}', ' {"a" : 1 } ']
STAGES = {"R": "ReasoningStart", "C": "ReasoningContinuation", "A": "ContentContinuation", None: None}


def conversation(draw: random.Random) -> tuple[Chat, dict[str, Any]]:
    """Return a drawn conversation, ours and the arguments of theirs."""
    ours: list[Message] = []
    theirs: list[Any] = []
    thinking, effort = draw.random() < 0.7, draw.choice(["low", "high", "max"])
    reasons = ["", "r", "r\n"] if thinking else [""]  # the API drops reasoning where thinking is off
    tools = [(f"tool_{i}", draw.choice(TEXTS[:5]), {"type": "object", "properties": draw.choice(VALUES[-2:])})
             for i in range(draw.choice([0, 0, 1, 3]))]  # fmt: skip

    def add(role: str, text: str, made: Any, **more: Any) -> None:
        ours.append(Message(role, text, **more))
        theirs.append(made)

    for turn in range(draw.randint(1, 5)):
        for _ in range(draw.choice([0, 0, 1, 2])):
            text = draw.choice(TEXTS[1:])
            add("system", text, recipe.SystemMessage(text))
        if draw.random() < 0.2:
            text = draw.choice(TEXTS)
            add("latest_reminder", text, recipe.LatestReminderMessage(text))
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            text = draw.choice(TEXTS)
            add("user", text, recipe.UserMessage(text))
        if draw.random() < 0.7:
            ids = [f"c{turn}{i}" for i in range(draw.choice([0, 0, 1, 2, 3]))]
            calls = [(i, draw.choice(["f", "g-2"]), arguments(draw)) for i in ids]
            text, reasoning = draw.choice(TEXTS), draw.choice(reasons)
            made = recipe.AssistantMessage(
                text, reasoning if thinking else None, [recipe.ToolCall(*call) for call in calls] or None, False
            )
            add("assistant", text, made, reasoning=reasoning, calls=tuple(ToolCall(n, a, i) for i, n, a in calls))
            for i in draw.sample(ids, len(ids)):
                text = draw.choice(TEXTS)
                add("tool", text, recipe.ToolMessage(text, i), result_ids=(i,))
    if not tools and draw.random() < 0.2:
        text, reasoning = draw.choice(TEXTS[:5]), draw.choice(reasons[:2])
        add(
            "assistant",
            text,
            recipe.AssistantMessage(text, reasoning if thinking else None, None, True),
            reasoning=reasoning,
            prefix=True,
        )
    choice = draw.choice(["auto", "none", "required"]) if tools and not thinking else "auto"
    wanted = draw.choice([None, None, "json_object", {"type": "object", "a": draw.choice(VALUES)}])
    more: dict[str, Any] = {"response_format": wanted} if isinstance(wanted, str) else {}
    more |= {"response_schema": wanted} if isinstance(wanted, dict) else {}
    chat = Chat(ours, [Tool(*tool) for tool in tools], thinking, effort, choice, wanted)
    return chat, {
        "messages": theirs, "tools": [recipe.ToolDefinition(*tool, None, False) for tool in tools] or None,
        "thinking_mode": thinking, "reasoning_effort": effort, "tool_choice": choice, **more,
    }  # fmt: skip


def arguments(draw: random.Random) -> str:
    if draw.random() < 0.2:
        return draw.choice(ARGUMENTS)
    return json.dumps(
        {name: draw.choice(VALUES) for name in draw.sample("abcd", draw.randint(0, 3))}, ensure_ascii=False
    )


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("profile", PROFILES)
def test_prompts(profile: str, block: int) -> None:
    encoding = ENCODINGS[profile][0]()
    draw = random.Random(f"prompts {profile} {block}")
    for _ in range(CASES):
        chat, more = conversation(draw)
        wanted = encoding.render_conversation(recipe.Conversation(more.pop("messages"), **more)).prompt
        assert render(chat, PROFILES[profile], escapes=False).text == wanted


NUMBERS = [0, -1, 7, 2.5, "1", None, True, 1e300, 1 << 63, 1 << 64]
KEYWORDS: dict[str, list[Any]] = {
    "description": ["d", "", None, 1], "pattern": ["^a", None, 1], "enum": [["x"], [], None, "x", [1]],
    "format": ["email", "hostname", "ipv4", "ipv6", "uuid", "date", None], "title": ["t"], "minLength": [1],
    "const": NUMBERS, "default": NUMBERS, "minimum": NUMBERS, "maximum": NUMBERS, "multipleOf": NUMBERS,
    "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS, "additionalProperties": [False, None, True, {}],
    "$ref": ["#/$defs/a", 1],
}  # fmt: skip
TYPES = ["string", "number", "integer", "boolean", "null", "array", "object", "date", ["string", "null"], ["object"], 1]


def schema(draw: random.Random, depth: int = 0) -> Any:
    """Return a drawn schema; about half of them is refused."""
    rarely = draw.random() < 0.03
    if depth > 2 or depth and rarely:
        return draw.choice([{"type": "string"}, {"type": "object"}, {}, True, None])
    kinds = TYPES if rarely else TYPES[:7]
    kind = draw.choice(kinds) if depth else "object"
    made: dict[str, Any] = {name: draw.choice(KEYWORDS[name][: None if rarely else 2])
                            for name in draw.sample([*KEYWORDS], draw.choice([0, 1, 3]))}  # fmt: skip
    if not depth or draw.random() < 0.85:
        made["type"] = kind
    if depth and draw.random() < 0.2:
        made["anyOf"] = [schema(draw, depth + 1) for _ in range(draw.randint(0, 2))]
    if kind == "array":
        made["items"] = schema(draw, depth + 1)
    if kind == "object":
        made["properties"] = {name: schema(draw, depth + 1) for name in draw.sample("abcd", draw.randint(0, 3))}
        names = list(made["properties"])
        choices = [names, None, ["a"]] if rarely else [names]
        made |= {"required": draw.choice(choices)} if draw.random() < 0.7 else {}
    return dict(draw.sample(list(made.items()), len(made)))


@pytest.mark.parametrize("block", BLOCKS)
def test_strict_tools(block: int) -> None:
    draw, shown = random.Random(f"strict {block}"), 0
    for _ in range(CASES):
        parameters = schema(draw)
        tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
        body = {"model": "DeepSeek-V4-Pro", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
        try:
            request = recipe.ChatCompletionRequest(json.dumps(body)).convert(recipe.ConversionOptions())
        except recipe.ConversionError:
            with pytest.raises(ValueError):
                strict_schema(loads(json.dumps(parameters)))
            continue
        shown += 1
        ours = strict_schema(loads(json.dumps(parameters)))
        assert json.dumps(ours) == json.dumps(request.conversation.tools[0].parameters), parameters
    assert shown > CASES / 5


PIECES = [
    "a", "b ", "\n", "\n\n", " ", "</", "think>", "</think>", "<think>", DSML, f"<{DSML}", f"</{DSML}", "tool_calls>",
    " calls>", f"\n\n<{DSML}tool_calls>\n", f"\n\n<{DSML} calls>\n", f'<{DSML}invoke name="f">\n',
    f'<{DSML} invoke name="g h">\n', f'<{DSML}parameter name="k" string="true">',
    f'<{DSML} parameter name="l-2" string="false">', f"</{DSML}parameter>\n", f"</{DSML}invoke>\n",
    f"</{DSML}tool_calls>", f"</{DSML} calls>", '"', "\\", "é", "\t", '{"x": [1]}', "中😀", ' string="true">', 'name="',
    "invoke", ">", "\x01", "\u2028",
]  # fmt: skip


LEFT_OUT = re.compile(r'</?[｜DSML]*\n|parameter name=(?!"[^" ]*(?:" |"?$))')


def output(draw: random.Random) -> str:
    if draw.random() < 0.5:
        return "".join(draw.choices(PIECES, [3] * 5 + [1] * (len(PIECES) - 5), k=draw.randint(0, 14)))
    space = draw.choice(["", " "])
    end = " calls>" if space else "tool_calls>"
    text = draw.choice(["r</think>", "r\n</think>\n\n", "", "hm\n\n"]) + draw.choice(["", "Text", "Text\n", "a\nb "])
    text += f"\n\n<{DSML}{end}\n"
    for _ in range(draw.randint(1, 3)):
        text += f'<{DSML}{space}invoke name="{draw.choice(["f", "get-x", "é"])}">\n'
        for i in range(draw.randint(0, 3)):
            value = "".join(
                draw.choices([*PIECES[:5], '"', "\\", "é", '{"x": [1]}', "&lt;", "x y"], k=draw.randint(0, 5))
            )
            kind = draw.choice(["true", "false"])
            text += f'<{DSML}{space}parameter name="a{i}" string="{kind}">{value}</{DSML}{space}parameter>\n'
        text += f"</{DSML}{space}invoke>\n"
    text += f"</{DSML}{end}" + draw.choice(["", "\n", "x"])
    if draw.random() < 0.3:  # a tag that is broken, doubled or somewhere else
        at, size = draw.randrange(len(text)), draw.choice([0, 0, 1, 5, 20])
        text = text[:at] + draw.choice(["", *PIECES]) + text[at + size :]
    return text


def read_officially(pieces: list[str], profile: str, options: dict[str, Any]) -> list[list[tuple[Any, ...]]]:
    """Return (kind, call, text) of what each piece, and the end, brought."""
    request = recipe.ConversationRequest(recipe.Conversation([recipe.UserMessage("x")]), ENCODINGS[profile][1])
    chunks = recipe.ChatCompletionRequest.chunk_generator(request, "id", "m")
    reader = recipe.StreamProcessor(chunks, recipe.ParsingOptions(**options))
    reader.push(recipe.InferenceChunk.ready())
    steps = [reader.push(recipe.InferenceChunk.text(piece, 1)) if not reader.finished else [] for piece in pieces]
    if not reader.finished:
        last = reader.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop))
        steps.append([*last, *reader.finish()])
    read = []
    for step in steps:
        found: list[tuple[Any, ...]] = []
        for chunk in step:
            for choice in json.loads(chunk.to_json()).get("choices", []):
                delta = choice.get("delta") or {}
                found += [(kind, 0, delta[key]) for kind, key in (("r", "reasoning_content"), ("c", "content"))
                          if delta.get(key)]  # fmt: skip
                for call in delta.get("tool_calls") or ():
                    function = call["function"]
                    found += [("n", call["index"], function["name"])] if function.get("name") is not None else []
                    found += [("a", call["index"], function["arguments"])] if function.get("arguments") else []
        read.append(joined(found))
    return read


def as_tuples(events: list[Event]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                found.append(("r", 0, text))
            case TextDelta(text):
                found.append(("c", 0, text))
            case CallStart(index, name):
                found.append(("n", index, name))
            case ArgumentsDelta(index, fragment):
                found.append(("a", index, fragment))
    return joined(found)


def joined(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Join neighbouring texts of one kind."""
    out: list[tuple[Any, ...]] = []
    for event in events:
        if out and out[-1][:2] == event[:2] and event[0] != "n":
            event = (*event[:2], out.pop()[2] + event[2])
        out.append(event)
    return out


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("profile", PROFILES)
def test_outputs(profile: str, block: int) -> None:
    """In single characters the events come with the same character; otherwise they are the same in all."""
    draw = random.Random(f"outputs {profile} {block}")
    for _ in range(CASES):
        text, stage = output(draw), draw.choice([*STAGES])
        while LEFT_OUT.search(text):
            text = output(draw)
        tools, starts = draw.random() < 0.9, stage is None and draw.random() < 0.2
        name = STAGES[stage]
        options = {
            "parse_tool_calls": tools, "starts_in_tool_calls": starts, "parse_json_output": False,
            "thinking_initial_stage": name and getattr(recipe.ThinkingInitialStage, name),
        }  # fmt: skip
        size = draw.choice([1, 2, 3, 7, 1000])
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        parser = OfficialParser(stage in ("R", "C"), tools or starts, stage in ("C", "A"), starts)
        ours = [as_tuples(parser.feed(piece)) for piece in pieces] + [as_tuples(parser.finish())]
        theirs = read_officially(pieces, profile, options)
        if size > 1:
            ours, theirs = ([joined([event for step in steps for event in step])] for steps in (ours, theirs))
        assert ours == theirs, text
