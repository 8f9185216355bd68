"""Twelve bugs of other people's servers, put into ours by somebody who never read what looks for them.

    python -m benchmarks.strangers -o results.jsonl  whether doctor names their families; resumes where it was stopped
    python -m benchmarks.strangers --list            what they are
    python -m benchmarks.strangers --check           what each changes, in the situation that it is about
    python -m benchmarks.strangers --check tile_alone,second_id

    bug = BUGS["second_id"]
    with Engine.open(embedded_path(), drafts=bug.drafts) as engine, bug: ...       any server on ``engine`` has it

Two of each family: lengths (which prompts), load (how many answers run), cache (what was asked before), batch (rows of
one pass), verifier (drafts), template. A bug replaces methods of classes while its context is open, and leaves nothing
behind but the sessions that it has damaged: open it before the worker is made, and use an engine once. The chat formats
are DeepSeek's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from ds4ref.archs.deepseek4.cache import Cache, Store
from ds4ref.archs.deepseek4.forward import Model
from ds4ref.archs.deepseek4.rope import RopeTables
from ds4ref.archs.inputs import Inputs
from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.nano import embedded_path
from ds4ref.nano.skills import held_out
from ds4ref.sampling import Sampler
from ds4ref.server import sequences
from ds4ref.server.sequences import Sequences
from ds4ref.server.turn import Failed, Sampling, Turn
from ds4ref.server.worker import Worker
from ds4ref.session.session import Session
from ds4ref.targets.answer import Delta, Step
from ds4ref.text import protocol
from ds4ref.text.chat import Message
from ds4ref.text.rendered import Rendered

from .harness import Results

Method = Callable[..., Any]
Patch = tuple[Any, str, Callable[[Method], Method]]
"""(owner, name, right function -> wrong one)."""
Rounds = list[list[Turn]]
"""Turns that are asked at once, round after round."""


class Unhooked:
    """Hooks without an effect; a subclass replaces an intermediate."""

    def begin(self, chunk: Any) -> None:
        """Do nothing."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        return value


# ------------------------------------------------------------------------------------------------------- lengths


class LastTileAlone(Unhooked):
    """The last token of a chunk does not see the window's rows before it."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        if name != "raw_window":
            return value
        first, count = value[0].copy(), value[1].copy()
        first[-1], count[-1] = chunk.positions[-1], 1
        return first, count


def tile_alone(right: Method) -> Method:
    def forward(self: Any, ids: Any, cache: Any, hooks: Any = None, *rest: Any, **more: Any) -> Any:
        single = cache.pos + len(ids) > 1 and (cache.pos + len(ids)) % 128 == 1
        return right(self, ids, cache, LastTileAlone() if single and hooks is None else hooks, *rest, **more)

    return forward


def short_table(right: Method) -> Method:
    def angles(self: Any, positions: np.ndarray) -> Any:
        return right(self, positions if self.factor == 1 else np.minimum(positions, 1535))

    return angles


# ---------------------------------------------------------------------------------------------------------- load


class Coarse(Unhooked):
    """The other replica: results of experts with 5 bits."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        if name != "ffn_out":
            return value
        scale = np.abs(value).max(axis=-1, keepdims=True) / 15 + 1e-20
        return (np.round(value / scale) * scale).astype(np.float32)


def other_replica(right: Method) -> Method:
    def run(self: Any, stream: Any, end: float) -> Any:
        stream.session._hooks = Coarse() if len(self.running) > 2 else None
        try:
            return right(self, stream, end)
        finally:
            stream.session._hooks = None

    return run


def detokenizer_race(right: Method) -> Method:
    """Make every 40th piece of text that of another running answer's newest token."""
    latest: dict[int, str] = {}
    shown = itertools.count()

    def text_of(self: Any, turn: Turn, piece: Any) -> Any:
        own = right(self, turn, piece)
        others = [text for key, text in latest.items() if key != id(turn)]
        latest.pop(id(turn), None)
        latest[id(turn)] = own.text
        if len(self.running) > 2 and others and own.text and next(shown) % 40 == 39:
            return replace(own, text=others[-1])
        return own

    return text_of


# --------------------------------------------------------------------------------------------------------- cache


def second_id(right: Method) -> Method:
    def begins(ids: Sequence[int], tokens: Sequence[int]) -> bool:
        return len(tokens) <= len(ids) and list(ids[: len(tokens) : 2]) == list(tokens[::2])

    return begins


def slot_before(right: Method) -> Method:
    return lambda self, layer, raw, projections: right(self, layer, np.roll(raw, 1, axis=0), projections)


# --------------------------------------------------------------------------------------------------------- batch


def angle_of_neighbour(right: Method) -> Method:
    def move(self: Any, tokens: Any, starts: Any, *rest: Any) -> None:
        right(self, tokens, starts, *rest)
        for key, (arrays, _) in self._inputs.items():
            if len(starts) > 2 and key == ("rope", True):
                for table in arrays:
                    table[-1] = table[-2]

    return move


def padded_rows(right: Method) -> Method:
    def move(self: Any, tokens: Any, starts: Any, *rest: Any) -> None:
        right(self, tokens, starts, *rest)
        counts = [member._inputs[key][0][0] for member in self.members for key in member._inputs if key == SEEN]
        for count in counts:
            count[:] = max(int(other.max()) for other in counts)

    return move


def zeros(right: Method) -> Method:
    """Padding is zero: what nobody wrote to could be NaN."""

    def init(self: Any, *args: Any) -> None:
        right(self, *args)
        for rows in (*self.comp, *self.index):
            if rows is not None:
                rows[:] = 0

    return init


SEEN = ("visible", 4)
"""Input of a chunk: how many compressed rows each token may see in layers of ratio 4."""

# ------------------------------------------------------------------------------------------------------ verifier


def last_draft(right: Method) -> Method:
    def choose(self: Any, session: Any) -> int:
        drafted = session._drafted and len(session._ahead) == 1 and self.temperature <= 0
        return session._ahead[0] if drafted else right(self, session)

    return choose


def rejected_row_settle(right: Method) -> Method:
    def settle(self: Any) -> None:
        rejected = self.pos if self._drafted and self._ahead else None
        right(self)
        if rejected is not None:
            rings = self._cache_ahead._raw
            self.rejected = rejected, [ring[rejected % len(ring)].copy() for ring in rings]

    return settle


def rejected_row_append(right: Method) -> Method:
    def append(self: Any, token: int) -> None:
        right(self, token)
        at, rows = self.__dict__.pop("rejected", (-1, ()))
        for ring, row in zip(self._cache_ahead._raw, rows if at == self.pos - 1 else (), strict=False):
            ring[at % len(ring)] = row

    return append


# ------------------------------------------------------------------------------------------------------ template


def no_bos(right: Method) -> Method:
    def rendered(self: Turn, *more: Message) -> Rendered:
        prompt = right(self, *more)
        if any(message.role == "system" for message in self.messages):
            first = prompt.parts[0]
            prompt.parts[0] = first._replace(text=first.text.removeprefix(protocol.BOS))
        return prompt

    return rendered


def no_eos(right: Method) -> Method:
    def rendered(self: Turn, *more: Message) -> Rendered:
        prompt = right(self, *more)
        after = [part.text for part in prompt.parts[1:]] + [""]
        ends = [part.control is not None and part.text == protocol.EOS for part in prompt.parts]
        prompt.parts[:] = [part for part, end, text in zip(prompt.parts, ends, after, strict=True)
                           if not (end and text.startswith(protocol.USER))]  # fmt: skip
        return prompt

    return rendered


# ------------------------------------------------------------------------------------------ what shows each of them


def words(engine: Engine, count: int, seed: int = 3) -> tuple[int, ...]:
    """Token ids of ``count`` tokens of prompts like those that the embedded model was trained on."""
    skills = ("story", "facts", "lists/reverse", "recall/near", "sums3", "choice")
    items = [item for number in range(seed, seed + 40) for skill in skills for item in held_out(skill, 1, seed=number)]
    ids: list[int] = []
    while len(ids) < count:
        ids += items.pop(0).prompt().encode(engine.tokenizer)
    return tuple(ids[:count])


def plain(ids: Sequence[int], length: int = 24) -> Turn:
    """A greedy completion of token ids, with log probabilities; no end token ends it."""
    return Turn("completions", ids=tuple(ids), max_tokens=length, sampling=Sampling(0.0, ignore_eos=True),
                top_logprobs=20)  # fmt: skip


def chat(*texts: str, system: str = "") -> Turn:
    """A greedy chat: what the user and the assistant said in turn."""
    messages = [Message("user" if number % 2 == 0 else "assistant", text) for number, text in enumerate(texts)]
    first = [Message("system", system)] if system else []
    return Turn("chat", messages=(*first, *messages), thinking="none", max_tokens=24, sampling=Sampling(0.0),
                top_logprobs=20)  # fmt: skip


def of_length(*lengths: int) -> Callable[[Engine], Rounds]:
    """One prompt after the other."""
    return lambda engine: [[plain(words(engine, length))] for length in lengths]


def at_once(*lengths: int) -> Callable[[Engine], Rounds]:
    """Different prompts of these lengths together."""
    return lambda engine: [[plain(words(engine, n, 3 + 50 * i), 160) for i, n in enumerate(lengths)]]


def near_hit(engine: Engine) -> Rounds:
    """A prompt, and the same one with another token in the middle."""
    first = words(engine, 200)
    return [[plain(first)], [plain((*first[:101], (first[101] + 1) % 2048, *first[102:]))]]


def continued(engine: Engine) -> Rounds:
    """A prompt, and a longer one that begins with it."""
    return [[plain(words(engine, 200))], [plain(words(engine, 230))]]


def repeats(engine: Engine) -> Rounds:
    """A prompt whose text was there before, so that drafts are made."""
    return [[plain(words(engine, 150, seed) * 2, 64)] for seed in (3, 60, 120)]


def talks(engine: Engine) -> Rounds:
    """A question, one with a system text, and a second question after an answer."""
    ask, more = "How many apples are five apples and three apples?", "And two more?"
    return [[chat(ask)], [chat(ask, system="You are brief.")], [chat(ask, "8", more)]]


@dataclass(frozen=True)
class Bug:
    """A bug that our server has while this context manager is open.

    family   lengths, load, cache, batch, verifier or template
    says     what is wrong
    patches  what is replaced
    shows    turns that show it, and some that do not
    effect   how much ``--check`` found to change on the embedded model
    drafts   drafts that the engine must make for the bug to have an effect, None for any engine
    """

    family: str
    says: str
    patches: tuple[Patch, ...]
    shows: Callable[[Engine], Rounds]
    effect: str
    drafts: Drafting | None = None
    _open: list[ExitStack] = field(default_factory=list)

    def __enter__(self) -> Bug:
        with ExitStack() as stack:
            for owner, name, wrong in self.patches:
                stack.enter_context(patch.object(owner, name, wrong(getattr(owner, name))))
            self._open.append(stack.pop_all())
        return self

    def __exit__(self, *error: object) -> None:
        self._open.pop().close()


LOOKUP = Drafting("lookup", depth=3)
BUGS = {
    "tile_alone": Bug(
        "lengths", "where a prompt is one token longer than a multiple of 128, its last token sees only itself in the "
        "window", ((Model, "forward", tile_alone),), of_length(256, 257, 258, 385),
        "other text and 2.7 nats or more at 257 and 385 tokens, 0 at 256; 0.7 at 258 where that continues from 257"),
    "short_table": Bug(
        "lengths", "the rope table of layers with compression ends at 1,536: later positions get its last entry",
        ((RopeTables, "__call__", short_table),), of_length(1500, 1700, 2100),
        "0 nats at 1,500 tokens, 0.3 at 1,700, 6.8 at 2,100"),
    "other_replica": Bug(
        "load", "while three or more answers run, a second replica helps, whose experts compute with 5 bits",
        ((Worker, "_slice", other_replica),), at_once(120, 150, 90, 200),
        "0.6 to 1.7 nats in four answers, four texts"),
    "detokenizer_race": Bug(
        "load", "while three or more answers run, every 40th piece of text is that of another answer's token",
        ((Worker, "_shown", detokenizer_race),), at_once(120, 150, 90, 200),
        "all four texts of 160 tokens; tokens and log probabilities stay right"),
    "second_id": Bug(
        "cache", "the key of a cached prefix leaves out every second token",
        ((sequences, "begins", second_id),), near_hit,
        "answered like the prompt before it: 0.5 nats where one of 200 tokens differs"),
    "slot_before": Bug(
        "cache", "a restored prefix has its window's rows one slot late, the newest in place of the oldest",
        ((Cache, "put", slot_before),), continued,
        "0.3 nats after 200 cached tokens, same text"),
    "angle_of_neighbour": Bug(
        "batch", "in a pass of three or more answers the last one's rope angles (layers with compression) are its "
        "neighbour's", ((Inputs, "move_sequences", angle_of_neighbour),), at_once(120, 150, 90, 200),
        "2.1 to 3.6 nats in one answer of four"),
    "padded_rows": Bug(
        "batch", "compressed rows are padded to the longest answer of a pass, and the mask leaves the padding visible",
        ((Inputs, "move_sequences", padded_rows), (Store, "__init__", zeros)), at_once(60, 400),
        "0.4 nats in the shorter answer of two, later other text"),
    "last_draft": Bug(
        "verifier", "at temperature 0 the last token of a draft is accepted unseen if those before it were right",
        ((Sampler, "choose", last_draft),), repeats,
        "2 of 3 texts (64 tokens after repeated text); log probabilities are right up to there", drafts=LOOKUP),
    "rejected_row": Bug(
        "verifier", "the token after a rejected draft keeps the rejected token's row in the window",
        ((Session, "_settle", rejected_row_settle), (Session, "append", rejected_row_append)), repeats,
        "3.7 to 10.4 nats, 3 of 3 texts", drafts=LOOKUP),
    "no_bos": Bug("template", "no BOS where there is a system text", ((Turn, "rendered", no_bos),), talks,
        "2.0 nats and other text with a system text, 0 without"),
    "no_eos": Bug("template", "earlier answers are not ended by EOS", ((Turn, "rendered", no_eos),), talks,
        "3.4 nats and other text after an earlier answer, 0 in first turns"),
}  # fmt: skip


def ask(worker: Worker, turns: Sequence[Turn]) -> list[tuple[str, list[Step]]]:
    """Ask all turns at once and return each answer's text and steps."""
    events: list[list[Any]] = [[] for _ in turns]
    ended = [threading.Event() for _ in turns]

    def listen(number: int, event: Any) -> None:
        events[number].append(event)
        if isinstance(event, Failed) or (isinstance(event, Delta) and event.finish):
            ended[number].set()

    for number, turn in enumerate(turns):
        worker.submit(turn, lambda event, number=number: listen(number, event))  # type: ignore[misc]
    for one in ended:
        one.wait(300)
    deltas = [[event for event in some if isinstance(event, Delta)] for some in events]
    return [("".join(d.text for d in some), [s for d in some for s in d.steps]) for some in deltas]


def observed(bug: Bug, wrong: bool) -> list[tuple[str, list[Step]]]:
    """Return the answers to ``bug.shows``, in order, of our server with the bug or without."""
    with Engine.open(embedded_path("f16"), threads=1, drafts=bug.drafts) as engine, ExitStack() as stack:
        if wrong:
            stack.enter_context(bug)
        worker = Worker(engine, ctx=4096, sequences=Sequences(engine.tokenizer, 64 << 20))
        stack.callback(worker.shut_down, 5)
        return [answer for turns in bug.shows(engine) for answer in ask(worker, turns)]


def change(one: list[Step], two: list[Step]) -> float:
    """Return the largest difference of log probabilities in nats, up to the first token that differs.

    A token that is missing among the 20 of one side counts as that side's last one: a lower bound.
    """
    largest = 0.0
    for a, b in zip(one, two, strict=False):
        here, there = ({t.id: t.logprob or 0.0 for t in step.top} for step in (a, b))
        least = min(here.values()), min(there.values())
        largest = max([largest, *(abs(here.get(i, least[0]) - there.get(i, least[1])) for i in (*here, *there))])
        if a.token.id != b.token.id:
            break
    return largest


def check(bug: Bug) -> dict[str, Any]:
    """Return how many answers change and, for each answer, how far its log probabilities move."""
    right, wrong = observed(bug, False), observed(bug, True)
    moves = [change(a[1], b[1]) for a, b in zip(right, wrong, strict=True)]
    texts = sum(a[0] != b[0] for a, b in zip(right, wrong, strict=True))
    return {"answers": len(right), "texts_changed": texts, "nats": [round(move, 4) for move in moves]}


# ------------------------------------------------------------------------------------- doctor


def serve(bug: Bug) -> None:
    """Serve the embedded model with a bug, and print the address."""
    from .under_load import our_server

    with Engine.open(embedded_path(), threads=1, drafts=bug.drafts) as engine, bug, our_server(engine) as url:
        print(f"AT {url}", flush=True)
        threading.Event().wait()


STAGES = {"lengths": ["lengths"], "load": ["load"], "cache": ["load"], "batch": ["load"],
          "verifier": ["ways", "load"], "template": ["identify", "template", "api"]}  # fmt: skip
"""Stages of doctor that are run for a family."""


def families(stage: str, finding: Any) -> tuple[str, ...]:
    """Return the families of bugs that a finding of doctor means, if it says that something is wrong."""
    from ds4ref.test_vectors.doctor import load

    if finding.outcome.value not in ("wrong", "unexplained"):
        return ()
    named = {load.ALTERED: ("load", "batch"), load.NEIGHBOURS: ("batch", "load"), load.ROWS: ("cache",),
             load.REUSE: ("cache",), load.UNSEEN: ("verifier",), load.DRAFTS: ("verifier",),
             load.PIECES: ("load", "batch")}.get(finding.figures.get("family"))  # fmt: skip
    if named is not None or stage in ("lengths", "template"):
        return named or (stage,)
    return ("template",) if finding.cause == "template" else ("unnamed",)


def examined(bug: str, engine: Engine, quick: bool, budget: float) -> dict[str, Any]:
    """Serve a bug in another process, let doctor examine it, and return what it says and whether that is right."""
    from ds4ref.targets import open_target
    from ds4ref.test_vectors.doctor.case import ExamContext
    from ds4ref.test_vectors.doctor.run import examine

    command = [sys.executable, "-m", "benchmarks.strangers", "--serve", bug]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with open_target(process.stdout.readline().split()[1]) as target:
            context = ExamContext(target, engine, quick=quick, budget=budget)
            result = examine(context, STAGES[BUGS[bug].family])
    finally:
        process.kill()
        process.wait()
    wrong = [(families(stage.name, check), f"{stage.name}/{check.name}: {check.says}")
             for stage, check in result.checks() if families(stage.name, check)]  # fmt: skip
    first = next((names for names, _ in wrong if names != ("unnamed",)), ("unnamed",) if wrong else ())
    outcome = "right" if BUGS[bug].family in first else "acquitted" if not first else "unnamed"
    outcome = "WRONG" if outcome == "unnamed" and first != ("unnamed",) else outcome
    unsure = [f"{s.name}/{c.name}: {c.says}" for s, c in result.checks() if c.outcome.value in ("unsure", "skipped")
              and c.says != "not selected (--only)"]  # fmt: skip
    return {"family": BUGS[bug].family, "outcome": outcome, "wrong": [says for _, says in wrong], "unsure": unsure}


def examine_all(names: Sequence[str], output: Path | None, quick: bool, budget: float) -> int:
    """Examine servers with bugs; print what doctor says of each, and the counts. Return 1 if a family is wrong."""
    results = Results(output)
    with Engine.open(embedded_path(), threads=1) as engine:
        for name in names:
            entry = results.get(name, partial(examined, name, engine, quick, budget))
            print("{outcome:9} {name} ({family}), {wall_s} s".format(**entry), *entry["wrong"][:3], sep="\n    ",
                  flush=True)  # fmt: skip
    counts = Counter(results.entries[name]["outcome"] for name in names)
    print(dict(counts))
    return int(counts["WRONG"] > 0)


def main(argv: Sequence[str] | None = None) -> int:
    """List, check or examine the bugs; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="BUG", help="bugs to examine (all)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="keep results here, and resume from it")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of each of doctor's stages (300)")
    parser.add_argument("--long", action="store_true", help="examine as doctor does without --quick")
    parser.add_argument("--serve", choices=BUGS, help="serve one bug until interrupted")
    parser.add_argument("--list", action="store_true", help="print the bugs and exit")
    parser.add_argument("--check", nargs="?", const=",".join(BUGS), default="", metavar="NAMES", help="measure effects")
    args = parser.parse_args(argv)
    if args.serve:
        serve(BUGS[args.serve])
    if not args.list and not args.check:
        return examine_all(args.names or list(BUGS), args.output, not args.long, args.budget)
    for name in BUGS if args.list else ():
        print(f"{name:20} {BUGS[name].family:9} {BUGS[name].says} ({BUGS[name].effect})")
    missed = 0
    for name in filter(None, args.check.split(",")):
        result = check(BUGS[name])
        missed += not (result["texts_changed"] or max(result["nats"]) > 0)
        print(json.dumps({"bug": name} | result), flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
