"""API stage: how many tokens each kind of message adds to a prompt, against the checkpoint's own chat template.

Compared are differences of ``usage.prompt_tokens`` between two requests, so that a constant offset (a system text of
the server's own) does not matter. A server may render May's format as ds4 does or as DeepSeek's encoder does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ds4ref.conformance.talk import NotOffered, Skip, Wrong, shown
from ds4ref.errors import TextError
from ds4ref.targets import Message, ToolCall
from ds4ref.text.prompts import prompt_of

from .api_formats import TOOLS, on
from .examination import Stage
from .identify.shapes import TEMPLATES, Render
from .wire import BROKEN, UNSURE, Subject, Unsure, Wire

FORMATS = {name: [each.render for each in TEMPLATES if each.name == name] for name in ("may", "0731", "v4.1")}
"""Ways to render each checkpoint's format."""
USER, MORE = Message("user", "Name three rivers."), Message("user", "And three lakes?")
SYSTEM, SAID = Message("system", "Answer in one word."), Message("assistant", "The Nile, the Rhine and the Elbe.")


def _turn(*calls: tuple[str, str]) -> list[Message]:
    """Return an answer with calls of ``weather`` for cities, and the results."""
    made = tuple(ToolCall("weather", f'{{"city": "{city}", "tomorrow": true}}', f"call_{city}") for city, _ in calls)
    return [Message("assistant", "", calls=made),
            *(Message("tool", text, result_ids=(f"call_{city}",)) for city, text in calls)]  # fmt: skip


ONE, TWO = _turn(("Oslo", "Cloudy.")), _turn(("Oslo", "Cloudy."), ("Lima", "Sunny, 20 degrees."))
Shape = tuple[Sequence[Message], int, str]
"""A prompt: messages, number of declared tools, effort."""
KINDS: dict[str, tuple[Shape, Shape]] = {
    "user": (([Message("user", "Name three rivers and four lakes.")], 0, "none"), ([USER], 0, "none")),
    "system": (([SYSTEM, USER], 0, "none"), ([USER], 0, "none")),
    "second turn": (([USER, SAID, MORE], 0, "none"), ([USER], 0, "none")),
    "thinking": (([USER], 0, "high"), ([USER], 0, "none")),
    "effort low": (([USER], 0, "low"), ([USER], 0, "none")),
    "effort max": (([USER], 0, "max"), ([USER], 0, "none")),
    "tools list": (([USER], 1, "none"), ([USER], 0, "none")),
    "second tool": (([USER], 2, "none"), ([USER], 1, "none")),
    "tool call and result": (([USER, *ONE], 1, "none"), ([USER], 1, "none")),
    "second call and result": (([USER, *TWO], 1, "none"), ([USER, *ONE], 1, "none")),
    "user after a result": (([USER, *ONE, SAID, MORE], 1, "none"), ([USER, *ONE], 1, "none")),
}
"""By kind of message, the prompt that has one more of it, and the one that has not."""
NEAR = 16
"""Number of tokens by which a tools list may differ and still be meant as the checkpoint's."""
PLAIN = ("user", "system", "second turn")
"""Kinds that a chat template of another family determines, too."""


def _schema(number: int) -> list[str]:
    return [json.dumps(tool["function"], ensure_ascii=False) for tool in TOOLS[:number]]


def formats(wire: Wire) -> tuple[str, Sequence[Render]]:
    """Return (name of the chat format that is right, ways to render it); ("", ()) if it is not known."""
    name, tokenizer = wire.case.served.value("profile"), wire.case.tokenizer
    if tokenizer is None or wire.case.same_model is False:
        return "", ()
    if tokenizer.template is not None and name in (None, "own"):
        return "the model's own", [partial(prompt_of, None)]
    if name is None or (name == "unknown" and wire.case.same_model is True):
        name = "may" if tokenizer.profile is None else tokenizer.profile.name
    return (name, FORMATS[name]) if name in FORMATS else ("", ())


def expected(wire: Wire, shape: Shape, render: Render) -> int:
    """Return the number of tokens of a prompt in a chat format."""
    messages, tools, effort = shape
    assert wire.case.tokenizer is not None
    return len(render(messages, _schema(tools), effort).encode(wire.case.tokenizer))


def counted(wire: Wire, shape: Shape, again: bool = False) -> int:
    """Return the number of tokens that the server counts in a prompt."""
    messages, tools, effort = shape
    more = {"tools": TOOLS[:tools]} if tools else {}
    sent = [wire.target.dialect.message(message) for message in messages]
    count = wire.chat(sent, again, max_tokens=1, **more, **({} if effort == "none" else on(wire, effort))).usage.prompt
    if count is None:
        raise NotOffered("no prompt_tokens")
    return count


def prompts(wire: Wire, stage: Stage) -> None:
    """Compare the tokens that each kind of message adds with the right chat format."""
    name, ways = formats(wire)

    def added(attempt: int, kind: str) -> str:
        longer, shorter = KINDS[kind]
        got = counted(wire, longer, attempt > 0) - counted(wire, shorter, attempt > 0)

        def differs(way: Render, effort: str = "") -> int:
            effort = effort or longer[2]
            return expected(wire, (*longer[:2], effort), way) - expected(wire, shorter, way)

        right = _all(differs, ways)
        if longer[2] == "max":  # in a short context, or by a server that knows two efforts
            right += _all(partial(differs, effort="high"), ways)
        if got in right:
            return f"{got} tokens"
        others = [other for other, rest in FORMATS.items() if name in FORMATS and got in _all(differs, rest)]
        about = f", as {others[0]}'s does" if others else ""
        message = (
            f"adds {got} tokens{about}, where the format {name} adds {' or '.join(map(str, dict.fromkeys(right)))}"
        )
        if kind == "tools list" and not others and got and min(abs(got - one) for one in right) > NEAR:
            raise Unsure(f"{message}: other instructions, perhaps on purpose")
        if kind.startswith("effort") or kind == "thinking" and got == 0:
            raise Unsure(message)
        raise Wrong(message)

    limit = "counts cannot tell one marker from another, or one text from another of the same length"
    step = "Print the prompt as your server renders it, and compare it with docs/explanation/text.md 3"
    with Subject(wire, stage, "prompt tokens", step, limit=limit, cause="template") as rows:
        if not ways:
            rows.check("prompt tokens", _unknown)
            return
        for kind in KINDS if name in FORMATS else PLAIN:
            rows.check(kind, partial(added, kind=kind))
        if rows.names(BROKEN) and (wire.case.tokenizer_wrong or "user" in rows.names(BROKEN)):
            for row in rows.names(BROKEN):
                rows.rows[row] = UNSURE, f"{rows.rows[row][1]}; the tokenizer is another, too"


def _unknown(attempt: int) -> str:
    raise NotOffered("which chat format is right is not known")


def _all(measure: Callable[[Render], int], ways: Sequence[Render]) -> list[int]:
    """Return the results of ``measure`` for the ways of rendering that the vocabulary has tokens for."""
    out = []
    for way in ways:
        try:
            out.append(measure(way))
        except TextError:
            continue
    return out


def prefix(wire: Wire, stage: Stage) -> None:
    """Check that an answer's beginning, given as the last message, is continued."""
    prompt, text = wire.prompt, wire.base.text
    words = [at for at, char in enumerate(text) if char == " " and at > 2]
    start = text[: words[len(words) // 2]] if words else ""

    def continued(attempt: int, of_message: dict[str, Any], of_request: dict[str, Any]) -> str:
        if not start:
            raise Skip("no answer is long enough")
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": start, **of_message}]
        reply = wire.chat(messages, attempt > 0, **of_request)
        rest = text[len(start) :].strip()
        if reply.text.strip() and (rest.startswith(reply.text.strip()) or reply.text.strip().startswith(rest)):
            return shown(reply.text)[:40]
        raise NotOffered(f"it begins another answer: {shown(reply.text)[:60]!r}")

    with Subject(
        wire, stage, "prefix", limit="an answer that the model would have begun otherwise is not told apart"
    ) as rows:
        rows.check("prefix", partial(continued, of_message={"prefix": True}, of_request={}))
        more = {"continue_final_message": True, "add_generation_prompt": False}
        rows.check("continue_final_message", partial(continued, of_message={}, of_request=more))
