"""One run has one number under one name: on the terminal, in CSV, JSON, the store, HTML, Markdown and comparisons."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

from ds4ref.reports import cli as reports
from ds4ref.runs.columns import COLUMNS
from ds4ref.runs.compare import compare
from ds4ref.runs.results import read_rows
from ds4ref.runs.store import Measured, Store
from ds4ref.speed_bench import cli, table

from ..speed_bench.server import Endpoint, scripted

ENDPOINT = ["--target", "http://fake/v1", "--depths", "300,900", "-n", "40"]
LOAD = ["--target", "http://fake/v1", "--requests", "24", "--mix", "300:16,600:8", "--concurrency", "1,3"]
LOCAL = ["--backend", "reference", "--depths", "16,32", "-n", "25"]


class Uneven(Endpoint):
    """Every token takes another time, and no two repetitions are alike."""

    def events(self, path, body, sleep):
        times = itertools.count(len(self.bodies))
        yield from super().events(path, body, lambda seconds: sleep(seconds * (1 + 7 * next(times) % 11)))


def console(text: str) -> list[dict[str, str]]:
    """Cells end where their headings do."""
    lines = text.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.split()[:1] == ["context"] or "  context  " in line]
    names = list(re.finditer(r"\S+(?: \S+)*", lines[at]))
    ends = [0, *(name.end() for name in names)]
    return [
        {name[0]: line[start:end].strip() for name, start, end in zip(names, ends, ends[1:], strict=False)}
        for line in lines[at + 1 : at + 3]
    ]


def page(path: Path) -> list[dict[str, str]]:
    (found,) = re.findall(r"<table>(?:(?!</table>).)*<th(?: [^>]*)?>context</th>.*?</table>", path.read_text(), re.S)[
        :1
    ]
    names = [html.unescape(name) for name in re.findall(r"<th(?: [^>]*)?>(.*?)</th>", found)]
    lines = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in re.findall(r"<tr>(<td.*?)</tr>", found)]
    return [dict(zip(names, line, strict=True)) for line in lines]


def twin(path: Path) -> list[dict[str, str]]:
    lines = [[c.strip() for c in line[1:-1].split("|")] for line in path.read_text().splitlines() if line[:1] == "|"]
    (at,) = [number for number, line in enumerate(lines) if line[0] == "context"]
    body = itertools.takewhile(lambda line: len(line) == len(lines[at]), lines[at + 2 :])
    return [dict(zip(lines[at], line, strict=True)) for line in body]


@pytest.mark.parametrize("argv", [ENDPOINT, LOAD, LOCAL], ids=["endpoint", "load", "local"])
def test_one_name_has_one_number_everywhere(argv, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "PIPE_WIDTH", 600)
    if argv is not LOCAL:
        scripted(monkeypatch, fake=Uneven())
    # of a load nothing is the same twice: threads decide in which order requests come to the clock
    assert cli.main([*argv, "-r", "3", "--csv", "s.csv", "--store", "one.db"]) == 0
    tables = {"console": console(capsys.readouterr().out)}
    Path("alone").mkdir()
    shutil.copy("s.csv", "alone/s.csv")
    assert reports.main(["import", "s.csv", "--store", "two.db"]) == 0
    for name, source, more in (
        ("csv and json", "s.csv", []), ("csv", "alone/s.csv", []), ("store", "latest", ["--store", "one.db"]),
        ("imported", "latest", ["--store", "two.db"]),
    ):  # fmt: skip
        assert reports.main(["build", source, "-o", "r.html", *more]) == 0
        tables[name], tables[f"{name}, md"] = page(Path("r.html")), twin(Path("r.md"))
    rows = read_rows("s.csv")
    columns = {column.heading: column for column in COLUMNS if column.heading}
    order = "test" if argv is LOAD else "context"
    shown = {heading for heading in tables["console"][0] if heading in columns}
    assert {"prefill t/s", "decode t/s", "ITL p50 ms"} < shown and len(rows) == 2
    assert ("process MiB" in shown) == (argv is LOCAL) and ("TTFT p95" in shown) == (argv is LOAD)
    for name, lines in tables.items():
        assert [line[order] for line in lines] == [line[order] for line in tables["console"]], name
        for line, expected in zip(lines, tables["console"], strict=True):
            assert {h: line[h] for h in shown} == {h: expected[h] for h in shown}, name
    for row, line in zip(rows, tables["console"], strict=True):
        assert {h: columns[h].display(row) for h in shown} == {h: line[h] for h in shown}, "CSV"

    with Store.open("one.db") as store:
        run = store.find("latest")
        samples = store.rows(run.id)
    clean = [row | {"warnings": {}} for row in samples]  # rows with warnings are not compared
    for row in rows:
        group = [s for s in samples if (s["ctx_tokens"], s.get("test") or None) == (row["ctx_tokens"], row["test"])]
        assert len(group) == 3
        steps = [1e3 * seconds for sample in group for seconds in sample["steps_s"]]
        for name, value in (("itl_p50_ms", np.quantile(steps, 0.5)), ("itl_p95_ms", np.quantile(steps, 0.95))):
            assert row[name] == pytest.approx(value, abs=1e-3)
        for name in ("prefill_tps", "gen_tps", "ttft_ms", "e2e_ms", "total_tps", "request_rps"):
            if group[0].get(name) is not None:
                assert row[name] == pytest.approx(statistics.median(s[name] for s in group), abs=6e-3), name
    whole = Measured(run, clean)
    for one in compare(whole, whole).findings:
        middle = statistics.geometric_mean(
            [row[{"prefill": "prefill_tps", "decode": "gen_tps"}[one.metric]] for row in rows]
        )
        assert one.a == pytest.approx(middle, rel=1e-3)


def test_the_json_of_a_run_has_the_numbers_of_its_csv(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    scripted(monkeypatch, fake=Uneven())
    assert cli.main([*ENDPOINT, "-r", "3", "--csv", "s.csv", "--no-store", "--json"]) == 0
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    for row, stated in zip(target["rows"], read_rows("s.csv"), strict=True):
        for column in COLUMNS:
            value = stated[column.name]
            assert value == (
                row.get(column.name) if not isinstance(value, float) else pytest.approx(row[column.name], abs=6e-3)
            )
