"""What a report says: cells, exit code, JSON there and back, the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds4ref.cli import server
from ds4ref.conformance import clients, page, results
from ds4ref.conformance.checks import CLIENTS, groups
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


def test_json_there_and_back():
    there = report().document()
    again = results.read(json.loads(json.dumps(there)))
    assert again.document() == there and there["failed"] == 1


def test_the_page():
    text = page.page([report()])
    assert "| http chat | plain | FAIL 1/3 |" in text and "| codex | 0.1 | skip |" in text
    assert "    ds4-server smoke  " in text and "# 2026-11-22, our commit abcdef012345\n" in text
    assert "Model: embedded. Machine: A processor, 2 cores." in text
    assert "- http chat, `chat.c` (not required): expected this; got th\\|at" in text
    assert "- codex: not here" in text and "| codex: Codex CLI | npm `@openai/codex` |" in text
    assert text.endswith("\n") and not text.endswith("\n\n")


def test_runs_of_parts_are_one_section():
    """Clients in the order of the table, each run with its command and commit."""
    later, other = report(), report()
    later.clients = [Client("openai", "3", [OK])]
    later.stamp["command"] = ["ds4-server", "smoke", "--client", "openai"]
    other.server["label"] = "theirs"
    text = page.page([report(), later])
    assert text.count("## ds4-server") == 1 and "    ds4-server smoke --client openai  " in text
    assert text.index("| http chat") < text.index("| openai | 3") < text.index("| codex | 0.1")
    assert "## theirs" in page.page([report(), other])


def test_the_command_makes_it(tmp_path, capsys):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(report().document()))
    assert server.main(["smoke", "page", str(path)]) == 0
    assert capsys.readouterr().out == page.page([report()])
    path.write_text("{}")
    assert server.main(["smoke", "page", str(path)]) == 2
    assert server.main(["smoke", "page", str(tmp_path / "none")]) == 2
    assert server.main(["smoke", "page"]) == 2


def test_the_page_of_checks_names_them_all(capsys):
    assert server.main(["smoke", "checks"]) == 0
    made = capsys.readouterr().out
    assert not [
        spec.name for group in groups() for spec in group.specs if f"| {spec.name.partition('.')[2]} |" not in made
    ]
    assert server.main(["smoke", "checks", "x"]) == 2


def test_every_client_has_a_check_that_it_needs():
    needed = {name for group in groups() for spec in group.specs if spec.required for name in spec.clients}
    assert needed == set(CLIENTS)


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


def test_the_published_page_is_made_of_its_files():
    """docs/evidence/clients.md has what the runs found, and nothing else."""
    docs = Path(__file__).parents[2] / "docs" / "evidence"
    found = [results.read(json.loads(path.read_text())) for path in sorted((docs / "clients").glob("*.json"))]
    assert found and (docs / "clients.md").read_text() == page.page(found)
