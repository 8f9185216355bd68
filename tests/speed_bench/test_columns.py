"""One entry makes a column: CSV, SQL, summary, table and documentation follow from it."""

import io
import sqlite3
from pathlib import Path

import pytest

from ds4ref.runs import columns as module
from ds4ref.runs.columns import COLUMNS, HEADER, NAMES, Column, documentation, summary
from ds4ref.runs.drift import notes, slow_start
from ds4ref.runs.results import COLUMNS as DS4S
from ds4ref.speed_bench.formats import sql
from ds4ref.speed_bench.samples import sample
from ds4ref.speed_bench.sweep import SweepRow
from ds4ref.speed_bench.table import fitting, print_table

ROOT = Path(__file__).resolve().parents[2]
FACTS = {"model": {"name": "ds4ref nano", "file": "m.gguf"}, "machine": {"cpu": "Chip", "cores": 4}, "backend": "cpu",
         "numerics": "qat", "threads": 3}  # fmt: skip


def test_ds4s_six_come_first_and_names_are_unique():
    assert NAMES[:6] == DS4S and len(set(NAMES)) == len(NAMES) and HEADER == ",".join(NAMES)


def test_the_documentation_is_generated():
    assert documentation() in (ROOT / "docs/reference/bench.md").read_text(), "python -m ds4ref.runs.columns"


def test_a_new_column_touches_one_place(monkeypatch):
    extra = Column("gen_slowest_ms", "the slowest step", "ms", form=".1f", combine=module.largest, heading="slowest",
                   display_form=".0f")  # fmt: skip
    monkeypatch.setattr(module, "COLUMNS", (*COLUMNS, extra))
    for place in ("samples", "formats"):
        monkeypatch.setattr(f"ds4ref.speed_bench.{place}.COLUMNS", (*COLUMNS, extra))
    monkeypatch.setattr("ds4ref.speed_bench.formats.NAMES", (*NAMES, extra.name))
    monkeypatch.setattr(SweepRow, extra.name, property(lambda row: 1e3 * max(row.steps_s)), raising=False)
    rows = [
        sample(SweepRow(96, 32, 0.5, steps, 7000, (4, 5), rep)) for rep, steps in enumerate([(0.1, 0.2), (0.3, 0.1)])
    ]
    found = summary(rows)
    assert found["gen_slowest_ms"] == 300 and module.format_row(found).endswith(",300.0")
    out = io.StringIO()
    print_table([found], FACTS, file=out)
    assert "slowest" in out.getvalue() and "300" in out.getvalue()
    db = sqlite3.connect(":memory:")
    db.executescript(sql([found]))
    assert db.execute("SELECT gen_slowest_ms FROM ds4_bench").fetchall() == [(300,)]
    db.close()


def test_percentiles_pool_all_repetitions_and_need_enough_of_them():
    group = [{"steps_s": [0.001 * n for n in range(start, 100, 2)], "ctx_tokens": 1} for start in (0, 1)]
    found = summary(group)
    assert found["itl_p50_ms"] == pytest.approx(49.5) and found["itl_p95_ms"] == pytest.approx(94.05)
    assert found["itl_p99_ms"] == pytest.approx(98.01)
    assert "itl_p99_ms" not in summary(group[:1]), "50 values have no 99th percentile"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_is_as_wide_as_its_terminal(width):
    entry = summary([sample(SweepRow(1_048_576, 2048, 0.5, (0.25, 0.125), 926033292, (4, 5)))] * 2)
    entry |= {"prefill_share": 0.5, "decode_share": 0.25, "decode_gbs": 3.0, "itl_p95_ms": 12.0}
    out = io.StringIO()
    print_table([entry], FACTS, "name", out, width)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width and "1,048,576" in out.getvalue() and "4,096" in out.getvalue()
    text = " ".join(out.getvalue().split())
    assert ("no room for" in text) == (width < 120) and all("…" not in line for line in lines)


def test_the_most_important_columns_stay():
    known = sorted((column for column in COLUMNS if column.heading), key=lambda column: column.rank)
    entry = {"ctx_tokens": 4096, "prefill_tps": 100.0, "gen_tps": 10.0}
    known = [column for column in known if column.display(entry)]
    assert [c.name for c in fitting(known, [entry], 24)] == ["ctx_tokens", "prefill_tps"]
    assert len(fitting(known, [entry], 5)) == 1


def repetitions(speeds):
    return [{"rep": rep, "ctx_tokens": depth, "gen_tps": speed * factor, "prefill_tps": 0}
            for rep, speed in enumerate(speeds) for depth, factor in ((64, 1.0), (128, 0.5))]  # fmt: skip


def test_a_slow_first_repetition_is_flagged():
    assert slow_start(repetitions([80, 100, 101, 99]), "gen_tps") == pytest.approx(0.2)
    assert any("first repetition's decode was 20 % slower" in note for note in notes(repetitions([80, 100, 101, 99])))


@pytest.mark.parametrize("speeds", [[80, 100, 101], [95, 100, 92, 99], [100, 80, 81, 80], [97, 100, 101, 99]])
def test_what_is_no_slow_start(speeds):
    """Too few to compare with, within what the others differ by, a quick start, less than worth a word."""
    assert not any("first repetition" in note for note in notes(repetitions(speeds)))
