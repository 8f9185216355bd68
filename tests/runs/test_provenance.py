"""Where a figure comes from: commit, command, times, and the digests that tell models apart."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4ref.engine import Engine
from ds4ref.reports.build import assemble
from ds4ref.runs import provenance
from ds4ref.runs.compare import compare
from ds4ref.runs.evals import eval_facts
from ds4ref.session.identity import Identity
from ds4ref.targets.local import LocalTarget
from ds4ref.weights import open_source

from ..badfiles import Draft
from .simulate import run


def test_a_commit_with_changes_is_marked(tmp_path, monkeypatch):
    """A figure of code that nobody can check out again must not name a clean commit."""
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "ds4ref" / "runs" / "provenance.py"))
    assert provenance.commit() is None, "an installed copy"

    def git(*args):
        who = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(["git", "-C", tmp_path, *who, *args], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    assert provenance.commit() is None, "no commit yet"
    (tmp_path / "kept").write_text("1")
    git("add", "kept")
    git("commit", "-qm", "x")
    head = git("rev-parse", "HEAD")
    assert provenance.commit() == head
    (tmp_path / "other").write_text("1")
    assert provenance.commit() == head, "files that git does not know are no change"
    (tmp_path / "kept").write_text("2")
    assert provenance.commit() == f"{head}+"


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_seconds_between_stamps_do_not_depend_on_the_zone(zone, monkeypatch):
    """Also over the day on which clocks change."""
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert provenance.age("2026-03-08T06:59:59Z", "2026-03-08T07:00:01Z") == 2
        assert provenance.age("2026-11-01T10:00:00Z", "2026-10-31T10:00:00Z") == -86400
        assert (
            provenance.age(None, "2026-11-01T10:00:00Z") is provenance.age("yesterday", "2026-11-01T10:00:00Z") is None
        )
        made = provenance.stamp(["x", "-y"])
        assert 0 <= provenance.age(made["created"], provenance.now()) < 60 and made["command"] == ["x", "-y"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_command_names_the_program_and_not_its_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/home/me/bin/ds4-bench", "-r", "5"])
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=None))
    assert provenance.own_command() == ["ds4-bench", "-r", "5"]
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name="ds4ref.x.__main__")))
    assert provenance.own_command() == ["python", "-m", "ds4ref.x", "-r", "5"]


def test_digests_of_a_model(nano_path, tmp_path, monkeypatch):
    """The header's ends where the first tensor begins: two quantizations of one model have different ones."""
    with open(nano_path, "rb") as file:
        data = file.read()
    with open_source(nano_path) as source:
        first = min(info.offset for info in source.tensors.values())
        assert provenance.header_digest(source) == hashlib.sha256(data[:first]).hexdigest()
    with Engine.open(nano_path, backend="reference") as engine:
        facts = provenance.engine_facts(engine)
        about = facts["model"]
        assert (facts["backend"], facts["numerics"], facts["threads"]) == ("reference", "qat", engine.threads)
        assert (about["name"], about["file"]) == ("ds4ref nano", Path(nano_path).name)
        assert (about["bytes"], about["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        monkeypatch.setattr(provenance, "HASH_LIMIT", len(data))
        assert "sha256" in provenance.engine_facts(engine)["model"]
        monkeypatch.setattr(provenance, "HASH_LIMIT", len(data) - 1)
        assert "sha256" not in provenance.engine_facts(engine)["model"]


def test_the_release_of_a_checkpoint_is_recorded_shown_and_named(nano_path, tmp_path):
    """In provenance, targets, reports, saved sessions, and where runs of two checkpoints are compared."""
    draft = Draft(nano_path)
    draft.metadata.append(["general.base_model.0.version", "string", "0731"])
    draft.write(tmp_path / "m.gguf")
    with LocalTarget.open(str(tmp_path / "m.gguf"), backend="reference") as target:
        facts = provenance.engine_facts(target.engine)
        name = facts["model"]["checkpoint"]
        assert name == "DeepSeek V4 0731" == target.identity()["checkpoint"]
        assert Identity.of(target.engine).about["checkpoint"] == name
        header = {"target": target.identity(), "facts": {}, "pack": {}, "questions": [], "settings": {}, "epochs": 1}
        assert eval_facts(header, "x", b"")["model"]["checkpoint"] == name
        assert facts["template"] == target.identity()["template"] == "0731", "its form of prompts changes results, too"
    with Engine.open(nano_path, backend="reference") as engine:
        known = provenance.identity(engine)
        assert "checkpoint" not in known["model"] and "template" not in known, "of an unknown release: May's form"
    rows = [{"ctx_tokens": 8, "gen_tps": 1.0}]
    one = run("one", rows, facts=facts)
    other = run("other", rows, facts=facts | {"model": facts["model"] | {"sha256": "x", "checkpoint": "another"}})
    assert compare(one, other).notes == (f"different model: {name} and another",)
    (environment,) = (part for part in assemble([one]).sections if part.title == "Environment")
    assert ("checkpoint", name) in environment.blocks[0].blocks[0].rows
