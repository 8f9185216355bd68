"""API stage: does the server do what a request of the chat completions API asks for, whatever its model answers.

Judged is the server, never how good the answers are: limits, stop strings, streams, counts and log probabilities by
other answers of the same server; formats and tool calls by their syntax (``api_formats``); prompts by the chat template
of the checkpoint (``api_prompts``). A 4xx means not supported, which is not wrong. Other APIs of the server are left to
``ds4-server smoke``, whose checks of plain HTTP this stage runs, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from ds4ref.conformance.checks import chat, tried
from ds4ref.conformance.checks.shared import PROMPTS
from ds4ref.conformance.talk import NotOffered, Skip, Wrong, shown
from ds4ref.targets.openai import HttpTarget

from ..finding import Outcome, counted
from . import api_formats, api_prompts
from .case import ExamContext
from .examination import Stage
from .wire import PATH, Json, Reply, Subject, Unsure, Wire, token_bytes

CONFORMANCE = ("document", "developer", "parts", "unknown_fields", "stream_order", "stream_done", "tool_none",
               "limit_completion")  # fmt: skip
"""Checks of ``ds4-server smoke`` that this stage runs: those that the rest of it does not cover."""
STREAM: Json = {"stream": True, "stream_options": {"include_usage": True}}
SCORES: Json = {"logprobs": True, "top_logprobs": 2}
END = 12
"""Characters at the end of an answer that no stop string is taken from: the limit of tokens may end it as well."""
HUGE = 2**31 - 1
UNSEEN = 3
"""Number of generated tokens without text (the end of the answer, control tokens) that may have no log probability."""
SLACK = 0.02
"""Nats by which a chosen token's log probability may differ from that of its own alternative: decimals of APIs."""
STEPS = {
    "parameters": "Send the request by hand with curl, with this one field changed",
    "stop strings": "Match stop strings in the decoded text, not in tokens, and hold back text that may begin one",
    "streams": "Compare the concatenated deltas of a stream with the message of the same request",
    "usage": "Count the whole prompt, cached or not, and every generated token",
    "log probabilities": "Concatenate logprobs.content[].bytes: they are the message's content",
}


def api(case: ExamContext, stage: Stage, only: Collection[str] = ()) -> None:
    """Run all subjects, or those in ``only``; each becomes one or two findings with a row for each check."""
    if not isinstance(case.target, HttpTarget) or "chat" not in case.kinds:
        stage.add("api", Outcome.IMPOSSIBLE, "the target has no chat completions over HTTP")
        return
    wire = Wire(case)
    try:
        wire.settle()
        wire.prompt = max(PROMPTS, key=lambda text: len(wire.chat(text).text))
        wire.base = wire.chat(wire.prompt, again=True)
    except (NotOffered, Wrong, Skip) as error:
        stage.add("api", Outcome.IMPOSSIBLE, f"no plain chat is answered: {error}")
        return
    for name, run in SUBJECTS.items():
        if not only or name in only:
            run(wire, stage)
    if wire.failed:
        says = (
            f"{counted(len(wire.failed), 'request')} refused as the server's own failure: {[*wire.failed.values()][0]}"
        )
        outcome = Outcome.WRONG if len(wire.failed) > 1 else Outcome.UNSURE
        stage.add("status of refusals", outcome, says, next=["Answer 400 or 422 to what the server does not take"])


def _usage(wire: Wire, stage: Stage) -> None:
    """Check token counts: totals, cached prompts, and that an answer's limit and its finish reason agree."""
    prompt, base = wire.prompt, wire.base

    def total(attempt: int) -> str:
        used = base.usage
        if used.prompt is None or used.completion is None:
            raise NotOffered("the answers have no usage")
        if base.total is not None and base.total != used.prompt + used.completion:
            raise Wrong(f"total {base.total}, prompt {used.prompt}, completion {used.completion}")
        return f"prompt {used.prompt}, completion {used.completion}"

    def cached(attempt: int, stream: Json) -> str:
        text = f"{next(wire.salts)} {wire.case.limit.seconds_left:.3f}. " + "The mill stood by the river. " * 24
        counts = [
            wire.chat(text + end, True, max_tokens=2, **stream).usage for end in ("", "", "And then?", "And then?")
        ]
        if None in (numbers := [one.prompt for one in counts]):
            raise NotOffered("no prompt_tokens")
        if numbers[0] != numbers[1] or numbers[2] != numbers[3] or numbers[0] >= numbers[2]:  # type: ignore[operator]
            raise Wrong(f"prompt tokens {numbers}: new, again, longer, again")
        if any((one.cached or 0) > (one.prompt or 0) for one in counts):
            raise Wrong(f"more cached tokens than prompt tokens: {counts}")
        return f"prompt tokens {numbers}, cached {[one.cached for one in counts]}"

    def cut(attempt: int, most: int) -> str:
        reply = wire.chat(prompt, max_tokens=most)
        count = reply.usage.completion
        if count is not None and count > most:
            raise Wrong(f"{count} completion tokens where max_tokens is {most}")
        if reply.entries and len(reply.entries) > most:
            raise Wrong(f"{len(reply.entries)} tokens where max_tokens is {most}")
        if reply.finish == "length" and count is not None and count < most:
            raise Wrong(f"finish_reason length with {count} completion tokens of {most}")
        longer = base.text.startswith(reply.text.rstrip()) and len(base.text) > len(reply.text) + 1
        if longer and not reply.reasoning and reply.finish != "length":
            raise Wrong(f"finish_reason {reply.finish!r} of an answer that {most} tokens cut off")
        return f"{count} tokens, finish_reason {reply.finish}"

    def end(attempt: int) -> str:
        count = base.usage.completion
        if count is None:
            raise NotOffered("no completion_tokens")
        if count < wire.tokens and base.finish == "length":
            raise Wrong(f"finish_reason length with {count} completion tokens of {wire.tokens}")
        return f"{count} tokens, finish_reason {base.finish}"

    with Subject(wire, stage, "usage", STEPS["usage"]) as rows:
        rows.check("totals", total)
        rows.check("cached prompts", partial(cached, stream={}))
        rows.check("cached prompts, streamed", partial(cached, stream=STREAM))
        for most in (1, 3, 6):
            rows.check(f"an answer of {most} tokens", partial(cut, most=most))
        rows.check("the end of a whole answer", end)


def _boundaries(reply: Reply) -> list[int]:
    """Return the offsets in an answer's text at which tokens begin; [] if the tokens do not spell the text."""
    offsets, length = [], 0
    for entry in reply.entries or ():
        length += len(token_bytes(entry).decode("utf-8", "replace"))
        offsets.append(length)
    spelled = (reply.raw or b"").decode("utf-8", "replace")
    return [at for at in offsets if 2 <= at < len(reply.text)] if spelled.startswith(reply.text) else []


def _stops(wire: Wire, stage: Stage) -> None:
    """Check stop strings taken from an answer: over token boundaries, inside tokens, long, in lists, in streams."""
    prompt, text = wire.prompt, wire.base.text
    try:
        boundaries = _boundaries(wire.chat(prompt, **SCORES))
    except (NotOffered, Wrong, Skip):
        boundaries = []

    def at(start: int, size: int) -> str:
        """Return the text at ``start`` if that is the first place where it occurs, else ""."""
        word = text[start : start + size]
        fits = 0 < start < len(text) - size - END and word.strip() and text.find(word) == start
        return word if fits else ""

    across = [word for b in boundaries or range(3, len(text)) for size in (2, 3) if (word := at(b - 1, size))]
    inside = [word for b in range(1, len(text)) if b not in boundaries and (word := at(b, 3))]
    late = [word for b in range(len(text) // 2, len(text)) if (word := at(b, 10))]
    never = [f"\u2603{n}" for n in range(15)]

    def stopped(attempt: int, words: Sequence[str], more: Json) -> str:
        reply = wire.chat(prompt, again=attempt > 0, stop=list(words), **more)
        present = [word for word in words if word in reply.text]
        if present:
            raise Wrong(f"{shown(present[0])!r} is in the answer {shown(reply.text)[-60:]!r}")
        want = text[: min(text.find(word) for word in words if word in text)].rstrip()
        if not (text.startswith(reply.text.rstrip()) or reply.text.startswith(want)):
            raise Skip("the answers to one request differ")
        if reply.text.rstrip() != want:
            raise Wrong(
                f"ends in {shown(reply.text)[-30:]!r} in place of {shown(want)[-30:]!r}, stop {shown(words[-1])!r}"
            )
        if reply.finish not in ("stop", "stop_sequence", "eos"):
            raise Wrong(f"finish_reason {reply.finish!r}")
        return f"{shown(words[-1])!r}"

    with Subject(wire, stage, "stop strings", STEPS["stop strings"]) as rows:
        few = 2 if wire.case.quick else 5
        for kind, words in (("over tokens", across), ("inside a token", inside), ("long", late)):
            chosen = words[:: max(1, len(words) // few)][:few]
            for number, word in enumerate(chosen, 1):
                for name, more in (("", {}), (", streamed", STREAM)):
                    rows.check(f"{kind} {number}{name}", partial(stopped, words=[word], more=more))
        if across:
            for size in (4, 16):
                rows.check(f"a list of {size}", partial(stopped, words=[*never[: size - 1], across[-1]], more={}))
            rows.check("two that occur", partial(stopped, words=[across[-1], across[0]], more={}))
        if not rows.rows:
            rows.check("stop strings", _too_short)


def _too_short(attempt: int) -> str:
    raise Skip("no answer is long enough")


def _told(reply: Reply) -> tuple[Any, ...]:
    """Return what has to be the same in a document and in a stream."""
    return reply.sampled, reply.finish, reply.usage.prompt, reply.usage.completion, reply.raw


def same(wire: Wire, body: Json) -> str:
    """Compare a stream with the document of the same request; raise Wrong if they differ twice in the same way."""
    streamed = {**body, **STREAM}
    pairs = []
    for again in (False, True):
        whole, stream = wire.reply(body, again), wire.reply(streamed, again)
        if "length" in (whole.finish, stream.finish) and (whole.calls or stream.calls):
            raise Skip("cut off among calls, of which a stream has sent what a document takes back")
        names = "what the model wrote", "the finish reason", "prompt tokens", "completion tokens", "scored tokens"
        parts = dict(zip(names, zip(*map(_told, (whole, stream)), strict=True), strict=True))
        unequal = [name for name, pair in parts.items() if pair[0] != pair[1] and None not in pair]
        if not unequal:
            return f"{len(whole.text) + len(whole.reasoning)} characters, {len(whole.calls)} calls"
        pairs.append((whole.sampled, stream.sampled))
    if pairs[0] != pairs[1]:
        raise Skip("the answers to one request differ")
    one, other = (shown(side if isinstance(side, str) else repr(side))[:70] for side in parts[unequal[0]])
    raise Wrong(f"{unequal[0]}: {one} as a document, {other} as a stream")


def _streams(wire: Wire, stage: Stage) -> None:
    """Compare streams with documents for requests of several kinds."""
    tools, named = api_formats.TOOLS, {"type": "function", "function": {"name": "weather"}}
    kinds: dict[str, Json] = {
        "plain": {}, "cut off": {"max_tokens": 3}, "log probabilities": SCORES,
        "JSON schema": api_formats.form(api_formats.SIMPLE),
        "named tool": {"tools": tools, "tool_choice": named}, "tools": {"tools": tools, "tool_choice": "auto"},
        "any tool": {"tools": tools, "tool_choice": "required"}, "reasoning": api_formats.on(wire, "high"),
    }  # fmt: skip
    with Subject(wire, stage, "streams", STEPS["streams"]) as rows:
        for name, more in kinds.items():
            text = api_formats.ASK if "tools" in more else wire.prompt
            asked = wire.body(
                text, **{"max_tokens": 200 if "tools" in more or "response_format" in more else 48, **more}
            )
            rows.check(name, lambda attempt, asked=asked: same(wire, asked))  # type: ignore[misc]


_CONTROL = re.compile(r"<[|\uff5c][^<>]{1,40}[|\uff5c]>|</?think>|</?s>|\ufffd")
"""Control tokens, which tokens spell and a text leaves out, and what stands for bytes that are no text."""


def aligned(reply: Reply) -> str:
    """Check that the scored tokens of a greedy answer spell its text and are their own likeliest alternatives."""
    raw, entries = reply.raw, reply.entries or ()
    if raw is None:
        raise NotOffered("no log probabilities")
    if reply.reasoning or reply.calls:
        raise Skip("the answer is not only text")
    text, spelled = (_CONTROL.sub("", each).strip() for each in (reply.text, raw.decode("utf-8", "replace")))
    if text not in (spelled, re.sub(r"<[^<>]{1,40}>$", "", spelled).strip()):  # the last token may end the turn
        raise Wrong(f"the tokens spell {shown(spelled)[:60]!r}, the text is {shown(text)[:60]!r}")
    strange = []
    for at, entry in enumerate(entries):
        tops = [(token_bytes(top), top.get("logprob")) for top in entry.get("top_logprobs") or ()]
        own, value = [p for token, p in tops if token == token_bytes(entry)], entry.get("logprob")
        if not token_bytes(entry) or value is None or not tops or None in (values := [p for _, p in tops]):
            continue
        if own and min(abs(value - other) for other in own) > SLACK:
            raise Wrong(f"token {at} has log probability {value:.4g}, and {own[0]:.4g} among its alternatives")
        if not own or value < max(values) - SLACK:
            strange.append(at)
    if len(strange) > 1 and 2 * len(strange) > len(entries):  # fewer may be due to a penalty of repetitions
        raise Wrong(
            f"{len(strange)} of {len(entries)} tokens, chosen at temperature 0, are not their best alternatives"
        )
    count = reply.usage.completion
    if count is not None and abs(count - len(entries)) > UNSEEN:
        raise Wrong(f"{len(entries)} scored tokens, {count} completion tokens")
    return f"{len(entries)} tokens"


def _scores(wire: Wire, stage: Stage) -> None:
    """Check log probabilities of whole answers, cut answers and streams."""
    with Subject(wire, stage, "log probabilities", STEPS["log probabilities"]) as rows:
        for text in dict.fromkeys((wire.prompt, *PROMPTS)):
            for name, more in (("", {}), (", streamed", STREAM), (", cut off", {"max_tokens": 5})):
                asked: Json = {**SCORES, **more}
                rows.check(f"{text}{name}", lambda n, t=text, a=asked: aligned(wire.chat(t, n > 0, **a)))  # type: ignore[misc]
            if wire.case.quick:
                break


def _parameters(wire: Wire, stage: Stage) -> None:
    """Check parameters at their limits: a 5xx is wrong, as is a known parameter without effect; a 4xx is not."""

    def taken(attempt: int, more: Json) -> str:
        reply = wire.chat("Say hello.", again=attempt > 0, **{"max_tokens": 4, **more})
        return f"{reply.usage.completion} tokens, finish_reason {reply.finish}"

    def huge(attempt: int) -> str:
        answer = wire.body("Say hello.", max_tokens=HUGE, stream=True)
        first = wire.leave(PATH, answer)
        if re.search(r'"(?:code|status)": ?5\d\d|"server_error"', first):
            raise Wrong(f"an error: {shown(first)}")
        return "taken"

    def narrow(attempt: int) -> str:
        for text in PROMPTS:
            free, least = ([wire.chat(text, True, temperature=1, top_p=top_p, seed=seed, max_tokens=16).sampled
                            for seed in (1, 2, 3)] for top_p in (1, 1e-6))  # fmt: skip
            varied = [len({repr(each) for each in side}) for side in (free, least)]
            if varied[1] == 3 or varied[1] == 2 and free == least:
                raise Wrong(f"{varied[1]} different answers, {varied[0]} without top_p: {shown(least[0][0])[:60]}")
            if varied[0] > 1:
                return f"{varied[1]} different answers of 3, {varied[0]} without top_p"
        raise Skip("answers at temperature 1 are all the same")

    def ignored(field: str, message: str) -> Exception:
        return (Wrong if wire.known(field) else Unsure)(message)

    def seeded(attempt: int) -> str:
        differ = 0
        for text in PROMPTS[:3]:
            one, other = (wire.chat(text, True, temperature=1, seed=7, max_tokens=12).sampled for _ in range(2))
            differ += one != other
        if differ > 1:  # a single one may be due to the order of additions
            raise ignored("seed", f"one seed gave two answers to {differ} of 3 prompts")
        return f"one seed gave two answers to {differ} of 3 prompts"

    def several(attempt: int) -> str:
        reply = wire.chat("Say hello.", again=attempt > 0, n=2, temperature=1, max_tokens=8)
        if reply.choices != 2:
            raise ignored("n", f"n=2 gives {reply.choices} answers: the field has no effect")
        return ""

    with Subject(wire, stage, "parameters", STEPS["parameters"]) as rows:
        edges: dict[str, Json] = {
            "max_tokens 0": {"max_tokens": 0}, "max_tokens 1": {"max_tokens": 1}, "temperature 0": {"temperature": 0},
            "temperature 2": {"temperature": 2}, "temperature 100": {"temperature": 100},
            "temperature -1": {"temperature": -1}, "top_p 0": {"top_p": 0, "temperature": 1}, "top_p 1": {"top_p": 1},
            "top_p 2": {"top_p": 2}, "no stop strings": {"stop": []}, "an empty stop string": {"stop": ""},
            "top_logprobs 0": {"logprobs": True, "top_logprobs": 0}, "n 0": {"n": 0},
            "top_logprobs 20": {"logprobs": True, "top_logprobs": 20}, "seed -1": {"seed": -1},
            "top_logprobs 10000": {"logprobs": True, "top_logprobs": 10000}, "seed 2^63-1": {"seed": 2**63 - 1},
        }  # fmt: skip
        for name, more in list(edges.items())[:: 2 if wire.case.quick else 1]:
            rows.check(name, partial(taken, more=more))
        rows.check("max_tokens 2^31-1", huge)
        rows.check("top_p 1e-6 at temperature 1", narrow)
        rows.check("one seed twice", seeded)
        rows.check("n 2", several)


def _conformance(wire: Wire, stage: Stage) -> None:
    """Run checks of plain HTTP that ``ds4-server smoke`` has."""
    specs: list[Any] = [spec for spec in chat.api.specs if spec.name.partition(".")[2] in CONFORMANCE]
    with Subject(wire, stage, "plain HTTP", "ds4-server smoke --url URL repeats these checks") as rows:
        for spec in specs:

            def run(attempt: int, spec: Any = spec) -> str:
                result = tried(spec, wire)
                if result.state == "fail":
                    raise Wrong(f"{result.got}, not {result.expected}")
                if result.state == "skip":
                    raise NotOffered(result.got)
                return ""

            rows.check(spec.name.partition(".")[2], run)


SUBJECTS: dict[str, Callable[[Wire, Stage], None]] = {
    "prompt tokens": api_prompts.prompts, "usage": _usage, "stop strings": _stops, "streams": _streams,
    "log probabilities": _scores, "parameters": _parameters, "tool calls": api_formats.calls,
    "reasoning": api_formats.thinking, "prefix": api_prompts.prefix, "plain HTTP": _conformance,
    "JSON schemas": api_formats.answers, "tool schemas": api_formats.arguments,
}  # fmt: skip
"""The parts of the stage by name, in the order in which they run."""
