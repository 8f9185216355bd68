"""The run store: what goes in comes out, whoever else is writing, and what is no store is refused."""

import os
import sqlite3

import pytest

from ds4ref.errors import DataError, UsageError
from ds4ref.runs.store import Store, default_path, schema
from ds4ref.runs.store.rows import vector_row

FACTS = {"model": {"sha256": "ab" * 32}, "seed": 7, "commit": None, "created": "2026-11-21T10:00:00Z"}
ROWS = [{"ctx_tokens": 2048, "gen_tps": 23.22}, {"ctx_tokens": 4096, "gen_tps": 23.19, "steps_s": [0.5, 0.25]}]


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "runs.sqlite") as store:
        yield store


def test_a_run_comes_back_as_it_was(store):
    number = store.add("bench", FACTS, ROWS, label="m2 ultra", tags=["baseline", "q2"])
    run = store.run(number)
    assert (run.kind, run.label, run.status, run.created) == ("bench", "m2 ultra", "complete", FACTS["created"])
    assert run.facts == FACTS and run.tags == ("baseline", "q2") and run.rows == 2
    assert run.fact("model", "sha256") == "ab" * 32 and run.fact("model", "no", "such") is None
    assert store.rows(number) == ROWS


def test_the_row_of_a_checked_case():
    steps = [{"verdict": "match", "delta": -0.5, "kl": 0.25, "logprob": -1.0},
             {"verdict": "flip", "delta": 0.125, "kl": None, "logprob": -0.5},
             {"verdict": "match", "delta": None, "kl": 0.5, "logprob": 0.0}]  # fmt: skip
    case = {"id": "a", "verdict": "flip", "steps": steps, "reason": "why"}
    assert vector_row(case, ["b"]) == {
        "id": "a", "verdict": "flip", "passed": True, "tokens": 3, "top1": 2 / 3, "max_abs": 0.5, "kl": 0.5,
        "reason": "why", "nll": 1.5,
    }  # fmt: skip
    steps[1]["logprob"] = None
    assert "nll" not in vector_row(case, ["a"]) and not vector_row(case, ["a"])["passed"]
    nothing = vector_row({"id": "a", "verdict": "incomparable", "steps": []}, [])
    assert (nothing["tokens"], nothing["top1"], nothing["max_abs"], nothing["kl"]) == (0, None, None, None)
    assert "nll" not in nothing


def test_values_json_does_not_know(store):
    import numpy as np

    row = {"a": float("nan"), "b": [float("inf"), np.float32(0.5)], "c": np.int64(3), "d": "\ud800x", "e": None}
    number = store.add("bench", {}, [row], label="\udcff.csv")
    assert store.rows(number) == [{"a": None, "b": [None, 0.5], "c": 3, "d": "\ud800x", "e": None}]
    assert store.run(number).label == "?.csv"


def test_a_growing_run_keeps_what_it_has(store):
    run = store.begin("vectors", {}, label="long")
    store.append(run, ROWS[:1])
    with Store.open(store.path) as other:
        assert other.run(run).status == "open" and other.rows(run) == ROWS[:1]
    store.append(run, ROWS[1:])
    store.finish(run, "stopped", {"why": "Ctrl-C"})
    assert store.rows(run) == ROWS
    assert (store.run(run).status, store.run(run).facts) == ("stopped", {"why": "Ctrl-C"})


def test_finding_runs(store):
    one = store.add("bench", {}, label="m3")
    two = store.add("vectors", {}, tags=["good"])
    three = store.add("bench", {}, label="m3", tags=["good"])
    assert [run.id for run in store.runs()] == [three, two, one]
    assert [run.id for run in store.runs(kind="bench", limit=1)] == [three]
    assert [run.id for run in store.runs(tag="good")] == [three, two]
    uid = store.run(one).uid
    names = {"latest": three, "latest:vectors": two, "good": three, "m3": three, str(one): one, uid[:12]: one}
    assert {name: store.find(name).id for name in names} == names
    store.tag(two, "m3")
    assert store.find("m3").id == two, "a tag is meant before a label"
    for name in ("99", "nothing", "latest:eval", "%", uid[:4] + "zzzz"):
        with pytest.raises(DataError, match="no "):
            store.find(name)


def test_tags_and_removal(store):
    run, other = store.add("bench", {}, ROWS), store.add("bench", {}, ROWS)
    store.tag(run, "a", "b")
    store.tag(run, "b")
    store.untag(run, "a")
    assert store.run(run).tags == ("b",)
    with pytest.raises(DataError, match="no tag 'a'"):
        store.untag(run, "a")
    for bad in ("", "12", "latest", "two words", "a,b", "x" * 81):
        with pytest.raises(UsageError):
            store.tag(run, bad)
    with pytest.raises(DataError, match="no run 99"):
        store.remove(run, 99)
    assert store.rows(run) == ROWS, "a removal that fails removes nothing"
    store.remove(run)
    with pytest.raises(DataError):
        store.rows(run)
    assert store.rows(other) == ROWS
    raw = sqlite3.connect(store.path)
    assert raw.execute("SELECT count(*) FROM rows").fetchone() == (2,), "rows go with their run"
    raw.close()


def test_what_it_refuses_to_write(store):
    with pytest.raises(UsageError, match="unknown kind"):
        store.add("speed", {})
    with pytest.raises(UsageError, match="unknown status"):
        store.finish(store.begin("bench", {}), "done")
    with pytest.raises(DataError, match="no run 99"):
        store.append(99, ROWS)


def test_an_error_inside_a_transaction_leaves_nothing(store):
    with pytest.raises(UsageError):
        store.add("bench", {}, ROWS, tags=["fine", "not fine"])
    assert store.runs() == []
    store.add("bench", {}, ROWS)
    assert len(store.runs()) == 1


# --- files that are not a store, or not any more


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("content", [b"x", b"ctx_tokens,gen_tps\n" * 20, b"SQLite format 3\0", os.urandom(5000)])
def test_other_files_are_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a run store") as error:
        Store.open(path)
    assert str(path) in one_line(error)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE runs (id INTEGER)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="another program's database"):
        Store.open(path)
    assert path.read_bytes() == before


def test_a_store_from_the_future_is_refused(tmp_path):
    path = tmp_path / "runs.sqlite"
    Store.open(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    db.close()
    with pytest.raises(DataError, match="update ds4ref"):
        Store.open(path)


@pytest.mark.parametrize(
    ("column", "cell"),
    [("runs.label", b"x"), ("runs.created", b"x"), ("runs.facts", b"\xff"), ("runs.facts", 7), ("rows.data", 7),
     ("rows.data", b"\xff"), ("tags.tag", b"x")],
)  # fmt: skip
def test_cells_of_another_type_are_damage_that_check_finds(store, column, cell):
    table, name = column.split(".")
    run = store.add("bench", {}, [{"ctx_tokens": 1}], tags=["a"])
    store._db.execute(f"UPDATE {table} SET {name} = ?", (cell,))
    for read in (store.check, lambda: store.rows(run)):
        with pytest.raises(DataError, match="is damaged|BLOB"):
            read()


def test_unreadable_places(tmp_path):
    with pytest.raises(DataError, match="no run store at"):
        Store.open(tmp_path / "absent.sqlite", create=False)
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError):
        Store.open(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DataError):
        Store.open(file / "runs.sqlite")


def test_where_it_lives(monkeypatch, tmp_path):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path))
    assert default_path() == tmp_path / "runs.sqlite"
    monkeypatch.delenv("DS4_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/x")
    assert str(default_path()) == "/x/ds4ref/runs.sqlite"
    with Store.open(tmp_path / "new" / "folder" / "runs.sqlite") as store:
        assert store.runs() == []


# --- versions


def test_version_1_is_migrated_with_its_runs(tmp_path):
    path = tmp_path / "old.sqlite"
    db = sqlite3.connect(path)
    for statement in schema.MIGRATIONS[0]:
        db.execute(statement)
    db.execute("INSERT INTO runs VALUES (5, 'abcdef12', 'bench', '2026-11-01T00:00:00Z', 'old', 'complete', '{}')")
    db.execute("""INSERT INTO rows VALUES (5, 0, '{"ctx_tokens":1}')""")
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    file = tmp_path / "some.txt"
    file.write_text("x")
    with Store.open(path) as store:
        assert store.rows(store.find("old").id) == [{"ctx_tokens": 1}]
        assert len(store.sha256(file)) == 64, "the table that version 2 brought"
        assert store.add("bench", {}) == 6
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    db.close()


def test_a_migration_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "runs.sqlite"
    with Store.open(path) as store:
        store.add("bench", {}, ROWS)
    broken = (*schema.MIGRATIONS, ("CREATE TABLE extra (x)", "CREATE TABLE nonsense ("))
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    monkeypatch.setattr(schema, "VERSION", len(broken))
    with pytest.raises(DataError):
        Store.open(path)
    monkeypatch.undo()
    with Store.open(path) as store:
        assert store.rows(1) == ROWS
        assert store._db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)


# --- digests


def test_digests_are_computed_once(store, tmp_path, monkeypatch):
    import hashlib

    from ds4ref.runs.store import digests

    path = tmp_path / "model.gguf"
    path.write_bytes(b"a" * 100_000)
    calls = []
    assert (
        store.sha256(path, lambda done, total: calls.append((done, total)))
        == hashlib.sha256(b"a" * 100_000).hexdigest()
    )
    assert calls == [(100_000, 100_000)]
    monkeypatch.setattr(digests, "_read", lambda *_: pytest.fail("read again"))
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    assert store.sha256(link) == store.sha256(path)
    monkeypatch.undo()
    path.write_bytes(b"b" * 100_000)
    os.utime(path, ns=(0, 0))
    newer = hashlib.sha256(b"b" * 100_000).hexdigest()
    assert store.sha256(path) == newer
    kept = store._db.execute("SELECT * FROM digests").fetchall()
    assert kept == [(str(path), 100_000, 0, newer)], "once for a path: an old one would be believed again"
    with pytest.raises(DataError, match="cannot hash"):
        store.sha256(tmp_path / "absent")


def test_a_writer_that_never_lets_go(tmp_path, monkeypatch):
    path = tmp_path / "runs.sqlite"
    with Store.open(path) as store:
        store.add("bench", {})
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with Store.open(path) as store:
        assert len(store.runs()) == 1, "readers do not wait"
        with pytest.raises(DataError, match="locked for 0.05 s") as error:
            store.add("bench", {})
        one_line(error)
        blocker.execute("ROLLBACK")
        blocker.close()
        assert store.add("bench", {}) == 2
