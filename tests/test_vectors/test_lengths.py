"""The stage "lengths": what is named, and what is not, by answers and by log probabilities."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.lengths import BUGS, examined, served
from ds4ref.engine import Engine
from ds4ref.errors import TargetError
from ds4ref.nano import embedded_path
from ds4ref.targets import Ability, Delta, Step, Token, Usage
from ds4ref.test_vectors.doctor import lengths, probes
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.examination import Stage
from ds4ref.test_vectors.doctor.patterns import NONE, Constants, Fit
from ds4ref.test_vectors.doctor.probes import Record
from ds4ref.test_vectors.doctor.trials import explained
from ds4ref.test_vectors.doctor.yardstick import Yardstick
from ds4ref.test_vectors.finding import Outcome
from ds4ref.test_vectors.observation import log_softmax
from ds4ref.variants import LIBRARY, Runner
from ds4ref.variants.families import FAMILIES

from .scripted import Scripted

FLASH = Constants()
NANO = Constants(64, (4, 128), 32)


# ------------------------------------------------------------------------------------------------- the fit


def records(constants: Constants, fails=lambda r, rng: False, differs=None, seed=0) -> list[Record]:
    """Make the records of the full plan: ``fails`` says which are not repeated, ``differs`` gives nats."""
    rng, out = np.random.default_rng(seed), []
    short = [(kind, length, 10) for kind in ("item", "copy") for length in lengths.SHORT]
    for kind, length, distance in [*short, *lengths.plan(constants, quick=False, long=True)]:
        made = Record("word" if kind == "item" else "words", length, True, None, distance, "lamp", "", True)
        lost = bool(fails(made, rng))
        gaps = () if differs is None else differs(made, rng)
        out.append(replace(made, match=not lost, gaps=tuple(gaps)))
    return out


def named(made: list[Record], constants: Constants, numbers: bool) -> str:
    chances = Fit(made, constants, numbers).families()
    family, chance = next(iter(chances.items()))
    return family if chance > lengths.SURE else f"unsure: {family}"


@pytest.mark.parametrize("constants", [FLASH, NANO], ids=["flash", "nano"])
@pytest.mark.parametrize(
    "family, fails",
    [
        ("groups", lambda r, rng: r.length % 4 == 3),
        ("groups", lambda r, rng: r.length % 4 in (1, 2) and rng.random() < 0.7),
        ("cut", lambda r, rng: r.distance > 6000),
        ("cut", lambda r, rng: r.distance > 900 and r.length - r.distance > 500),
        ("onset", lambda r, rng: r.length > 7000),
    ],
)
def test_answers_that_fail_by_a_pattern(constants, family, fails) -> None:
    assert named(records(constants, fails), constants, False) == family


def test_what_lies_beyond_the_window_or_the_indexer() -> None:
    """The same failures mean other parts of models whose window and indexer are of other sizes."""
    for constants, limit, family in (
        (NANO, 64, "rows"), (FLASH, 128, "rows"), (NANO, 128, "topk"), (FLASH, 512, "topk"),
    ):  # fmt: skip
        assert named(records(constants, lambda r, rng, n=limit: r.distance > n), constants, False) == family


@pytest.mark.parametrize(
    "family, size",
    [
        ("groups", lambda r: (0, 0.01 * (r.length % 4 == 3))),
        ("groups", lambda r: (0, 0.5 * (r.length % 4 != 0))),
        ("groups", lambda r: (0, 0.5 * (r.length % 128 >= 120))),
        ("window", lambda r: (0.003 * (r.length >= 64), 0.1 * (r.length + 10 >= 64))),
        ("window", lambda r: (0.003 * (r.length >= 65), 0.1 * (r.length + 10 >= 65))),
        ("topk", lambda r: (0.01 * (r.length >= 132), 0.05 * (r.length + 10 >= 132))),
        ("onset", lambda r: (0.1 * (r.length > 610), 0.1 * (r.length + 10 > 610))),
        ("rope", lambda r: (1e-4 * r.length**0.9, 2e-4 * r.length**0.9)),
    ],
    ids=range(8),
)
def test_numbers_that_differ_by_a_pattern(family, size) -> None:
    def differs(record, rng):
        return tuple(float(v * 10 ** rng.normal(0, 0.4) + 1e-6 * rng.random()) for v in size(record))

    assert named(records(NANO, differs=differs), NANO, True) == family


def test_residues_of_tokens_and_a_window_that_is_some_rows_off() -> None:
    """A token that misses a row at every fourth position; a window three rows short, which may be a chunk's edge."""

    def differs(record, rng, size):
        return [float(size(record.length + i) * 10 ** rng.normal(0, 0.3)) for i in range(12)]

    made = records(NANO, differs=lambda r, rng: differs(r, rng, lambda at: 0.01 if at % 4 else 0.3))
    assert named(made, NANO, True) == "groups"
    made = records(NANO, differs=lambda r, rng: differs(r, rng, lambda at: 0.1 * (at >= 62)))
    chances = Fit(made, NANO, True).families()
    assert chances["window"] + chances["onset"] > lengths.SURE > chances["onset"]


@pytest.mark.thorough
def test_a_bug_explains_a_difference_that_is_gone_with_it(_model_cache) -> None:
    """Whatever the target's rounding is; bugs that are not tried, and rounding itself, are explained by none."""
    with Engine.open(embedded_path(), threads=1) as engine:
        tokenizer, runner = engine.tokenizer, Runner(engine)
        words = tokenizer.encode("The old mill stands by the river and the miller keeps a lamp. " * 24)
        prompts, answer = [[tokenizer.bos, *words[:size]] for size in (180, 290)], words[:6]

        def spoken(row: np.ndarray, number: int) -> Step:
            top = [Token(tokenizer.token_bytes(i), float(row[i]), i) for i in map(int, np.argsort(-row)[:20])]
            return Step(Token(tokenizer.token_bytes(number), float(row[number]), number), tuple(top))

        for bugs, mode, family in (
            ([FAMILIES["yarn_factor"].fault(4)], "exact", "rope"),
            ([FAMILIES["indexer_topk"].fault(12)], "exact", "topk"),
            ([LIBRARY["window_long"]], "ds4", "window"), ([LIBRARY["no_sink"]], "exact", None), ([], "ds4", None),
        ):  # fmt: skip
            target = []
            for ids in prompts:
                rows = log_softmax(np.float64(runner.run([*ids, *answer], mode, bugs)[0][len(ids) - 1 :]))
                target.append((ids, [spoken(row, number) for row, number in zip(rows, [*answer, 0], strict=True)]))
            silent = Scripted([])
            silent.identity = dict  # it does not tell how it rounds
            trial = explained(ExamContext(silent, engine), target)
            assert (trial and trial.family) == family, trial


def test_an_edge_between_lengths_that_were_sent_may_be_the_reason() -> None:
    """With no length between 62 and 200, a bug of the indexer from 132 on is not blamed on positions."""
    made = [r for r in records(NANO, differs=lambda r, rng: (float(r.length >= 132),) * 2) if not 62 < r.length < 200]
    chances = Fit(made, NANO, True).families()
    assert chances["topk"] > 0.1 and chances["onset"] < lengths.SURE


@pytest.mark.parametrize("rate", [0.0, 0.03, 0.3, 0.9])
def test_chance_is_no_pattern(rate) -> None:
    """Failures at random, and noise of any level, have a pattern in at most 1 of 100 draws."""
    wrong = 0
    for seed in range(25):
        made = records(
            NANO, lambda r, rng: rng.random() < rate, lambda r, rng: tuple(10 ** rng.normal(-2, 0.4, 2)), seed
        )
        wrong += sum(not named(made, NANO, each).endswith(NONE) for each in (False, True))
    assert wrong <= 1


def test_what_our_engine_fails_too_is_no_failure() -> None:
    made = records(NANO, lambda r, rng: r.length % 4 == 3)
    blamed = [Record(**{**vars(r), "expected": r.match}) for r in made]
    assert named(blamed, NANO, False) == "unsure: none" or named(blamed, NANO, False) == NONE


@pytest.mark.parametrize(
    "size, rounding, outcome",
    [
        (lambda n: 1e-5 + 0.1 * (n >= 132), None, Outcome.WRONG),
        (lambda n: 0.02 + 2.0 * (n >= 132), None, Outcome.UNSURE),  # the numbers of another rounding everywhere
        (lambda n: 0.02 + 2.0 * (n >= 132), "exact", Outcome.WRONG),
        (lambda n: 1e-4 * n, None, Outcome.UNSURE),
        (lambda n: 1e-4 * n, "exact", Outcome.WRONG),
        (lambda n: 0.02, None, Outcome.UNSURE),
        (lambda n: 1e-6, None, Outcome.OK),
    ],
    ids=range(7),
)
def test_rounding_is_no_bug(engine, monkeypatch, size, rounding, outcome) -> None:
    """A pattern is wrong only where nothing but a bug can make it."""
    monkeypatch.setattr(lengths, "_yard", lambda case, prober: Yardstick(np.full(100, 1e-3), "of a test"))
    made = records(NANO, differs=lambda r, rng: [
        float(size(r.length + i) * 10 ** rng.normal(0, 0.1)) for i in range(12)])  # fmt: skip
    target = Scripted([])
    target.identity = dict  # it does not tell how it rounds
    case = ExamContext(target, engine, mode=rounding)
    stage = Stage("lengths", "Lengths", "?")
    lengths.numbers(case, stage, SimpleNamespace(records=made, compared=[]), NANO)
    assert stage.outcome is outcome, stage.says
    assert ("family" in stage.checks[0].figures) is (outcome is Outcome.WRONG), "no family without a verdict"


# ------------------------------------------------------------------------------------------- whole examinations

WORD = re.compile(r"\w+|[^\w\s]+|\n+")


class Reader(Scripted):
    """A target that reads prompts rightly, or with a mistake.

    lost    whether the answer to a prompt is garbled: (tokens, tokens from the item to the end) -> bool
    cut     the words that a prompt's words become
    most    largest prompt in tokens; 0: any
    counts  whether it reports token counts
    """

    kind = "http"

    def __init__(self, lost=lambda n, d: False, cut=lambda spans: spans, most=0, counts=True):
        super().__init__([])
        self.lost, self.cut, self.most, self.counts = lost, cut, most, counts
        self.abilities = frozenset({Ability.CHAT})

    def stream(self, request):
        self.asked.append(request)
        text = request.prompt.user
        spans = [m.span() for m in WORD.finditer(text)]
        seen = self.cut(spans)
        if self.most and len(spans) > self.most:
            raise TargetError(f"400: at most {self.most} tokens")
        kept = " ".join(text[a:b] for a, b in seen)
        answer, apart = "I do not know.", 0
        if copy := re.search(r"Copy : (.*)$", kept):
            answer = copy[1]
        elif asked := re.search(r"What does (\w+) keep \?$", kept):
            fact = re.search(rf"{asked[1]} keeps the ((?:code )?\w+(?: - \d+)?) \.", kept)
            if fact:
                answer, apart = fact[1].replace(" - ", "-"), len(WORD.findall(kept[fact.end() :])) + 1
        if self.lost(len(spans) + 5, apart):
            answer = answer[:-1] + ("0" if answer[-1:] != "0" else "1")
        usage = Usage(len(seen) + 5, 5) if self.counts else Usage()
        yield Delta(answer, (), 0.1, "stop", usage, "reader")


def examine(engine, target, **more) -> dict[str, SimpleNamespace]:
    stage = Stage("lengths", "Lengths", "?")
    lengths.lengths(ExamContext(target, engine, kinds={"chat"}, **more), stage)
    return {check.name: check for check in stage.checks}


@pytest.mark.parametrize(
    "mistake, outcome, family",
    [
        ({}, Outcome.OK, None),
        ({"counts": False}, Outcome.OK, None),
        ({"most": 3000}, Outcome.OK, None),
        ({"lost": lambda n, d: n % 4 == 3}, Outcome.WRONG, "groups"),
        ({"lost": lambda n, d: n % 4 == 3 and n > 10_000}, Outcome.WRONG, "groups"),
        # a model may be that weak: neither accused nor named
        ({"lost": lambda n, d: d > 128}, Outcome.UNSURE, "rows"),
        ({"lost": lambda n, d: d > 2048}, Outcome.UNSURE, "topk"),
        ({"lost": lambda n, d: n > 8000}, Outcome.UNSURE, "onset"),
        ({"cut": lambda spans: spans[-3000:], "counts": False}, Outcome.UNSURE, "cut"),
    ],
    ids=range(9),
)
def test_servers_that_read(engine, mistake, outcome, family) -> None:
    checks = examine(engine, Reader(**mistake))
    found = checks["answers"]
    shown = found.figures.get("family" if outcome is Outcome.WRONG else "resembles")
    assert (found.outcome, shown) == (outcome, family), found.says
    assert ("family" in found.figures) is (outcome is Outcome.WRONG)
    assert "prompt cut" not in checks
    assert ("refused 4,0" in checks["largest prompt"].says) is ("most" in mistake)


def test_tokens_that_are_not_counted_are_a_cut_prompt(engine) -> None:
    checks = examine(engine, Reader(cut=lambda spans: spans[:100] + spans[-2000:] if len(spans) > 2100 else spans))
    assert checks["prompt cut"].outcome is Outcome.WRONG and checks["prompt cut"].figures["family"] == "cut"


def test_residues_are_reached_by_the_servers_own_counts(engine) -> None:
    target = Reader()
    sent = [r["length"] for r in examine(engine, target, quick=True)["answers"].figures["records"]]
    assert {n % 4 for n in sent if 199 < n < 204} == {0, 1, 2, 3} and max(sent) > 990
    assert len(target.asked) < 60


def test_errors_in_the_middle_keep_what_was_seen(engine) -> None:
    target = Reader()
    right, count = target.stream, iter(range(1000))

    def stream(request):
        if next(count) == 12:
            raise TargetError("500: busy")
        yield from right(request)

    target.stream = stream
    checks = examine(engine, target, quick=True)
    assert checks["answers"].outcome is Outcome.OK and "500: busy" in checks["largest prompt"].says


def test_items_in_answers() -> None:
    for kind, item, text, right in (
        ("word", "lamp", "Ana keeps the Lamp.", True), ("word", "lamp", "lamps", False),
        ("code", "KX-48213", "`KX-48213`", True), ("code", "KX-48213", "KX-482131", False),
        ("digits", "1 2 3 4 5 6", "123456", True), ("digits", "1 2 3 4 5 6", "1 2 3 4 5 7", False),
        ("words", "cup map", "cup, map", True), ("words", "cup map", "map cup", False),
    ):  # fmt: skip
        assert probes.matches(kind, item, text) is right, text


@pytest.mark.parametrize("name, families", [("", (None, None)), ("state_4", (None, "groups"))])
def test_our_own_server(engine, _model_cache, name, families) -> None:
    """Quick examinations: nothing is wrong with the right server, a lost group is named by log probabilities."""
    with Engine.open(embedded_path(), threads=1) as ours, served(BUGS.get(name), embedded_path()) as url:
        numbers = examined(url, ours, False, True, 60.0)
        answers = examined(url, engine, True, True, 60.0)
    assert answers["answers"][0] == "ok" and answers["log probabilities"][0] == "impossible"
    assert numbers["answers"][0] == "ok" and numbers["log probabilities"][0] == ("wrong" if name else "ok")
    assert numbers["log probabilities"][1] == (families[1] or "")
