"""Rows and their columns: exact bytes out, tolerant but unambiguous in, and tables as wide as their terminal."""

from pathlib import Path

import pytest

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.errors import DataError
from ds4ref.runs.columns import HEADER, NAMES, documentation, format_row, summaries, summary
from ds4ref.runs.results import COLUMNS as DS4S
from ds4ref.runs.results import read_rows
from ds4ref.speed_bench.plot import read_curve
from ds4ref.speed_bench.sweep import measured
from ds4ref.speed_bench.table import table as made

from ..reports.published import ROWS, as_ds4

ROOT = Path(__file__).resolve().parents[2]
FACTS = {"model": {"name": "ds4ref nano", "file": "m.gguf"}, "machine": {"cpu": "Chip", "cores": 4}, "backend": "cpu",
         "numerics": "qat", "threads": 3}  # fmt: skip
ROW = summary([measured(4096, 2048, 5.0, (0.5, 0.25, 0.25), (1, 2, 3), 80373132)])


@pytest.fixture
def write(tmp_path):
    def write(text, name="r.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_ds4s_columns_come_first_byte_for_byte():
    assert NAMES[:6] == DS4S and len(set(NAMES)) == len(NAMES) and HEADER == ",".join(NAMES)
    assert HEADER.startswith("ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes,")
    assert format_row(ROW).startswith("4096,2048,409.60,3,3.00,80373132,500.000,4.00,")
    assert format_row(ROW).count(",") == HEADER.count(",")


def test_the_documentation_is_generated():
    assert documentation() in (ROOT / "docs/reference/bench.md").read_text(), "python -m ds4ref.runs.columns"


def test_a_size_that_is_not_known_is_an_empty_cell(write):
    """An endpoint does not tell; 0 would be a size."""
    for row in (ROW | {"kvcache_bytes": None}, {k: v for k, v in ROW.items() if k != "kvcache_bytes"}):
        line = format_row(row)
        assert line.startswith("4096,2048,409.60,3,3.00,,500.000,4.00,") and line.count(",") == HEADER.count(",")
        (found,) = read_rows(write(HEADER + "\n" + line + "\n"))
        assert found["kvcache_bytes"] is None and found["gen_tps"] == 3.0


def speeds(rows):
    return [(row["ctx_tokens"], row["prefill_tps"], row["gen_tps"]) for row in rows]


def test_own_files_ds4s_and_those_of_spreadsheets_are_read(write):
    """Byte order mark, CRLF, no final newline, trailing zeros gone, one column more, other order of rows."""
    other = summary([measured(2048, 2048, 4.0, (0.5,), (1,), 1)])
    own = "\n".join([HEADER, format_row(ROW), format_row(other)]) + "\n"
    assert speeds(read_curve(write(own))) == [(2048, 512.0, 2.0), (4096, 409.6, 3.0)]
    assert speeds(read_curve(write(as_ds4()))) == [row[:3] for row in ROWS]
    lines = ["note,ctx_tokens,prefill_tps,gen_tps", "a,4096,303.5,26", "b, 2048 ,343.76,26.76"]
    path = write(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert speeds(read_curve(path)) == [(2048, 343.76, 26.76), (4096, 303.5, 26.0)]
    assert all(FLASH.payload_bytes(row[0]) == row[5] for row in ROWS), "kvcache_bytes are the published ones"


@pytest.mark.parametrize("text, message", [
    ("a,b\n1,2\n", "missing CSV column(s): ctx_tokens, prefill_tps, gen_tps"),
    ("", "missing CSV column(s)"),
    ("ctx_tokens,prefill_tps\n1,2\n", "missing CSV column(s): gen_tps"),
    ("ctx_tokens,prefill_tps,gen_tps\n", "need at least two data rows"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n", "need at least two data rows"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,x,3\n", "r.csv:3: prefill_tps is 'x'"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,2,nan\n", "gen_tps is 'nan'"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,2,inf\n", "gen_tps is 'inf'"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,-2,3\n", "prefill_tps is '-2'"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,1e308,3\n", "r.csv:3: prefill_tps is '1e308', not a number"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2.5,1,1\n", "ctx_tokens is '2.5'"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n0,1,1\n", "ctx_tokens is '0'"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,2,3,5\n", "r.csv:3: 4 cells instead of 3: a torn line, or decimal"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,3", "r.csv:3: 2 cells instead of 3: a torn line"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,3,", "gen_tps is ''"),
    ("ctx_tokens,prefill_tps,gen_tps,gen_tokens\n1,2,3,x\n2,3,4,5\n", "gen_tokens is 'x'"),
    ("ctx_tokens,prefill_tps,gen_tps,gen_tps\n1,2,3,3\n2,3,4,5\n", "column gen_tps occurs twice"),
    ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,3,1\n1,9,9\n", "ctx_tokens 1 occurs twice"),
    ("ctx_tokens,prefill_tps,gen_tps,test\n1,2,3,a\n1,9,9,b\n", "several rows at one depth: not a curve"),
    ('ctx_tokens,prefill_tps,gen_tps\n1,2,"3\n', "not a CSV file"),
    (b"\xff\xfe\x00\x00", "not a CSV file"),
    ("ctx_tokens;prefill_tps;gen_tps\n1;2,5;3\n", "separated by semicolons"),
])  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_line(write, text, message):
    with pytest.raises(DataError) as error:
        read_curve(write(text))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_percentiles_pool_all_repetitions_and_need_enough_of_them():
    group = [{"steps_s": [0.001 * n for n in range(start, 100, 2)], "ctx_tokens": 1} for start in (0, 1)]
    found = summary(group)
    assert found["itl_p50_ms"] == pytest.approx(49.5) and found["itl_p95_ms"] == pytest.approx(94.05)
    assert found["itl_p99_ms"] == pytest.approx(98.01)
    assert "itl_p99_ms" not in summary(group[:1]), "50 values have no 99th percentile"


# --- tables


def table(entries, width=None, **facts) -> str:
    return made(entries, FACTS | facts, "A", width)


def test_a_table_for_people():
    row, other = (
        measured(96, 32, 0.5, (0.25, 0.125, 0.125), (4, 5, 6), 7000),
        measured(192, 96, 0.5, (0.5,), (1,), 3 << 20),
    )
    text = table(summaries([row, row, other]))
    assert "A · ds4ref nano · backend cpu, numerics qat" in text and "3 thread(s) on Chip, 4 cores" in text
    assert "medians of 2 repetitions" in text
    first, second = (line.split() for line in text.splitlines() if line.lstrip().startswith(("96", "192")))
    assert first[:4] == ["96", "64.0", "6.00", "250.0"]
    assert second[:4] == ["192", "192.0", "2.00", "500.0"] and "3.00" in second
    assert "share" not in text and "fairness" not in text and "p95" not in text, "columns that hold something"


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_a_table_is_as_wide_as_its_terminal(width):
    entry = summary([measured(1_048_576, 2048, 0.5, (0.25, 0.125), (4, 5), 926033292)] * 2)
    entry |= {"prefill_share": 0.5, "decode_share": 0.25, "decode_gbs": 3.0, "itl_p95_ms": 12.0}
    text = table([entry], width)
    assert max(map(len, text.splitlines())) <= width and "1,048,576" in text and "4,096" in text
    assert ("no room for" in " ".join(text.split())) == (width < 160) and "…" not in text
