"""What a report says: cells, exit code, wrong usage."""

from __future__ import annotations

import pytest

from ds4ref.cli import server
from ds4ref.conformance import clients, results
from ds4ref.conformance.results import Check, Client, Report

OK = Check("chat.a", "turn", "ok")
FAIL = Check("chat.b", "turn", "fail", True, "this", "that")
SOFT = Check("chat.c", "turn", "fail", False, "this", "th|at")
SKIP = Check("chat.d", "turn", "skip", True, "this", "not told")


@pytest.mark.parametrize(
    ("checks", "cell"),
    [
        ([], "-"), ([OK], "ok"), ([OK, SKIP], "ok"), ([SKIP], "skip"), ([OK, FAIL], "FAIL 1/2"),
        ([OK, SOFT], "part 1/2"), ([FAIL, SOFT], "FAIL 0/2"),
        ([OK, FAIL, SKIP], "FAIL 1/2"), ([OK, SOFT, SKIP], "part 1/2"),
    ],
)  # fmt: skip
def test_cells(checks, cell):
    assert Client("x", "1", checks).cell("turn") == cell
    assert Client("x", "1", checks).cell("stream") == "-"


def test_a_client_that_did_not_run_passes_nothing():
    gone = Client("x", "1", skipped="not installed")
    assert gone.cell("turn") == "skip" and not gone.failed
    text = results.table(Report({}, {}, [gone, Client("y", "1", [OK])]), 100)
    assert "x  skip: not installed" in text and "1 clients skipped" in text and "1 checks passed" in text


def report():
    rows = [Client("http chat", "plain", [OK, FAIL, SOFT, SKIP], "", 1.5), Client("codex", "0.1", skipped="not here")]
    stamp = {"created": "2026-11-22T10:00:00Z", "commit": "abcdef0123456789", "command": ["ds4-server", "smoke"],
             "machine": {"cpu": "A processor", "cores": 2}}  # fmt: skip
    return Report({"name": "ds4-server", "model": "embedded"}, stamp, rows)


def test_the_table_says_what_came_instead():
    text = results.table(report(), 100)
    assert "http chat  FAIL chat.b: expected this; got that" in text
    assert "fail (not required) chat.c" in text and "skip chat.d: not told" in text
    assert "1 checks passed, 2 failed (1 required), 1 skipped; 1 clients skipped" in text
    assert all(len(line) <= 40 for line in results.table(report(), 40).splitlines()[:3])


def test_clients_are_found_by_name():
    assert clients.find("pi@1.2.3").requirement == "@earendil-works/pi-coding-agent@1.2.3"
    assert clients.find("openai").requirement == "openai==3.54.0"
    names = [kind.name for kind in clients.chosen(["quick", "openai", "codex"])]
    assert names == [*clients.QUICK, "codex"] and len(set(names)) == len(names)


@pytest.mark.parametrize(
    "argv",
    [
        ["--client", "nobody"], ["--client", ""], ["--client", "http@3"], ["--url", "host:80"],
        ["--url", "ftp://host"], ["--key-env", "DS4_NO_SUCH_KEY"], ["frobnicate"],
    ],
)  # fmt: skip
def test_wrong_usage(argv, capsys):
    assert server.main(["smoke", *argv]) == 2
    assert capsys.readouterr().err.count("\n") == 1
