"""The pack of facts far back: where they lie, that it is the same everywhere, how it is chosen."""

from __future__ import annotations

from collections import Counter

import pytest

from ds4ref.eval import long_pack, packs
from ds4ref.eval.cli import main
from ds4ref.eval.options import build_parser, read_job

KEPT = 512 * 4 + 128
"""Tokens that DeepSeek V4 Flash's indexer keeps at most, and its window."""


def notes(q):
    """The text that is shown, without what is asked."""
    return q.question.rpartition("\n")[0]


def tokens(text):
    return len(text) / long_pack.CHARACTERS


@pytest.mark.parametrize("sizes, count", [(long_pack.SIZES, 30), ((4096,), 30), ((4096, 5000), 36),
                                          ((7000, 5000, 6000, 4096, 4096), 48)])  # fmt: skip
def test_at_least_30_questions_of_three_sources_at_any_depths(sizes, count):
    questions = long_pack.make(sizes).questions
    assert len({q.digest for q in questions}) == len(questions) == count
    assert Counter(q.source for q in questions) == dict.fromkeys(long_pack.SOURCES, count // 3)
    assert [q.depth for q in questions] == sorted(q.depth for q in questions) and {*sizes} == {
        q.depth for q in questions
    }
    assert len({notes(q) for q in questions}) == count // 6
    assert all(q.id == packs.stamped(q) and packs.problem(q) is None for q in questions)
    assert not {q.digest for q in long_pack.make(sizes, seed=1).questions} & {q.digest for q in questions}


def test_what_decides_lies_as_far_back_as_stated_and_farther_than_the_indexer_keeps():
    """Whole texts are measured here, not lines."""
    for q in long_pack.make().questions:
        text = notes(q) + "\n"
        back = tokens(text[text.index(f" {q.answer}.\n") :])
        assert KEPT < 0.74 * q.depth < back <= 1.01 * q.depth, q.id
        assert 1.05 * q.depth < tokens(text) < 1.09 * q.depth


def test_the_same_on_every_machine():
    """What another Python must make, too: nothing here is drawn but by random()."""
    assert long_pack.make().digest == "969e84b1a9242b318c90a4fe1664228e6dbb2b9ed77462f6bb1b0235393b2f9c"


# --- on the command line


def test_the_command_line_makes_it():
    argv = ["--pack", "long", "--long-tokens", "5000,4096", "--only", "hop", "--limit", "4"]
    job = read_job(build_parser().parse_args(argv))
    assert [q.depth for q in job.asked] == [4096] * 4 and {q.source for q in job.asked} == {"long-hop"}
    assert job.settings.think == "none" and job.settings.tokens == 256


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
