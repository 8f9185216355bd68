"""The log: every sample once, whatever the end was like."""

import dataclasses
import os

import pytest

from ds4ref.errors import DataError, UsageError
from ds4ref.eval import log as logs
from ds4ref.eval.log import Grade, Sample, Writer, header_of
from ds4ref.eval.packs import Header, Pack
from ds4ref.eval.plan import Settings

from .scripted import integer

PACK = Pack(Header("p", 1, "canary"), tuple(integer(i) for i in range(4)))
PLAN = Settings(tokens=2000)
TARGET = {"kind": "local", "name": "/somewhere/m.gguf", "digest": "abc"}


def header(plan=PLAN, pack=PACK, epochs=1, target=TARGET):
    return header_of(pack, plan, epochs, target, {"created": "now"})


def sample(i: int, status="done", **more) -> Sample:
    question = PACK.questions[i]
    grade = Grade("right", str(i)) if status == "done" else None
    return Sample(question.id, 1, PLAN.digest(question), status, str(i), "now", grade=grade, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def test_what_is_written_is_read_and_the_last_of_several_counts(path):
    made = [sample(0, output="a\u2028b\x00\ud7ff"), sample(1, "failed", error="no"), sample(2)]
    with Writer.create(path, header()) as log:
        for entry in made:
            log.add(entry)
            assert logs.read(path).samples[-1] == entry  # on disk already
        log.add(sample(1))
    found = logs.read(path)
    assert found.samples == [made[0], made[2], sample(1)] == list(log.samples.values()) and not found.torn
    assert found.header.plan == PLAN and found.questions == {q.id: q for q in PACK.questions}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "not a log of ds4-eval"),
        (lambda data: data[:40], "not a log of ds4-eval"),
        (lambda data: b'{"pack": "p", "version": 1}\n', "not a log of ds4-eval"),
        (lambda data: data.replace(b"-v1", b"-v9", 1), "another version"),
        (lambda data: data.replace(b'"settings":{', b'"settings":{"shuffle":true,', 1), "shuffled its choices"),
        (lambda data: b"\n".join([*data.split(b"\n")[:1], b'{"id": "q', b""]), "run.jsonl:2: a damaged line"),
        (
            lambda data: data.replace(b'{"id":"', b'{"id":"z', 1),
            "run.jsonl:2: a damaged line: no question .* is called",
        ),
        (
            lambda data: data.replace(b'"facts":{', b'"facts":{"machine":true,', 1),
            "machine is 'True', not a JSON object",
        ),
    ],
)
def test_damage_is_named(path, damage, said):
    with Writer.create(path, header()) as log:
        log.add(sample(0))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=said):
        logs.read(path)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_other_settings_are_refused(path, name):
    old = getattr(PLAN, name)
    other = {"think": "max", "system": "other"}.get(name) or old + 1
    with Writer.create(path, header()):
        pass
    with pytest.raises(UsageError, match=f"other settings: {name} "):
        Writer.resume(path, header(dataclasses.replace(PLAN, **{name: other})))


@pytest.mark.parametrize(
    "other, said",
    [
        ({"pack": Pack(Header("other", 2), PACK.questions[:3])}, r"pack \(p 1 there\)"),
        ({"target": {**TARGET, "digest": "xyz"}}, r"target's digest \(abc there, xyz now\)"),
        ({"target": {"kind": "local"}}, "target's digest"),
        ({"epochs": 1}, "epochs"),
        ({"epochs": 3, "target": {**TARGET, "name": "/elsewhere/m.gguf"}}, ""),
    ],
)
def test_another_pack_or_engine_or_fewer_epochs_are_refused(path, other, said):
    with Writer.create(path, header(epochs=2)):
        pass
    if said:
        with pytest.raises(UsageError, match=said):
            Writer.resume(path, header(**{"epochs": 2, **other}))
    else:
        Writer.resume(path, header(**other)).close()


def test_what_could_not_be_written_is_neither_in_the_log_nor_in_memory(path, monkeypatch):
    with Writer.create(path, header()) as log:
        log.add(sample(0))
        with monkeypatch.context() as patch, pytest.raises(DataError, match="Bad file descriptor"):
            patch.setattr(os, "fsync", lambda fd: os.close(-1))
            log.add(sample(1))
        assert list(log.samples.values()) == logs.read(path).samples == [sample(0)]
        log.add(sample(2))
    assert logs.read(path).samples == [sample(0), sample(2)]


def test_a_log_that_exists_or_is_being_written_is_left_alone(path):
    with Writer.create(path, header()):
        with pytest.raises(UsageError, match="another run"):
            Writer.resume(path, header())
    before = path.read_bytes()
    with pytest.raises(UsageError, match="--resume"):
        Writer.create(path, header())
    assert path.read_bytes() == before
