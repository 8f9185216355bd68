"""The CSV: exact bytes out, tolerant but unambiguous in."""

import pytest

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.errors import DataError
from ds4ref.reports.sources import check_kvcache
from ds4ref.runs.columns import HEADER, format_row, summary
from ds4ref.runs.results import COLUMNS, read_rows
from ds4ref.speed_bench.results import Point, read_points
from ds4ref.speed_bench.samples import sample
from ds4ref.speed_bench.sweep import SweepRow

ROW = summary([sample(SweepRow(4096, 2048, 5.0, (0.5, 0.25, 0.25), 80373132, (1, 2, 3)))])

# Published figures of an M2 Ultra: depth, prefill, decode, kvcache_bytes.
PUBLISHED = [
    (2048, 410.62, 23.22, 52184460),
    (4096, 389.21, 23.19, 80373132),
    (8192, 382.57, 22.72, 136750476),
    (16384, 362.43, 22.72, 249505164),
    (32768, 325.77, 21.92, 475014540),
    (49152, 294.76, 21.27, 700523916),
    (65536, 269.75, 20.43, 926033292),
]


def as_ds4(rows=PUBLISHED) -> str:
    return ",".join(COLUMNS) + "\n" + "".join(f"{n},2048,{p:.2f},128,{g:.2f},{b}\n" for n, p, g, b in rows)


@pytest.fixture
def write(tmp_path):
    def write(text, name="r.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_ds4s_columns_come_first_byte_for_byte():
    assert HEADER.startswith("ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes,")
    assert format_row(ROW).startswith("4096,2048,409.60,3,3.00,80373132,500.000,4.00,")
    assert format_row(ROW).count(",") == HEADER.count(",")


def test_a_size_that_is_not_known_is_an_empty_cell(write):
    """An endpoint does not tell; 0 would be a size, and ds4-report would check it."""
    for row in (ROW | {"kvcache_bytes": None}, {k: v for k, v in ROW.items() if k != "kvcache_bytes"}):
        line = format_row(row)
        assert line.startswith("4096,2048,409.60,3,3.00,,500.000,4.00,") and line.count(",") == HEADER.count(",")
        (found,) = read_rows(write(HEADER + "\n" + line + "\n"))
        assert found["kvcache_bytes"] is None and found["gen_tps"] == 3.0
        assert check_kvcache([found]) is None


def test_own_files_are_read(write):
    text = (
        HEADER
        + "\n"
        + format_row(ROW)
        + "\n"
        + format_row(summary([sample(SweepRow(2048, 2048, 4.0, (0.5,), 1, (1,)))]))
        + "\n"
    )
    assert read_points(write(text)) == [Point(2048, 512.0, 2.0), Point(4096, 409.6, 3.0)]


def test_ds4s_files_are_read(write):
    assert read_points(write(as_ds4())) == [Point(n, p, g) for n, p, g, _ in PUBLISHED]


def test_a_spreadsheet_may_have_had_it(write):
    """Byte order mark, CRLF, no final newline, trailing zeros gone, one column more, other order of rows."""
    lines = ["note,ctx_tokens,prefill_tps,gen_tps", "a,4096,303.5,26", "b, 2048 ,343.76,26.76"]
    path = write(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert read_points(path) == [Point(2048, 343.76, 26.76), Point(4096, 303.5, 26.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
        ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n1e308,2,3\n", "ctx_tokens is '1e308'"),
        ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2.5,1,1\n", "ctx_tokens is '2.5'"),
        ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n0,1,1\n", "ctx_tokens is '0'"),
        ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,2,3,5\n", "r.csv:3: 4 cells instead of 3: a torn line, or decimal"),
        ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,3", "r.csv:3: 2 cells instead of 3: a torn line"),
        ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,3,", "gen_tps is ''"),
        ("ctx_tokens,prefill_tps,gen_tps,gen_tokens\n1,2,3,x\n2,3,4,5\n", "gen_tokens is 'x'"),
        ("ctx_tokens,prefill_tps,gen_tps,gen_tps\n1,2,3,3\n2,3,4,5\n", "column gen_tps occurs twice"),
        ("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n2,3,1\n1,9,9\n", "ctx_tokens 1 occurs twice"),
        ('ctx_tokens,prefill_tps,gen_tps\n1,2,"3\n', "not a CSV file"),
        (b"\xff\xfe\x00\x00", "not a CSV file"),
        ("ctx_tokens;prefill_tps;gen_tps\n1;2,5;3\n", "separated by semicolons"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(write, text, message):
    with pytest.raises(DataError) as error:
        read_points(write(text))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_absent_file(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_points(tmp_path / "absent.csv")


def test_kvcache_bytes_are_the_published_ones():
    assert all(FLASH.payload_bytes(n) == size for n, _, _, size in PUBLISHED)
