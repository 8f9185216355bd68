"""ds4's files, both ways: its results CSV, official.vec, and checkpoints of sessions (KVC)."""

from __future__ import annotations

import io
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.session.store import Store

from .running import run

CSV = b"""ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes
2048,2048,410.62,128,23.22,52184460
4096,2048,389.21,128,23.19,80373132
"""
VEC = """# ds4-official-logprob-vectors-v1
# case <id> <ctx> <steps> <prompt path>
# step <index> <chosen token, hex> <alternatives>
# top <token, hex> <logprob>

case greeting 16384 2 prompts/greeting.txt
step 0 48656c6c6f 2
top 48656c6c6f -0.125
top 4869 -2.5
step 1 21 1
top 21 0
end
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- results


def test_our_csv_begins_with_ds4s_columns_as_ds4_prints_them(trained_path: str) -> None:
    argv = ["-m", trained_path, "--ctx-start", "8", "--ctx-max", "24", "--step-incr", "8", "-n", "2", "-r", "1"]
    ran = run("ds4-bench", *argv, "--no-store", "-o", "csv")
    assert ran.code == 0, ran.err
    header, *rows = ran.out.splitlines()
    assert header.startswith(CSV.decode().splitlines()[0] + ",")
    assert [re.match(r"(\d+),(\d+),\d+\.\d\d,(\d+),\d+\.\d\d,\d+,", row).groups() for row in rows] == [
        (depth, "8", "2") for depth in ("8", "16", "24")
    ]


def test_ds4s_csv_is_drawn_stored_and_read_back() -> None:
    Path("m2.csv").write_bytes(CSV)
    assert run("ds4-bench", "plot", "m2.csv", "-o", "m2.svg").code == 0 and Path("m2.svg").stat().st_size > 5000
    assert run("ds4-report", "import", "m2.csv").code == 0
    ran = run("ds4-report", "export", "1", "-o", "all.csv")
    assert ran.code == 0, ran.err
    names, *rows = (line.split(",") for line in Path("all.csv").read_text().splitlines())
    wanted_names, *wanted = (line.split(",") for line in CSV.decode().splitlines())
    stored = [[float(row[names.index(name)]) for name in wanted_names] for row in rows]
    assert stored == [[float(cell) for cell in row] for row in wanted]
    ran = run("ds4-report", "compare", "m2.csv", "m2.csv", "--json")
    assert json.loads(ran.out)


# --- vectors


def test_official_vec_both_ways() -> None:
    Path("prompts").mkdir()
    Path("prompts/greeting.txt").write_text("Greet me.")
    Path("official.vec").write_text(VEC)
    assert run("ds4-vectors", "convert", "official.vec", "back.vec", "--prompt-dir", "again").code == 0
    assert Path("back.vec").read_text() == VEC.replace("prompts/greeting.txt", "again/greeting.txt")
    assert Path("again/greeting.txt").read_text() == "Greet me."


# --- checkpoints


def test_a_checkpoint_is_ds4s_to_the_byte_and_is_read_without_our_section(nano_path: str, tmp_path: Path) -> None:
    with Engine.open(nano_path, threads=1) as engine:
        session, other = engine.session(1024), engine.session(1024)
        session.sync([*range(20, 620)])
        text = engine.tokenizer.decode(session.tokens)
        assert Store.open(engine, tmp_path / "kv").save(session, [text], "cold")
        (path,) = (tmp_path / "kv").glob("*.kv")
        data, payload = path.read_bytes(), io.BytesIO()
        session.save(payload)
        assert (data[:4], data[5], data[6] & ~0x81) == (b"KVC\1", 1, 0)
        tokens, hits, ctx = struct.unpack_from("<3I", data, 8)
        size, length = struct.unpack_from("<QI", data, 40)
        assert (tokens, hits, ctx, size, length) == (600, 0, 1024, len(payload.getvalue()), len(text))
        assert data[52 : 52 + length] == text and data[52 + length :][:size] == payload.getvalue()
        path.write_bytes(data[:6] + b"\0" + data[7 : 52 + length + size])  # as ds4 writes it
        assert Store.open(engine, tmp_path / "kv").load(other, text + b" and more") == (length, "disk-text")
        assert other.tokens == session.tokens
        np.testing.assert_array_equal(other.logits, session.logits)
        np.testing.assert_array_equal(other.eval(5), session.eval(5))
