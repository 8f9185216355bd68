"""The log: every sample once, whatever the end was like."""

import dataclasses
import errno
import os

import msgspec
import pytest

from ds4ref.errors import DataError, UsageError
from ds4ref.eval import log as logs
from ds4ref.eval.log import Grade, Sample, Writer, header_of
from ds4ref.eval.packs import Header, Pack, Question
from ds4ref.eval.plan import Key, Settings

PACK = Pack(
    Header("p", 1, "canary"),
    tuple(Question(f"q-{i}", "s", "d", "hard", "integer", f"{i}?", (), str(i)) for i in range(4)),
)
PLAN = Settings(tokens=2000)
TARGET = {"kind": "local", "name": "/somewhere/m.gguf", "digest": "abc"}


def header(plan=PLAN, pack=PACK, epochs=1, target=TARGET):
    return header_of(pack, plan, epochs, target, {"created": "now"})


def sample(i: int, status="done", epoch=1, **more) -> Sample:
    question = PACK.questions[i]
    grade = Grade("right", str(i)) if status == "done" else None
    return Sample(question.id, epoch, PLAN.digest(question), status, str(i), "now", grade=grade, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def test_what_is_written_is_read(path):
    made = [sample(0, output="a\u2028b\x00\ud7ff", order=(1, 0)), sample(1, "failed", error="no"), sample(2)]
    with Writer.create(path, header()) as log:
        for entry in made:
            log.add(entry)
            assert logs.read(path).samples[-1] == entry  # on disk already
    found = logs.read(path)
    assert found.samples == made and not found.torn
    assert found.header.plan == PLAN and found.questions == {q.id: q for q in PACK.questions}
    assert [s.id for s in found.done] == ["q-0", "q-2"]


def test_the_last_of_several_counts_and_is_the_last(path):
    with Writer.create(path, header()) as log:
        for entry in (sample(0, "failed"), sample(1), sample(0)):
            log.add(entry)
    assert logs.read(path).samples == [sample(1), sample(0)]
    assert list(log.samples) == [Key(1, "q-1"), Key(1, "q-0")]


def test_every_torn_end_is_tolerated(path, tmp_path):
    with Writer.create(path, header()) as log:
        for i in range(3):
            log.add(sample(i))
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for cut in range(ends[0], len(whole) + 1):
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(whole[:cut])
        lines = sum(end <= cut for end in ends) - 1
        found = logs.read(torn)
        assert len(found.samples) == lines
        assert found.torn == (cut not in ends)
        if cut % 97 == 0 or cut in ends:
            with Writer.resume(torn, header()) as log:
                for i in range(lines, 3):
                    log.add(sample(i))
            assert torn.read_bytes() == whole


@pytest.mark.parametrize("cut", [0, 5, 40])
def test_a_torn_header_is_no_log(path, cut):
    with Writer.create(path, header()):
        pass
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="not a log of ds4-eval"):
        logs.read(path)


def test_damage_in_the_middle_is_named(path):
    with Writer.create(path, header()) as log:
        log.add(sample(0))
        log.add(sample(1))
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:30]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match="run.jsonl:2: a damaged line"):
        logs.read(path)


def test_something_else_is_no_log(path):
    path.write_text('{"pack": "p", "version": 1}\n')
    with pytest.raises(DataError, match="not a log of ds4-eval"):
        logs.read(path)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(header(), schema="ds4-eval-log-v9")) + b"\n")
    with pytest.raises(DataError, match="another version"):
        logs.read(path)
    with pytest.raises(DataError, match="No such file"):
        logs.read(path.with_name("none"))


def test_a_log_that_exists_is_not_overwritten(path):
    path.write_text("mine")
    with pytest.raises(UsageError, match="--resume"):
        Writer.create(path, header())
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_other_settings_are_refused(path, name):
    old = getattr(PLAN, name)
    other = {"think": "max", "system": "other"}.get(name) or (not old if isinstance(old, bool) else old + 1)
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
    ],
)
def test_another_pack_or_engine_is_refused(path, other, said):
    with Writer.create(path, header()):
        pass
    with pytest.raises(UsageError, match=said):
        Writer.resume(path, header(**other))


def test_fewer_epochs_are_refused_and_more_are_not(path):
    with Writer.create(path, header(epochs=2)):
        pass
    with pytest.raises(UsageError, match="epochs"):
        Writer.resume(path, header(epochs=1))
    with Writer.resume(path, header(epochs=3, target={**TARGET, "name": "/elsewhere/m.gguf"})):
        pass


def test_two_runs_into_one_log(path):
    with Writer.create(path, header()):
        with pytest.raises(UsageError, match="another run"):
            Writer.resume(path, header())
    with Writer.resume(path, header()):
        pass


def test_a_full_disk_leaves_whole_lines(path, monkeypatch):
    with Writer.create(path, header()) as log:
        log.add(sample(0))
        before = path.read_bytes()

        def full(fd):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(logs.os, "fsync", full)
        with pytest.raises(DataError, match="No space left"):
            log.add(sample(1))
        assert path.read_bytes() == before and Key(1, "q-1") not in log.samples
        monkeypatch.undo()
        log.add(sample(1))
    assert logs.read(path).samples == [sample(0), sample(1)]


def test_a_log_that_cannot_be_begun_leaves_nothing(path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(logs.os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        Writer.create(path, header())
    assert not path.exists()
