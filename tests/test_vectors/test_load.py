"""The doctor's stage ``load`` on a simulated server whose tokens and log probabilities follow from its prompts alone.

What is wrong with it changes answers beside others, or after prompts that begin alike. The bugs of
``benchmarks.under_load`` are put into our own server; a few of them are here, too (thorough).
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from ds4ref.errors import TargetError
from ds4ref.targets import Ability, Completion, Delta, Request, Step, Target, Token, Usage
from ds4ref.targets.answer import collect
from ds4ref.test_vectors.doctor import load
from ds4ref.test_vectors.doctor.altered import Change, Judge, Reply, odds
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.examination import Stage
from ds4ref.test_vectors.doctor.limits import Limit
from ds4ref.test_vectors.doctor.registers import Registers
from ds4ref.test_vectors.finding import Outcome

from .scripted import step as scripted_step

WORDS = [b"%c%c" % (a, b) for a in b"bcdfgh" for b in b"aeiou"]


class Server(Target):
    """A server of a simulated model.

    wrong    what it does wrong, see ``step`` and ``answer``
    recalls  whether the model repeats the list of codes
    """

    kind, name, max_top_logprobs = "http", "simulated", 20

    def __init__(self, wrong: str = "", recalls: bool = True):
        self.wrong, self.recalls, self.rng = wrong, recalls, random.Random(1)
        self.abilities = frozenset({Ability.CHAT, Ability.TOOLS, Ability.TOP_LOGPROBS, Ability.STREAM})
        self.one = threading.Lock()
        self.ahead: dict[str, int] = {}
        self.lock, self.running, self.asked, self.shared = threading.Lock(), [], [], random.Random(0)

    def pieces(self, text: str) -> list[bytes]:
        if not self.recalls:
            chance = random.Random(text)
            return [chance.choice(WORDS) for _ in range(24)]
        listed = text.split("List of codes:\n")[1].split("\n\n")[0]
        return [piece.encode() for piece in re.findall(r".{1,3}|\n", listed)]

    def step(self, text: str, at: int, beside: list[str], request: Request) -> Step | None:
        pieces = self.pieces(text)
        if at >= len(pieces):
            return None
        chance, crowd = random.Random(f"{text} {at}"), bool(beside)
        top = {pieces[at]: -0.01} | {word: -chance.uniform(5, 9) for word in WORDS[:19] if word != pieces[at]}
        if self.wrong == "ties" and chance.random() < 0.1:
            top[WORDS[at % 5]] = -0.012  # a tie, which the noise of a batch may turn
        if crowd and self.wrong in ("noise", "ties"):
            top = {raw: value + self.rng.gauss(0, 0.01) for raw, value in top.items()}
        if crowd and self.wrong == "tokens" and self.rng.random() < 0.02:
            top[self.rng.choice(WORDS[19:])] = 0.0
        if self.wrong == "reuse" and any(text != one and text[:120] == one[:120] for one in self.asked):
            top = {raw: value - chance.uniform(0, 2) for raw, value in top.items()}
        if request.temperature > 0:
            rng = self.shared if self.wrong == "seeds" else random.Random(f"{request.seed} {text} {at}")
            top |= {WORDS[20 + int(5 * rng.random())]: 0.5} if rng.random() < 0.2 else {}
        elif self.wrong == "hot" and self.rng.random() < 0.1:
            top[self.rng.choice(WORDS[19:])] = 0.5
        ordered = sorted((Token(raw, value) for raw, value in top.items()), key=lambda token: -token.logprob)
        return Step(ordered[0], tuple(ordered[: request.top_logprobs]))

    def complete(self, request: Request) -> Completion:
        return collect(self.stream(request, True))

    def stream(self, request: Request, whole: bool = False) -> Iterator[Delta]:
        text = "\n".join(message.content for message in request.prompt.messages)
        if request.temperature > 0 and not self.running:
            self.shared.seed(request.seed)
        with self.lock:
            self.running.append(text)
        try:
            for delta in self.answer(text, request):
                if whole or not delta.steps or delta.steps[0].token.raw:
                    yield delta
        finally:
            with self.lock:
                self.running.remove(text)
                self.asked.append(text)

    def answer(self, text: str, request: Request) -> Iterator[Delta]:
        time.sleep(0.002)
        if self.wrong in ("timed", "serial"):
            start = time.perf_counter()
            with self.one if self.wrong == "serial" else nullcontext():
                for delta in self.generated(text, request):
                    time.sleep(0.001)
                    yield replace(delta, time=time.perf_counter() - start)
        else:
            yield from self.generated(text, request)

    def generated(self, text: str, request: Request) -> Iterator[Delta]:
        if self.wrong == "busy" and len(self.running) > 2:
            raise TargetError("HTTP 429: slow down (3 attempts)")
        if self.wrong == "breaks" and len(self.running) > 1 and self.rng.random() < 0.4:
            raise TargetError("HTTP 500: out of blocks")
        if self.wrong == "collision":
            text = next((one for one in self.asked if one[:90] == text[:90] and len(one) == len(text)), text)
        start = at = self.ahead.get(text, 0)
        for at in range(start, request.max_tokens):
            beside = [one for one in self.running if one != text]
            source = text
            if beside and self.wrong == "swaps" and self.rng.random() < 0.03:
                source = beside[0]
            step = self.step(source, at, beside, request)
            if step is None or (request.cancel is not None and request.cancel()):
                if step is not None and self.wrong == "ahead":
                    self.ahead[text] = at
                break
            steps = (step,) if request.top_logprobs else ()
            if steps and self.wrong == "silent" and at % 9 == 4:
                yield Delta("", (Step(Token(b"", -0.1), step.top),), 0.1)
            if beside and self.wrong == "lost" and at < 12 and self.rng.random() < 0.08:
                continue
            shown = "??" if beside and self.wrong == "garbled" and self.rng.random() < 0.05 else step.token.raw.decode()
            yield Delta(shown, steps, 0.1)
        yield Delta("", (), 0.1, "stop", Usage(3, at - start), "simulated")


def examined(server: Server, logprobs: bool = True, quick: bool = True) -> Stage:
    stage = Stage("load", "Load", "?")
    with Limit(300) as limit:
        case = ExamContext(server, None, quick, kinds={"chat"}, logprobs=logprobs, budget=300, limit=limit)  # type: ignore
        load.load(case, stage)
    return stage


@pytest.mark.parametrize(("best", "outcome"), [(b"zz", Outcome.WRONG), (b"bb", None)])
def test_tokens_that_are_not_the_best(best: bytes, outcome: Outcome | None) -> None:
    """Unless the best one occurs before, where a penalty of repetitions may have excluded it."""
    stage, made = Stage("load", "Load", "?"), Registers("chat", 1)
    steps = (scripted_step(b"bb"), scripted_step(b"cc", (best, -0.01), logprob=-3.0))
    load.add_greedy(stage, {made.fresh(): [Completion("bbcc", steps)] for _ in range(2)})
    assert [check.outcome for check in stage.checks] == ([outcome] if outcome else [])


def test_rates_count_the_codes_that_could_be_lost() -> None:
    """Those of all answers alone; of first answers all, whether they lack some or not."""
    made = Registers("chat", 1)
    one, judge = made.fresh(), Judge({}, recalls=True)
    texts = [Completion(" ".join(one.codes[:count])) for count in (3, 2, 1)]
    first, again = Reply(one, texts[1]), Reply(one, texts[2])
    changes = judge.changes([first, again], [[], texts[:2]])
    assert [(len(change.lost), change.codes) for change in changes] == [(1, 3), (1, 2)]
    figures = {c.name: c.figures.get("codes altered") for c in examined(Server(), logprobs=False).checks}
    assert figures["near hit"] == "0 of 63", "7 prompts of 3 codes, each of 3 times"


def named(stage: Stage) -> dict[str, str]:
    return {c.name: c.figures["family"] for c in stage.checks if c.outcome is Outcome.WRONG}


@pytest.mark.parametrize(
    ("wrong", "logprobs", "recalls"),
    [
        ("", True, True), ("noise", True, True), ("ties", True, False), ("ties", False, True), ("hot", True, True),
        ("hot", False, True), ("busy", True, False), ("silent", True, True),
    ],
)  # fmt: skip
def test_a_right_server_is_not_accused(wrong, logprobs, recalls) -> None:
    stage = examined(Server(wrong, recalls), logprobs)
    assert not stage.outcome.spoils, [c.says for c in stage.checks if c.outcome.spoils]
    seen = {c.name: c for c in stage.checks}
    if wrong == "noise" and logprobs:
        assert seen["8 at once"].outcome is Outcome.DEPENDS and seen["near hit"].outcome is Outcome.OK
    if wrong == "hot":
        assert "does not keep to temperature 0" in seen["alone"].says
    if wrong == "busy":
        assert re.search("at most [1-4] at once", seen["rate limit"].says)


@pytest.mark.parametrize(
    ("wrong", "recalls", "logprobs", "first", "family"),
    [
        ("swaps", False, True, "2 at once", load.NEIGHBOURS),
        ("tokens", False, True, "2 at once", load.ALTERED),
        ("collision", True, False, "near hit", load.ROWS),
        ("collision", False, True, "near hit", load.ROWS),
        ("reuse", True, True, "near hit", load.REUSE),
        ("lost", True, True, "2 at once", load.PIECES),
        ("garbled", False, True, "2 at once", load.PIECES),
        ("ahead", True, True, "after a cut stream", load.REUSE),
    ],
)
def test_a_mistake_is_named_where_it_is_made(wrong, recalls, logprobs, first, family) -> None:
    stage = examined(Server(wrong, recalls), logprobs)
    names = named(stage)
    assert next(iter(names.items()), None) in ((first, family), ("8 at once", family)), [c.says for c in stage.checks]
    shown = next(c for c in stage.checks if c.name in names)
    assert shown.figures["odds against noise"] >= load.ODDS or shown.figures["foreign content"]
    assert shown.next == [load.NEXT[family]] and "would not have been noticed" in shown.limit


@pytest.mark.parametrize(("wrong", "says"), [("timed", "6 answers identical"), ("serial", "never overlapped")])
def test_a_batch_that_never_was_is_not_called_right(wrong: str, says: str) -> None:
    checks = {c.name: c for c in examined(Server(wrong, recalls=False)).checks}
    assert [checks[f"{n} at once"].outcome for n in (2, 8)] == [Outcome.UNSURE if wrong == "serial" else Outcome.OK] * 2
    assert says in checks["2 at once"].says
    assert re.search(r"at most \d answers were seen to overlap", checks["8 at once"].limit)


def test_overlap_counts_where_it_was_seen() -> None:
    """Of three conditions, requests overlapped in the first and the last."""
    stage = Stage("load", "Load", "?")
    with Limit(300) as limit:
        loader = load.Loader(ExamContext(Server(), None, True, kinds={"chat"}, limit=limit), "chat")  # type: ignore
    loader.timed, one = True, loader.made.fresh()

    def again(*spans: tuple[float, ...]) -> list[Change]:
        replies = loader.run([lambda span=span: Reply(one, Completion("", ()), span=span) for span in spans], 2)
        return [Change(reply, 0.0, True) for reply in replies]

    for name, begun in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
        load._examine(loader, stage, load.Condition(name, True, lambda at=begun: again((0.0, 2.0), (at, 3.0))), [one])
    assert [check.outcome for check in stage.checks] == [Outcome.OK, Outcome.UNSURE, Outcome.OK]
    assert ["at most 2 answers" in check.limit for check in stage.checks] == [True, False, True]


def test_what_fails_under_load_and_seeds_that_are_not_kept() -> None:
    errors = {c.name: c for c in examined(Server("breaks")).checks}["errors"]
    assert errors.outcome is Outcome.UNEXPLAINED and "HTTP 500: out of blocks" in errors.says
    seeds = {c.name: c for c in examined(Server("seeds")).checks}["seeds"]
    assert seeds.outcome is Outcome.DEPENDS and seeds.figures["family"] == load.SAMPLING


def test_codes_tell_prompts_apart() -> None:
    made = Registers("chat", 3)
    pairs = [(one, made.near(one)) for one in map(made.fresh, [0, 1, 2] * 13)]
    assert len(made.owners) == 39 * 4, "a near variant has one new code"
    for one, near in pairs:
        texts = [each.prompt(None).messages[0].content for each in (one, near)]  # type: ignore[arg-type]
        assert all(code in texts[0] for code in one.codes) and texts[0] != texts[1]
        assert near.lines[0] == one.lines[0] and near.lines[1] != one.lines[1]
        assert [len(text) for text in texts] == [len(texts[0])] * 2


def test_odds_need_more_than_one_answer_or_a_low_baseline() -> None:
    assert odds(1, 12, 0, 12, "noise") < odds(3, 12, 0, 12, "noise") < load.ODDS < odds(6, 12, 0, 12, "noise")
    assert odds(2, 60, 0, 100, "gross") > 90 > odds(2, 60, 0, 100, "noise")
    assert odds(6, 12, 6, 12, "text") < 2 and odds(3, 36, 21, 36, "text") <= 1, "as many alone, or more"
    assert odds(0, 50, 0, 50, "noise") < 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["rows_swapped", "hash_collision", "positions_off"])
def test_a_bug_in_our_server(name, _model_cache) -> None:
    from benchmarks import under_load

    assert under_load.trial(name, "embedded", True, False, 300.0, ["load"])["outcome"] == "right"
