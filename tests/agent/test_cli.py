"""``ds4 agent`` from outside: tasks over HTTP, sessions, questions on a terminal, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4ref.agent.tools import Result
from ds4ref.cli.agent import HELP
from ds4ref.cli.agent_view import AgentView, visible
from ds4ref.cli.ds4 import main
from tests.agent.scripted import Endpoint, calls, says
from tests.agent.test_shell import gone
from tests.terminal import Terminal


@pytest.fixture
def run(capsys, monkeypatch, folder):
    """``ds4 agent`` in this process and in ``folder``, against an endpoint with a script."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DS4_API_KEY", raising=False)

    def call(*argv: str, script=(), stdin: str = "") -> SimpleNamespace:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        if script:
            with Endpoint(*script) as endpoint:
                code = main(["agent", "--target", endpoint.url, *argv])
            bodies, headers = endpoint.bodies, endpoint.headers
        else:
            code, bodies, headers = main(["agent", *argv]), [], []
        screen = capsys.readouterr()
        return SimpleNamespace(code=code, out=screen.out, err=screen.err, bodies=bodies, headers=headers)

    return call


def results(body: dict) -> list[str]:
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


TASK = [
    calls(("write", {"path": "a.py", "content": "print(1)\n"}), text="I begin."),
    calls(("read", {"path": "a.py"})),
    calls(("edit", {"path": "a.py", "old": "1", "new": "42"}), ("bash", {"command": "cat a.py; echo $DS4_API_KEY"})),
    says("It prints", " 42."),
]


# --- tasks


def test_a_task_is_done(run, folder, monkeypatch) -> None:
    monkeypatch.setenv("DS4_API_KEY", "sesame")
    done = run("-p", "Make a.py", "--yes", "--log", "../log.jsonl", script=TASK)
    assert (done.code, done.out) == (0, "I begin.\nIt prints 42.\n")
    assert (folder / "a.py").read_text() == "print(42)\n"
    assert done.err.splitlines() == [
        "* write a.py", "  Wrote 9 bytes to a.py", "* read a.py", "  a.py: lines 1-1 of 1", "* edit a.py",
        "  Edited a.py", "  @@ -1,1 +1,1 @@", "  -print(1)", "  +print(42)",
        "* bash cat a.py; echo $DS4_API_KEY", "  exit status 0", "  print(42)",
    ]  # fmt: skip
    assert all(headers["Authorization"] == "Bearer sesame" for headers in done.headers)
    names = [tool["function"]["name"] for tool in done.bodies[0]["tools"]]
    assert names == ["read", "list", "search", "edit", "write", "bash"]
    assert done.bodies[0]["max_tokens"] == 8192 and "min_p" not in done.bodies[0], "not every server takes these"
    assert done.bodies[0]["messages"][1] == {"role": "user", "content": "Make a.py"}
    assert len(results(done.bodies[-1])) == 4 and "sesame" not in json.dumps(done.bodies)
    log = (folder.parent / "log.jsonl").read_text()
    assert [json.loads(line)["type"] for line in log.splitlines()] == [
        "session", "user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "tool", "assistant", "end",
    ]  # fmt: skip
    assert "sesame" not in log


@pytest.mark.parametrize("flags, denied", [
    ([], ["write", "read", "edit", "bash"]), (["--allow", "read"], ["write", "edit", "bash"]),
    (["--allow", "read,edit"], ["bash"]), (["--allow", "bash,read"], ["write", "edit"]),
    (["--allow", "write"], ["read", "edit", "bash"]), (["--yes"], []),
])  # fmt: skip
def test_what_is_not_allowed_is_denied(run, flags, denied) -> None:
    done = run("-p", "Make a.py", *flags, script=TASK)
    assert done.code == 0, "what the model makes of it is its answer"
    texts = dict(zip(["write", "read", "edit", "bash"], results(done.bodies[-1]), strict=True))
    refused = [name for name, text in texts.items() if text.startswith("Tool error: permission denied: ")]
    assert refused == denied
    assert all(f"{name} was not allowed beforehand, and nobody is there" in texts[name] for name in denied)


@pytest.mark.parametrize("argv, why", [
    (["-p", "a", "b"], "choose one prompt source: PROMPT or -p"), (["-p", ""], "the prompt is empty"),
    ([" "], "the prompt is empty"), (["a", "b"], "unexpected argument: b"),
    (["--prompt-file", "missing"], "cannot read prompt file missing"),
    (["-p", "a", "--allow", "rm"], "no tool 'rm': choose from"),
    (["--root", "missing"], "cannot work in missing: No such"),
    (["--root", "/"], "/ is no folder to work in"), (["--max-turns", "0"], "invalid value for --max-turns"),
    (["--target", "http://127.0.0.1:9/v1", "-m", "x"], "-m works only with"), (["--trace", "x"], "--log FILE"),
    (["--target", "local:a.gguf", "-m", "x"], "-m works only with"), (["--target", "nosuch:x"], "unknown target"),
    (["--target", f"command:{sys.executable}"], "an agent needs tools and conversations of several turns"),
    (["--yolo"], "unknown option: --yolo"),
])  # fmt: skip
def test_wrong_usage(run, argv, why) -> None:
    done = run(*argv)
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
    assert done.err.startswith("ds4 agent: ") and why in done.err and done.err.endswith("; see ds4 agent --help\n")


# --- sessions


def test_a_session_reads_lines(run, folder) -> None:
    lines = ["Hello", "", "/nosuch", "/clear", "/allow read", "/allow x", "/nothink", "/help", "Bye", "/quit", "never"]
    done = run("First", script=[says("ok")], stdin="\n".join(lines))
    assert (done.code, done.out) == (0, "ok\n" * 3)
    asked = [[m["content"] for m in body["messages"][1:]] for body in done.bodies]
    assert asked == [["First"], ["First", "ok", "Hello"], ["Bye"]]
    assert [line.removeprefix("ds4 agent: ") for line in done.err.replace(HELP, "").splitlines() if line] == [
        "unknown command: /nosuch (/help lists them)", "conversation cleared",
        "allowed without asking: list, read, search",
        "/allow: no tool 'x': choose from read, list, search, edit, write, bash",
    ]  # fmt: skip
    assert [body["thinking"]["type"] for body in done.bodies] == ["enabled"] * 2 + ["disabled"]


# --- what is shown


@pytest.mark.parametrize(
    "hidden", ["\x1b[2J\x1b[1;1H", "\r", "\x00", "\x9b1m", "\u202e", "\u2066", "\u200b", "\udcff", "\x7f"]
)
def test_nothing_hides(hidden, capsys) -> None:
    shown = visible(f"rm{hidden}\n\tls")
    assert hidden not in shown and shown.startswith("rm\\") and shown.endswith("\n    ls")
    view = AgentView("p")
    view.call(f"bash echo{hidden}")
    view.result(Result("", f"note{hidden}", f"a{hidden}\nb"))
    screen = capsys.readouterr().err
    assert (
        hidden not in screen
        and screen.startswith("* bash echo\\")
        and "\n  a\\" in screen
        and screen.endswith("\n  b\n")
    )


# --- questions


def wait_for(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)


def process(folder: Path, *argv: str) -> Terminal:
    """``ds4 agent`` on a terminal; words come through a pipe."""
    command = [sys.executable, "-m", "ds4ref.cli.ds4", "agent", *argv]
    return Terminal(command, folder, subprocess.PIPE, HOME=str(folder), TERM="dumb")


def test_a_session_on_a_terminal(folder) -> None:
    (folder / "a.txt").write_text("one\n")
    long = "".join(f"{n}\x1b[2J\n" for n in range(100))
    script = [
        calls(("read", {"path": "a.txt"}), ("write", {"path": "b.txt", "content": long})),
        calls(("edit", {"path": "a.txt", "old": "one", "new": "two"}),
              ("edit", {"path": "a.txt", "old": "o", "new": "x"}), ("bash", {"command": "touch c.txt"}),
              ("bash", {"command": "touch d.txt"})),
        says("Done."), says("Bye."),
    ]  # fmt: skip
    with Endpoint(*script) as endpoint, process(folder, "--target", endpoint.url, "Go") as agent:
        agent.types("y\ny\n")  # what was typed before is no answer
        for texts, key in (
            (["wants to make b.txt:", "+0\\x1b[2J", "+99\\x1b[2J", "lways write? "], "n\n"),
            (["the user said no", "-one\r\n  +two\r\n", "[y]es, [n]o, [a]lways edit? "], "yep\n"),
            (["lways edit? "], "\x04"),  # the end of input is a no
            (["said no to this edit call", "-one\r\n  +xne", "lways edit? "], "ALWAYS\n"),
            (["  touch c.txt\r\n", "lways bash? "], "y\ny\n"),  # of several lines one is an answer
            (["exit status 0", "lways bash? "], "no\n"), (["said no to this bash call"], ""),
        ):  # fmt: skip
            agent.until(*map(re.escape, texts))
            agent.types(key)
        agent.types("More\n/quit\n")
        code, out = agent.ends()
    assert code == 0 and out == "Done.\nds4-agent> Bye.\nds4-agent> "
    assert sorted(os.listdir(folder)) == ["a.txt", "c.txt"]
    read, wrote = results(endpoint.bodies[1])
    assert read == "a.txt: lines 1-1 of 1\n1 one" and "permission denied: the user said no" in wrote


@pytest.mark.parametrize("where", ["command", "question"])
def test_ctrl_c_ends_what_runs_and_the_session_goes_on(folder, where) -> None:
    script = [
        calls(("bash", {"command": "touch begun; sleep 1000"}), ("bash", {"command": "touch bad"})),
        says("Well."),
    ]
    allowed = ["--allow", "bash"] if where == "command" else []
    with Endpoint(*script) as endpoint, process(folder, "--target", endpoint.url, *allowed, "Go") as agent:
        if where == "question":
            agent.until("lways bash")
        else:
            wait_for(folder / "begun")
        agent.process.send_signal(signal.SIGINT)
        agent.until("ds4 agent: interrupted")
        agent.types("And now?\n/quit\n")
        code, out = agent.ends()
    assert code == 0 and out.endswith("Well.\nds4-agent> ") and not (folder / "bad").exists()
    first, second = results(endpoint.bodies[1])
    assert ("stopped by the user" if where == "command" else "the user said no") in first
    assert second == "Tool error: interrupted by the user; this call was not run"


@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_task_and_its_command(folder, how, code) -> None:
    script = [calls(("bash", {"command": "echo $$ > pid.new; mv pid.new pid; sleep 1000"})), says("x")]
    with Endpoint(*script) as endpoint, process(folder, "--target", endpoint.url, "-p", "Go", "--yes") as agent:
        wait_for(folder / "pid")
        agent.process.send_signal(how)
        assert agent.ends() == (code, "") and len(endpoint.bodies) == 1
    assert not os.path.isdir("/proc/self") or gone(int((folder / "pid").read_text()))
