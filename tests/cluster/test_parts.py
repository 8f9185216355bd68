"""Layouts, histories, digests and streams on their way: each against a plain computation."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.cluster import actor as actor_module
from ds4ref.cluster.actor import Answer, Instruction
from ds4ref.cluster.digest import tensors_digest
from ds4ref.cluster.history import Base, back, chain, passed
from ds4ref.cluster.layout import balanced, parse
from ds4ref.cluster.open import _placed
from ds4ref.cluster.stage import StageSpec
from ds4ref.engine_options import EngineOptions
from ds4ref.errors import UsageError
from ds4ref.weights import open_source
from ds4ref.weights.published import PublishedSource
from tests.weights.checkpointfile import write_small


def test_layouts_by_hand() -> None:
    assert parse("0-20@a, 21-42@tcp://b:1", 43, range(43)) == [("a", range(21)), ("tcp://b:1", range(21, 43))]
    assert parse("0@0,1@1", 2, range(2)) == [("0", range(1)), ("1", range(1, 2))]
    for text, said in (
        ("0-20@a", "end at 20, the model's last is 42"),
        ("0-20@a,22-42@b", "the next layer is 21"),
        ("0-20@a,20-42@b", "the next layer is 21"),
        ("0-50@a", "end at 50"),
        ("1-42@a", "the next layer is 0"),
        ("5-3@a", "next layer is 0"),
        ("0-20,21-42", "LAYERS@WORKER"),
        ("", "LAYERS@WORKER"),
        ("0-20@a,21-42@a", "worker a has two parts"),
    ):
        with pytest.raises(UsageError, match=said):
            parse(text, 43, range(43))
    assert parse("0-4@a,5-8@b", 9, [0, 1, 2, 5])[1] == ("b", range(5, 9))
    for text, said in (("0-3@a,4-8@b", "not at layer 4, but at 2 or 5"), ("0-7@a,8@b", "not at layer 8, but at 5")):
        with pytest.raises(UsageError, match=f"@b': a part of this model can begin {said}$"):
            parse(text, 9, [0, 1, 2, 5])


def test_the_largest_part_is_as_small_as_can_be() -> None:
    """Against all layouts there are."""
    costs = np.random.default_rng(5).integers(1, 20, 8).tolist()
    for starts, workers in [(range(8), n) for n in range(1, 9)] + [((0, 1, 2, 5), n) for n in range(1, 5)]:
        every = [(0, *ends, 8) for ends in itertools.combinations(starts[1:], workers - 1)]
        layout = balanced(costs, workers, starts)
        bounds = (0, *(part.stop for part in layout))
        assert [part.start for part in layout] == list(bounds[:-1]) and bounds in every
        assert max(sum(costs[part.start : part.stop]) for part in layout) == min(
            max(sum(costs[a:b]) for a, b in itertools.pairwise(one)) for one in every
        )
    with pytest.raises(UsageError, match="3 workers are more than the model has parts, 2: "):
        balanced([1] * 4, 3, [0, 1])


def test_another_worker_stands_in_unless_named() -> None:
    layout = [("a", range(2)), ("tcp://b", range(2, 3))]
    there = {"a": "tcp://a", "b": "tcp://b", "c": "tcp://c"}
    assert [place.name for place in _placed(layout, there, strict=True)] == ["a", "b"]
    del there["a"]
    assert _placed(layout, there, strict=True)[0] is None
    assert [(place.name, place.address) for place in _placed(layout, there, strict=False)] == [
        ("c", "tcp://c"), ("b", "tcp://b")
    ]  # fmt: skip
    del there["c"]
    assert _placed(layout, there, strict=False)[0] is None


def test_histories() -> None:
    base = Base(100)
    base.restart(10)
    a = passed(base, [1, 2, 3], False)
    b = passed(a, [4], True)
    c = passed(b, [5, 6], False)
    assert (c.end, back(c, 16), back(c, 14), back(c, 13), back(c, 10)) == (16, c, b, a, base)
    part = back(c, 15)
    assert (part.kept, part.end, part.serial, part.ids) == (1, 15, c.serial, (5, 6))
    assert back(part, 15) is part and back(part, 14) is b
    further = passed(part, [7], True)
    assert [(one.ids, one.kept) for one in chain(further)[1]] == [((1, 2, 3), 3), ((4,), 1), ((5, 6), 1), ((7,), 1)]
    assert chain(further)[0] is base and len({one.serial for one in chain(further)[1]}) == 4


def test_digests_tell_files_apart(nano_path: str, tmp_path) -> None:
    data = Path(nano_path).read_bytes()
    with open_source(nano_path) as source:
        names = list(source.tensors)
        large = max(source.tensors.values(), key=lambda info: info.nbytes)
        small = source.tensors["output_norm.weight"]
        wanted, fewer = tensors_digest(source, names), tensors_digest(source, names[1:])
        assert large.nbytes > 64 << 10
        others = [name for name in names if name not in (large.name, small.name)]
        same = tensors_digest(source, others)
    assert fewer != wanted
    for at in (large.offset, large.offset + large.nbytes - 1, small.offset + small.nbytes - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        (tmp_path / "other.gguf").write_bytes(changed)
        with open_source(tmp_path / "other.gguf") as source:
            assert tensors_digest(source, names) != wanted
            assert tensors_digest(source, others) == same


def test_a_published_folder_is_told_apart_without_converting_it(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_small(tmp_path / "folder")
    monkeypatch.setattr(PublishedSource, "piece", lambda *_: pytest.fail("converted"))
    with open_source(folder) as source:
        assert isinstance(source, PublishedSource)
        name = next(name for name in source.tensors if name.endswith("down_exps.weight"))
        wanted = tensors_digest(source, [name])
        last = source._parts(name)[-1]
        path = Path(source.checkpoint.files[last.shard].path)
    with path.open("r+b") as file:
        file.seek(last.offset)
        byte = file.read(1)[0]
        file.seek(last.offset)
        file.write(bytes([byte ^ 1]))
    with open_source(folder) as source:
        assert tensors_digest(source, [name]) != wanted


class CountingStage:
    """In place of a stage: returns what came in, and fails when told to."""

    is_first, is_last, facts = False, True, ()

    def __init__(self, spec: StageSpec):
        self.closed = False

    def do(self, name: str, *arguments: Any, incoming: Any = None) -> tuple[Any, float]:
        if name == "fail":
            raise ValueError("told to")
        return (name, arguments, None if incoming is None else incoming.tolist()), 0.5

    def close(self) -> None:
        self.closed = True


LOAD = "m", range(1), EngineOptions("cpu", "qat", 1)


def worked() -> tuple[Any, threading.Thread, Any, list[Answer]]:
    """A queue whose thread runs, the thread, what posts an instruction, and its answers."""
    queue, answers = actor_module._Queue(), []
    thread = threading.Thread(target=queue.work, daemon=True)
    thread.start()

    def post(number: int, name: str, passes: int = 0, arguments: tuple = ()) -> None:
        queue.post(number, Instruction(passes, name, arguments, lambda answer, onward: answers.append(answer)))

    return queue, thread, post, answers


def test_instructions_are_carried_out_in_order_however_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_module, "Stage", CountingStage)
    queue, thread, post, answers = worked()
    post(2, "run", 8, (2,))
    queue.take(9, np.array([9.0]))
    post(3, "run", 9, (3,))
    post(1, "run", 7, (1,))
    post(0, "load", 0, LOAD)
    queue.take(8, np.array([1.0]))
    queue.take(7, np.array([7.0]))
    post(4, "fail")
    post(5, "run", 10)  # nothing more is tried
    queue.take(11, np.array([1.0]))
    deadline = time.monotonic() + 20
    while len(answers) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [answer.value for answer in answers[1:4]] == [
        ("run", (1,), [7.0]), ("run", (2,), [1.0]), ("run", (3,), [9.0])
    ]  # fmt: skip
    assert [answer.error for answer in answers] == [None] * 4 + ["ValueError: told to"] * 2
    queue.take(12, np.array([1.0]))
    assert not queue._streams
    queue.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_a_stopped_stage_answers_whatever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that lacks its streams, what is to follow it, what lacks its turn, and what comes later."""
    monkeypatch.setattr(actor_module, "Stage", CountingStage)
    queue, thread, post, answers = worked()
    post(0, "load", 0, LOAD)
    post(1, "run", 7)
    post(2, "run", 8)
    post(4, "fail")
    deadline = time.monotonic() + 20
    while (len(answers) < 1 or 1 in queue._waiting) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(answers) == 1
    queue.stop()
    thread.join(20)
    assert not thread.is_alive() and [answer.error for answer in answers] == [None] + ["stopped"] * 3
    post(5, "counts")
    queue.take(7, np.array([7.0]))
    assert [answer.error for answer in answers[4:]] == ["stopped"] and not queue._streams and not queue._waiting
