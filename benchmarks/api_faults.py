"""Does doctor's API stage notice bugs of a server, and accuse no right one: bugs put into ours, one at a time.

    python -m benchmarks.api_faults                    every bug of FAULTS, and right servers
    python -m benchmarks.api_faults --only budget      one of them
    python -m benchmarks.api_faults --url URL -m M     a right server of somebody else, with the model it has loaded

The server is ours, over HTTP, on the embedded model. Where a request leaves the answer's form open, a script writes the
calls and the reasoning (``ds4ref.cli.scripted``), since the embedded model hardly calls a tool twice or reasons at
length. A bug is caught if a finding is "wrong"; the table says which.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from ds4ref.cli import scripted
from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.server import constrain, grammar, turn, worker
from ds4ref.server.api import Refused
from ds4ref.server.apis import chat as wires
from ds4ref.server.apis import requests
from ds4ref.server.app import apis
from ds4ref.server.listen import Background
from ds4ref.server.service import Service
from ds4ref.server.worker import Worker
from ds4ref.targets.openai import HttpTarget
from ds4ref.targets.reader import AnswerReader
from ds4ref.test_vectors.doctor.api import api
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.examination import Stage
from ds4ref.test_vectors.doctor.limits import Limit, OutOfTime
from ds4ref.text import official
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.official import PROFILES
from ds4ref.text.protocol import EOS
from ds4ref.text.rendered import Rendered, TextPart
from ds4ref.text.stream import StopHolder

Patch = tuple[Any, str, Callable[[Any], Any]]
"""(owner of a name, the name, function of the right value that returns the wrong one)."""
THOUGHT = "First the rivers, then the lakes, and every one of them once more from the beginning. " * 12
CITIES = ("Oslo", "Paris")


@dataclass(frozen=True)
class Fault:
    """A bug; ``subjects``: findings that should say so."""

    says: str
    subjects: tuple[str, ...]
    patches: tuple[Patch, ...]


def _without(*keys: str) -> Callable[[Any], Any]:
    """Return a patch of a function of a schema's text that loses these keywords."""

    def strip(schema: Any) -> Any:
        if isinstance(schema, list):
            return [strip(one) for one in schema]
        return {k: strip(v) for k, v in schema.items() if k not in keys} if isinstance(schema, dict) else schema

    return lambda right: lambda text: right(json.dumps(strip(json.loads(text))))


def _reason(right: Any) -> Any:
    return lambda self, ended: "stop" if (reason := right(self, ended)) == "length" else reason


def _shifted(right: Any) -> Any:
    """Put the log probabilities of each token at the next one."""

    def wrong(steps: Sequence[Any]) -> Any:
        tokens = [step.token for step in steps[1:]] + [step.token for step in steps[:1]]
        return right(
            [replace(s, token=replace(t, logprob=s.token.logprob)) for s, t in zip(steps, tokens, strict=True)]
        )

    return wrong


def _values_shifted(right: Any) -> Any:
    def wrong(steps: Sequence[Any]) -> Any:
        return right([replace(s, token=replace(s.token, logprob=t.token.logprob), top=t.top)
                      for s, t in zip(steps, [*steps[1:], *steps[:1]], strict=True)])  # fmt: skip

    return wrong


def _fewer_calls(right: Any) -> Any:
    return lambda self, number, answer: right(self, number, replace(answer, calls=answer.calls[:1]))


def _lossy(right: Any) -> Any:
    return lambda self, delta: right(self, replace(delta, text=delta.text.replace("\n", "")))


def _prompt(change: Callable[[TextPart], TextPart]) -> Patch:
    """Return a patch of the prompts that the server renders; the doctor's own stay right."""

    def rendered(right: Any) -> Any:
        def wrong(self: Any, *more: Any) -> Rendered:
            prompt = right(self, *more)
            prompt.parts = [change(part) for part in prompt.parts]
            return prompt  # type: ignore[no-any-return]

        return wrong

    return turn.Turn, "rendered", rendered


def _refuses(right: Any) -> Any:
    def stops(self: Any) -> tuple[str, ...]:
        if len(right.fget(self)) > 8:
            raise Refused(500, "too many stop strings")
        return right.fget(self)  # type: ignore[no-any-return]

    return property(stops)


def _usage(change: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda right: lambda *counts: right(*change(*counts))


FAULTS = {
    "bounds": Fault("bounds of numbers are ignored in JSON schemas", ("JSON schemas",), (
        (constrain, "_answer", _without("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),)),
    "patterns": Fault("patterns are ignored in JSON schemas", ("JSON schemas",), (
        (constrain, "_answer", _without("pattern")),)),
    "schema": Fault("JSON schemas become any object", ("JSON schemas",), (
        (constrain, "_answer", lambda right: lambda text: right("{}")),)),
    "enum": Fault("enums are ignored in the parameters of strict tools", ("tool schemas",), (
        (grammar, "plain_text", lambda right: lambda node, root: (
            (grammar._FREE, True) if isinstance(node, dict) and "enum" in node else right(node, root))),)),
    "markup": Fault("with reasoning, calls stay markup in the content", ("tool calls",), (
        (turn.Turn, "callable", lambda right: property(
            lambda self: () if self.thinking != "none" else right.fget(self))),)),
    "second": Fault("the second of parallel calls is lost", ("tool calls", "streams"), (
        (wires.ChatReply, "one", _fewer_calls),)),
    "same id": Fault("parallel calls share an id", ("tool calls",), (
        (wires.ChatReply, "call_id", lambda right: lambda self, *at: "call_1"),)),
    "arguments": Fault("arguments are encoded twice", ("tool calls",), (
        (wires, "_call_entry", lambda right: lambda number, tool, text: right(number, tool, json.dumps(text))),)),
    "tool finish": Fault("finish_reason stop with calls", ("tool calls",), (
        (wires, "finish_of", lambda right: lambda answer: "stop" if answer.calls else right(answer)),)),
    "stop": Fault("stop strings over token boundaries are not held back", ("stop strings",), (
        (StopHolder, "feed", lambda right: lambda self, text: self._advance(text, final=True)),)),
    "first stop": Fault("only the first stop string counts", ("stop strings",), (
        (requests.OpenAI, "stops", lambda right: property(lambda self: right.fget(self)[:1])),)),
    "many stops": Fault("more than eight stop strings are an error of the server", ("stop strings",), (
        (requests.OpenAI, "stops", _refuses),)),
    "cached": Fault("prompt_tokens without those in the cache", ("usage",), (
        (worker, "Usage", _usage(lambda prompt, *rest: (prompt - (rest[1] or 0), *rest))),)),
    "completion": Fault("completion_tokens without the last token", ("usage",), (
        (worker, "Usage", _usage(lambda prompt, made, *rest: (prompt, max(made - 1, 0), *rest))),)),
    "limit": Fault("one token more than max_tokens", ("usage", "parameters"), (
        (requests.Request, "limit", lambda right: lambda self, *at: (
            None if (most := right(self, *at)) is None else most + 1)),)),
    "finish": Fault("finish_reason stop where max_tokens cuts", ("usage",), ((AnswerReader, "reason", _reason),)),
    "budget": Fault("budgets of reasoning are ignored", ("reasoning",), ((wires, "BUDGETS", lambda right: ()),)),
    "stream": Fault("streams lose line feeds", ("streams",), ((wires.ChatReply, "pieces", _lossy),)),
    "tokens shifted": Fault("log probabilities list the next token", ("log probabilities",), (
        (wires, "_logprobs", _shifted),)),
    "values shifted": Fault("log probabilities are the next token's", ("log probabilities",), (
        (wires, "_logprobs", _values_shifted),)),
    "top_p": Fault("top_p is ignored", ("parameters",), (
        (requests, "Sampling", lambda right: lambda **given: right(**{**given, "top_p": 1.0})),)),
    "seed": Fault("seed is ignored", ("parameters",), (
        (requests, "Sampling", lambda right: lambda **given: right(**{**given, "seed": None})),)),
    "n": Fault("n is ignored", ("parameters",), (
        (wires, "several", lambda right: lambda turns, n: turns[0]),
        (wires.ChatReply, "__init__", lambda right: lambda self, turn, about, asked: (
            setattr(asked, "n", 1) if isinstance(asked.n, int) else None, right(self, turn, about, asked))[1]))),
    "result": Fault("a token more for every tool result", ("prompt tokens",), (
        _prompt(lambda part: part._replace(text=part.text.replace("</tool_result>", " </tool_result>"))),)),
    "end of turn": Fault("no end of turn after answers", ("prompt tokens",), (
        _prompt(lambda part: part._replace(text=part.text.replace(EOS, ""))),)),
    "call": Fault("blocks of calls lose the empty line before them", ("prompt tokens",), (
        _prompt(lambda part: part._replace(text=part.text.replace("\n\n<", "<"))),)),
    "system": Fault("the system text comes twice", ("prompt tokens",), (
        (turn.Turn, "rendered", lambda right: lambda self, *more: right(replace(self, messages=[
            one for m in self.messages for one in [m] * (1 + (m.role == "system"))]), *more)),)),
}  # fmt: skip
"""Bugs by name."""


def script(asked: turn.Turn, tokenizer: Any) -> Any:
    """Return the script of calls or reasoning for a request that leaves the answer's form open, else its constraint."""
    if not asked.format and asked.choice.kind == "auto" and (tools := [tool.name for tool in asked.tools]):
        calls = [ToolCall(tools[0], f'{{"city": "{city}", "tomorrow": true}}') for city in CITIES]
        tags = None if asked.profile is None else asked.profile.tags
        values = [(tools[0], [("city", city, True), ("tomorrow", "true", False)]) for city in CITIES]
        parts = render_calls(calls) if tags is None else official.block_of(values, tags)
        return scripted.Script("".join(part.text for part in parts), tokenizer)
    if not (asked.format or asked.tools or asked.thinking == "none" or asked.plain):
        return scripted.Script("The Nile, the Rhine and the Elbe.", tokenizer)
    return constrain.guide_of(asked, tokenizer, max_reasoning=16)


@contextmanager
def patched(*patches: Patch) -> Iterator[None]:
    """Put wrong values in place of right ones."""
    missing = object()
    with ExitStack() as undo:
        for owner, name, make in patches:
            right = owner.__dict__.get(name, missing)
            setattr(owner, name, make(getattr(owner, name, None) if right is missing else right))
            undo.callback(delattr, owner, name) if right is missing else undo.callback(setattr, owner, name, right)
        yield


@contextmanager
def serving(engine: Engine, guide: Any = script, *patches: Patch) -> Iterator[str]:
    """Context manager: the address of our server with bugs."""
    thought = (scripted, "THOUGHT", lambda right: THOUGHT)
    with patched(thought, *patches):
        with Background(Service(Worker(engine, ctx=4096, constrain=guide), apis())) as url:
            yield f"{url}/v1"


def examined(engine: Engine, url: str, quick: bool = True, only: Sequence[str] = ()) -> Stage:
    """Run the API stage, or the subjects in ``only``, against a server that has loaded the engine's model."""
    stage = Stage("api", "API", "?")
    with HttpTarget(url, attempts=2) as target, Limit(900) as limit:
        case = ExamContext(target, engine, quick=quick, kinds={"chat"}, same_model=True, limit=limit)
        with suppress(OutOfTime):
            api(case, stage, only)
    return stage


def accused(stage: Stage) -> dict[str, str]:
    """Return the findings that are wrong, with their sentences."""
    return {check.name: check.says for check in stage.checks if check.outcome.spoils}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bug is not caught or a right server is accused."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.api_faults", allow_abbrev=False)
    flags.add_argument("--only", default="", help="one bug")
    flags.add_argument("--long", action="store_true", help="the usual form instead of the quick one")
    flags.add_argument(
        "--whole", action="store_true", help="run the whole stage against every bug, not its subjects alone"
    )
    flags.add_argument("--url", help="a right server, alone")
    flags.add_argument("-m", "--model", default="", help="the model that it has loaded")
    args = flags.parse_args(argv)
    caught, missed, wrong = 0, 0, 0
    with Engine.open(args.model or str(embedded_path()), threads=1) as engine:
        if args.url:
            stage = examined(engine, args.url, not args.long)
            for check in stage.checks:
                print(f"{check.outcome.value:11} {check.name}: {check.says}")
            return int(bool(accused(stage)))
        for name, fault in FAULTS.items():
            if args.only in ("", name):
                begun = time.monotonic()
                with serving(engine, script, *fault.patches) as url:
                    subjects = () if args.whole else fault.subjects
                    result = accused(examined(engine, url, not args.long, subjects))
                hit = set(result) & set(fault.subjects)
                caught, missed = caught + bool(hit), missed + (not hit)
                more = "".join(f"; also {other}" for other in sorted(set(result) - hit))
                seconds = time.monotonic() - begun
                print(f"{'caught' if hit else 'MISSED':7} {name:15} {fault.says}: {', '.join(sorted(hit)) or '-'}{more}"
                      f" ({seconds:.0f} s)", flush=True)  # fmt: skip
    if args.only:
        return int(missed > 0)
    rights: list[tuple[str, str, Any, str | None]] = [
        ("embedded model", str(embedded_path()), constrain.guide_of, None),
        ("scripted", str(embedded_path()), script, None),
        ("diagnostic model", str(diagnostic_path()), lambda t, k: constrain.guide_of(t, k, max_reasoning=16), None),
        ("prompts of 0731", str(embedded_path()), script, "0731"),
    ]  # fmt: skip
    for name, model, guide, profile in rights:
        with Engine.open(model, threads=1) as engine:
            if profile is not None:
                engine.tokenizer.profile = PROFILES[profile]
            with serving(engine, guide) as url:
                result = accused(examined(engine, url, not args.long))
        wrong += bool(result)
        print(f"{'ACCUSED' if result else 'clean':7} {name}: {result or 'nothing wrong found'}", flush=True)
    print(f"{caught} of {caught + missed} bugs caught, {wrong} of {len(rights)} right servers accused")
    return int(missed > 0 or wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
