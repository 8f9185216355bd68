"""``ds4-bench drafts``: what is compared, on targets whose clocks and texts are made up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ds4ref.errors import TargetError
from ds4ref.speed_bench.cli import main
from ds4ref.speed_bench.drafts import Cell, measure
from ds4ref.speed_bench.scenes import BYTES, SCENES
from ds4ref.targets import Ability, Completion, Finish, Request, Target
from ds4ref.targets.answer import Usage


class Made(Target):
    """Answers with events of ``size`` tokens, ``seconds`` apart, and the text of ``says``."""

    kind = name = "made"
    abilities = frozenset({Ability.CHAT, Ability.TEXT, Ability.STREAM})

    def __init__(self, seconds: float, size: int = 1, says: Any = None, tokens: int | None = None, log: Any = None):
        self.seconds, self.size, self.says, self.tokens, self.log = seconds, size, says, tokens, log

    def stream(self, request: Request) -> Any:
        raise AssertionError

    def complete(self, request: Request) -> Completion:
        if self.log is not None:
            self.log.append(self.size)
        count = request.max_tokens if self.tokens is None else self.tokens
        events = -(-count // self.size)
        arrivals = tuple(self.seconds * (i + 1) for i in range(events))
        text = request.prompt.text if self.says is None else self.says
        return Completion(text, finish=Finish.LENGTH, usage=Usage(9, count), arrivals=arrivals, seconds=arrivals[-1],
                          sizes=(4 * self.size,) * events)  # fmt: skip


def measured(a: Made, b: Made, scene: str = "prose", rounds: int = 4, streams: int = 1) -> Cell:
    cell = Cell(scene, 0, streams)
    for number in range(rounds):
        measure((a, b), SCENES[scene], cell, 64, False, number)
    return cell


def test_committed_tokens_count_whatever_the_events_hold() -> None:
    """Two tokens an event, at the rate of 1.5 events: B is 1.33 times as fast."""
    cell = measured(Made(0.01), Made(0.015, size=2))
    assert cell.to_json()["ratio"] == pytest.approx(4 / 3, rel=0.03)
    assert cell.to_json()["tokens_per_event"] == [1.0, 2.0]
    assert cell.equal == [4, 4]


def test_the_order_of_the_targets_alternates() -> None:
    log: list[int] = []
    measured(Made(0.01, log=log), Made(0.01, size=2, log=log))
    assert log == [1, 2, 2, 1, 1, 2, 2, 1]


def test_answers_that_differ_are_counted_but_not_where_they_are_sampled() -> None:
    assert measured(Made(0.01), Made(0.01, says="other"), streams=3).equal == [0, 12]
    assert measured(Made(0.01), Made(0.01, says="other"), "random").equal == [0, 0]


def test_short_answers_give_no_rate() -> None:
    with pytest.raises(TargetError, match="fewer than 8 tokens"):
        measured(Made(0.01), Made(0.01, tokens=7))


@pytest.mark.parametrize("name", SCENES)
def test_scenes_reach_their_depth_and_differ_by_seed(name: str) -> None:
    scene = SCENES[name]
    short, again, other = (scene.prompt(0, 64, seed) for seed in (1, 1, 2))
    assert short == again != other
    assert len(scene.prompt(3000, 64, 1)) >= 3000 * BYTES > len(short)
    assert scene.prompt(3000, 64, 1).endswith(short)


def test_the_command_on_the_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Drafts change no greedy answer; what is asked wrongly is refused before anything is measured."""
    targets = ["local?draft=off&threads=1", "local?draft=lookup&threads=1"]
    given = [targets[0], "--target", targets[1]]
    assert main(["drafts", *given, "--rounds", "1", "--answer", "16", "--scenes", "edit,json", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["equal_answers"] for cell in cells] == [[1, 1], [1, 1]]
    assert [cell["low"] for cell in cells] == [None, None]  # one round has no interval
    many = [part for target in (*targets, "local") for part in ("--target", target)]
    for arguments, says in (
        (targets[:1], "not 1"),
        (many, "not 3"),
        ([*targets, "--scenes", "prosa"], "choose from prose"),
    ):
        assert main(["drafts", *arguments]) == 2
        assert says in capsys.readouterr().err
