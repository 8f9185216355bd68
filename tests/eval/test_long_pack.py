"""The pack of facts far back: where they lie, that it is the same everywhere, how it is chosen."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from ds4ref.eval import long_pack, packs
from ds4ref.eval.cli import main
from ds4ref.eval.options import build_parser, measured, read_job
from ds4ref.nano.skills import tokenizer

COUNTS = {"estimate": long_pack.estimate, "nano": lambda text: len(tokenizer().encode(text))}
KEPT = 512 * 4 + 128
"""Tokens that DeepSeek V4 Flash's indexer keeps at most, and its window."""
BOTH = pytest.mark.parametrize("name", COUNTS)


@cache
def pack(name):
    return long_pack.make(count=COUNTS[name])


def notes(q):
    """The text that is shown, without what is asked."""
    return q.question.rpartition("\n")[0]


@BOTH
def test_30_questions_of_three_sources_at_five_depths(name):
    questions = pack(name).questions
    assert Counter(q.source for q in questions) == dict.fromkeys(long_pack.SOURCES, 10)
    assert [q.depth for q in questions] == [depth for depth in long_pack.SIZES for _ in range(6)]
    assert all(len({notes(q) for q in questions[i : i + 6]}) == 1 for i in range(0, 30, 6))
    assert all(q.id == packs.stamped(q) and packs.problem(q) is None for q in questions)
    assert len({q.answer for q in questions}) == 30 and all(10_000 <= int(q.answer) < 100_000 for q in questions)


@BOTH
def test_what_decides_lies_as_far_back_as_stated_and_farther_than_the_indexer_keeps(name):
    """Whole texts are measured here, not lines."""
    for q in pack(name).questions:
        text = notes(q) + "\n"
        found = COUNTS[name](text[text.index(f" {q.answer}.\n") :])
        assert KEPT < 0.74 * q.depth < found <= 1.01 * q.depth, q.id
        assert 1.05 * q.depth < COUNTS[name](text) < 1.09 * q.depth


def test_the_same_on_every_machine():
    """What another Python must make, too: nothing here is drawn but by random()."""
    assert pack("estimate").digest == "969e84b1a9242b318c90a4fe1664228e6dbb2b9ed77462f6bb1b0235393b2f9c"
    assert pack("nano").digest == "17339f1d43af23533bd29d47981101fe41c090195281c15ec830c2d0753dd188"


@pytest.mark.parametrize("sizes, count", [((4096,), 30), ((4096, 5000), 36), ((7000, 5000, 6000, 4096, 4096), 48)])
def test_at_least_30_questions_of_any_sizes(sizes, count):
    questions = long_pack.make(sizes).questions
    assert len({q.digest for q in questions}) == len(questions) == count
    assert len({notes(q) for q in questions}) == count // 6
    assert not {q.digest for q in long_pack.make(sizes, seed=1).questions} & {q.digest for q in questions}


def test_tokens_that_are_too_short_are_one_line():
    with pytest.raises(packs.DataError, match="tokens are too short"):
        long_pack.make((4096,), lambda text: 40 * len(text))


# --- on the command line


def test_the_command_line_makes_it_and_the_engines_tokenizer_measures_it():
    argv = ["--pack", "long", "--long-tokens", "5000,4096", "--only", "hop", "--limit", "4"]
    plain = read_job(build_parser().parse_args(argv))
    assert [q.depth for q in plain.asked] == [4096] * 4 and {q.source for q in plain.asked} == {"long-hop"}
    assert plain.settings.think == "none" and plain.settings.tokens == 256
    found = measured(plain, COUNTS["nano"])
    assert found.pack.digest == long_pack.make((4096, 5000), COUNTS["nano"]).digest != plain.pack.digest
    assert [q.source for q in found.asked] == ["long-hop"] * 4 and found.path == plain.path


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--long-tokens", "4096"], "for --pack long, not for nano"),
        (["--pack", "long", "--long-tokens", "4095"], "from 4096 to 65536"),
        (["--resume", "latest", "--long-tokens", "4096"], "asks the questions of its log"),
        (["--pack", "lang"], "choose from ds4ref, long, nano, recall"),
    ],
)
def test_what_is_refused(argv, said, capsys):
    assert main(argv) == 2
    assert said in capsys.readouterr().err
