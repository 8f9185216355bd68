"""Twelve bugs of other people's servers, put into ours by somebody who never read what looks for them.

    python -m benchmarks.strangers -o results.jsonl  whether doctor names their families; resumes where it was stopped
    python -m benchmarks.strangers --list            what they are
    python -m benchmarks.strangers --check           what each changes, in the situation that it is about
    python -m benchmarks.strangers --check late_band,second_id

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
from ds4ref.archs.deepseek4.rope import RopeTables
from ds4ref.archs.inputs import Inputs
from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.nano import embedded_path
from ds4ref.nano.skills import held_out
from ds4ref.server import sequences, worker
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


# ------------------------------------------------------------------------------------------------------- lengths


def late_band(right: Method) -> Method:
    def angles(self: Any, positions: np.ndarray) -> Any:
        return right(self, positions - ((positions >= 700) & (positions < 900)))

    return angles


def short_table(right: Method) -> Method:
    def angles(self: Any, positions: np.ndarray) -> Any:
        return right(self, positions if self.factor == 1 else np.minimum(positions, 1535))

    return angles


# ---------------------------------------------------------------------------------------------------------- load


RUNNING = [0]
"""How many answers run."""


def short_budget_slice(right: Method) -> Method:
    def run(self: Any, stream: Any, end: float) -> Any:
        RUNNING[0] = len(self.running)
        return right(self, stream, end)

    return run


def short_budget(right: Method) -> Method:
    return lambda *args, limit, **more: right(*args, limit=max(limit - 8 * (RUNNING[0] > 1), 1), **more)


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


def lost_group(right: Method) -> Method:
    def put(self: Any, layer: int, raw: Any, projections: Any) -> None:
        right(self, layer, raw, {kind: type(rows)(*map(np.zeros_like, rows)) for kind, rows in projections.items()})

    return put


# --------------------------------------------------------------------------------------------------------- batch


def late_row(right: Method) -> Method:
    def move(self: Any, tokens: Any, starts: Any, *rest: Any) -> None:
        moved = [*starts[:-1], starts[-1] + 1] if len(starts) > 1 else starts
        right(self, tokens, moved, *rest)

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


def drafts_early(right: Method) -> Method:
    def stand(self: Any, pos0: int) -> None:
        right(self, pos0)
        if not self.members and 1 < len(self.ids) <= 4:
            self.positions = self.positions - (np.arange(len(self.ids)) > 0)

    return stand


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


def answers_as_user(right: Method) -> Method:
    def rendered(self: Turn, *more: Message) -> Rendered:
        prompt = right(self, *more)
        at = [i for i, part in enumerate(prompt.parts) if part.control is not None and part.text == protocol.ASSISTANT]
        for i in at[:-1]:
            prompt.parts[i] = prompt.parts[i]._replace(text=protocol.USER)
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
    "late_band": Bug(
        "lengths", "positions 700 to 899 get the rope angles of the one before",
        ((RopeTables, "__call__", late_band),), of_length(650, 800, 1100),
        "0 nats at 650 tokens, 0.3 at 800, 0.1 at 1,100; same text"),
    "short_table": Bug(
        "lengths", "the rope table of layers with compression ends at 1,536: later positions get its last entry",
        ((RopeTables, "__call__", short_table),), of_length(1500, 1700, 2100),
        "0 nats at 1,500 tokens, 0.3 at 1,700, 6.8 at 2,100"),
    "short_budget": Bug(
        "load", "while two or more answers run, those that begin may have 8 tokens fewer than was asked for",
        ((Worker, "_slice", short_budget_slice), (worker, "Generation", short_budget)), at_once(120, 150, 90, 200),
        "all four texts end early; log probabilities are right"),
    "detokenizer_race": Bug(
        "load", "while three or more answers run, every 40th piece of text is that of another answer's token",
        ((Worker, "_shown", detokenizer_race),), at_once(120, 150, 90, 200),
        "all four texts of 160 tokens; tokens and log probabilities stay right"),
    "second_id": Bug(
        "cache", "the key of a cached prefix leaves out every second token",
        ((sequences, "begins", second_id),), near_hit,
        "answered like the prompt before it: 0.5 nats where one of 200 tokens differs"),
    "lost_group": Bug(
        "cache", "a restored prefix has zeros for the projections of its incomplete compressed group",
        ((Cache, "put", lost_group),), continued,
        "0.03 nats after 200 cached tokens, same text"),
    "late_row": Bug(
        "batch", "in a pass of several answers the last one's token is placed one position late",
        ((Inputs, "move_sequences", late_row),), at_once(120, 150, 90, 200),
        "0.7 to 5.0 nats in three answers of four"),
    "padded_rows": Bug(
        "batch", "compressed rows are padded to the longest answer of a pass, and the mask leaves the padding visible",
        ((Inputs, "move_sequences", padded_rows), (Store, "__init__", zeros)), at_once(60, 400),
        "0.4 nats in the shorter answer of two, later other text"),
    "drafts_early": Bug(
        "verifier", "drafted tokens are verified at the position before their own",
        ((Inputs, "_stand", drafts_early),), repeats,
        "0.7 to 11 nats, 3 of 3 texts", drafts=LOOKUP),
    "rejected_row": Bug(
        "verifier", "the token after a rejected draft keeps the rejected token's row in the window",
        ((Session, "_settle", rejected_row_settle), (Session, "append", rejected_row_append)), repeats,
        "3.7 to 10.4 nats, 3 of 3 texts", drafts=LOOKUP),
    "answers_as_user": Bug("template", "earlier answers follow the user's marker: as many tokens",
        ((Turn, "rendered", answers_as_user),), talks, "0.7 nats after an earlier answer, 0 in first turns"),
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
