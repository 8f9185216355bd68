"""docs/reference/agent.md says what is there: every tool with its parameters, every limit; its example runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ds4ref.agent import parameters, search, shell, tools, workspace
from ds4ref.agent.loop import Outcome
from ds4ref.agent.permit import group_of
from ds4ref.cli.agent import TURNS, Session, build_parser
from tests.agent.scripted import Scripted, Watched, calls, says

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "agent.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names = {"target": Scripted(calls(("list", {}), ("write", {"path": "a", "content": ""})), says("Nothing.")),
             "view": Watched()}  # fmt: skip
    exec(code, names)
    assert names["outcome"] == Outcome("done") and names["view"].text == "Nothing."
    assert names["view"].events[1:3] == ["list", ".: empty"] and "permission denied" in names["view"].events[4]


def test_the_table_of_tools() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+ \| [^|]+) \|", PAGE, re.M))
    for name, kind in parameters.PARAMETERS.items():
        group, _, names = rows.pop(name).partition(" | ")
        assert group == group_of(name) and re.findall(r"`(\w+)`", names) == list(kind.__struct_fields__), name
        required = re.findall(r"`(\w+)`", names.partition(";")[0]) if ";" in names or name == "write" else []
        assert required == json.loads(parameters.schema(name))["parameters"]["required"], name
    assert not rows


def test_limits_and_flags() -> None:
    limits = (
        f"{tools.READ_BYTES >> 10} KiB", f"{tools.READ_WIDTH} characters", f"at most {search.MAX_ENTRIES}",
        f"`max_lines` ({parameters.Read('').max_lines})", f"`max_results` ({parameters.Search('').max_results})",
        f"at most {search.MAX_BYTES >> 10} KiB and", f"({parameters.TIMEOUT}, at most {parameters.MAX_TIMEOUT})",
        f"{shell.OUTPUT_CHARS} characters and {shell.OUTPUT_LINES} lines", f"{shell.MAX_OUTPUT >> 20} MiB of output",
        f"above {workspace.MAX_FILE >> 20} MiB", f"`--max-turns` answers ({TURNS})",
    )  # fmt: skip
    assert [limit for limit in limits if limit not in PAGE] == []
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= set(build_parser()._option_string_actions)
    assert set(re.findall(r"`(/\w+)`", PAGE)) - {"/proc", "/sys"} <= set(Session.__new__(Session).all_commands())
