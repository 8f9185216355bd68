"""``ds4 agent`` from outside: tasks over HTTP, sessions, questions on a terminal, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4ref.agent.tools import Result
from ds4ref.cli.agent import HELP, Session, build_parser
from ds4ref.cli.agent_view import AgentView, visible
from ds4ref.cli.ds4 import main
from ds4ref.engine import Engine
from ds4ref.targets import Delta
from ds4ref.text.dsml import ToolCall, render_calls
from tests.agent.scripted import Endpoint, calls, says
from tests.agent.test_shell import gone
from tests.cli.fake import FakeEngine

ROOT = Path(__file__).parents[2]


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
    calls(
        ("edit", {"path": "a.py", "line": 1, "new": "print(42)"}), ("bash", {"command": "cat a.py; echo $DS4_API_KEY"})
    ),
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
        "  Edited a.py lines 1-1", "  @@ -1,1 +1,1 @@", "  -print(1)", "  +print(42)",
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


def test_a_task_from_a_file_or_from_stdin(run, folder) -> None:
    (folder / "task").write_text("Do it.\n")
    for flags, stdin in ((["--prompt-file", "task"], ""), (["--prompt-file", "-"], "Do it.\n")):
        done = run(*flags, script=[says("ok")], stdin=stdin)
        assert done.code == 0 and done.bodies[0]["messages"][1]["content"] == "Do it.\n"


def test_thinking_is_marked_and_switched(run) -> None:
    done = run("-p", "x", "--think", script=[[Delta(reasoning="hm"), *says("ok")]])
    assert done.out == "<think>\nhm\n</think>\nok\n" and done.bodies[0]["thinking"] == {"type": "enabled"}
    assert run("-p", "x", "--nothink", script=[says("ok")]).bodies[0]["thinking"] == {"type": "disabled"}


@pytest.mark.parametrize("script, flags, why", [
    ([calls(("list", {}))], ["--max-turns", "2"], "stopped after 2 answers (--max-turns)"),
    ([says("x", finish="length")], ["-n", "9"], "the answer was cut off: at most 9 tokens (-n)"),
    ([says("x", finish="content_filter")], [], "it ended for the reason 'content_filter'"),
])  # fmt: skip
def test_a_task_that_is_not_done_exits_1(run, script, flags, why) -> None:
    done = run("-p", "x", *flags, script=script)
    assert done.code == 1 and done.err.splitlines()[-1].startswith("ds4 agent: ") and why in done.err.splitlines()[-1]


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


def test_other_failures_are_one_line_too(run) -> None:
    done = run("-p", "x", "--log", "missing/log")
    assert (done.code, done.err) == (1, "ds4 agent: cannot write missing/log: No such file or directory\n")
    done = run("-p", "x", "-m", "missing.gguf")
    assert done.code == 1 and done.err == "ds4 agent: missing.gguf: cannot open the model: No such file or directory\n"


def test_help_names_everything(capsys) -> None:
    assert main(["agent", "--help"]) == 0
    text = capsys.readouterr().out
    for action in build_parser()._actions:
        assert (action.option_strings or [action.metavar])[-1] in text and action.help
    assert main(["--help"]) == 0 and "ds4 agent [options] [PROMPT]" in capsys.readouterr().out


# --- the local engine


def test_a_local_model_calls_tools(run, folder, monkeypatch, tmp_path) -> None:
    """A fake one, which always says the same."""
    engines = []

    def fake_open(path, **options):
        engines.append(engine := FakeEngine(str(path), b"", **options))
        text = "I look." + "".join(part.text for part in render_calls([ToolCall("list", "{}")]))
        engine.answer = engine.tokenizer.encode_rendered(text)
        return engine

    monkeypatch.setattr(Engine, "open", fake_open)
    monkeypatch.delenv("DS4_LOCK_FILE", raising=False)
    model = tmp_path / "fake.gguf"
    model.write_bytes(b"fake")
    (folder / "hello").write_text("x")
    done = run("-m", str(model), "-p", "Look", "--yes", "--nothink", "--max-turns", "2", "--temp", "0")
    assert (done.code, done.out) == (1, "I look.\nI look.\n")
    assert done.err.splitlines()[:3] == ["* list", "  .:", "  - 1 hello"]
    session = engines[0].sessions[-1]
    text = engines[0].tokenizer.decode(session.tokens).decode()
    assert session.ctx == 100_000 and text.count("<tool_result>.:\n- 1 hello</tool_result>") == 1
    assert text.count('invoke name="list"') == 2, "its own call went back as it was"
    done = run("-m", str(model), "-p", "Look", "--ctx", "500")
    assert done.code == 1 and "a context of 500 takes at most 499; your message was removed\n" in done.err


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


def test_commands_are_those_of_the_help() -> None:
    words = [word for line in HELP.splitlines() for word in line.replace(",", "").split()[:2]]
    assert sorted(Session.__new__(Session).all_commands()) == sorted(word for word in words if word.startswith("/"))


def test_a_session_without_a_terminal_asks_nobody_and_ends_as_its_last_turn(run) -> None:
    done = run(script=TASK, stdin="Make a.py\n")
    assert all("permission denied" in text for text in results(done.bodies[-1]))
    bad, good = says("x", finish="length"), says("ok")
    assert run(script=[bad, good], stdin="a\nb\n").code == 0 and run(script=[good, bad], stdin="a\nb\n").code == 1


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


def test_long_results_are_cut_for_the_user(capsys) -> None:
    view = AgentView("p")
    view.result(Result("", "note", "\n".join(f"{n}" for n in range(50)) + "\n"))
    view.call("bash " + "\n".join("x" * 500 for _ in range(50)))
    screen = capsys.readouterr().err
    assert screen.count("\n") == 2 * (12 + 1) and "\n  10\n  ... 39 more lines ...\n* bash xx" in screen
    assert max(map(len, screen.splitlines())) < 210


def test_lines_of_a_diff_are_coloured(monkeypatch, capsys) -> None:
    monkeypatch.setattr("ds4ref.cli.agent_view.tint", lambda text, colour, stream: f"{colour}{text}")
    for detail, colours in (("@@ 1 @@\n-a\n+b", (90, 90, 31, 32)), ("-a\n+b", (90, 90, 90))):
        AgentView("p").result(Result("", "note", detail))
        lines = ["note", *detail.split("\n")]
        assert capsys.readouterr().err == "".join(f"\x1b[{c}m  {x}\n" for c, x in zip(colours, lines, strict=True))


# --- questions


def wait_for(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)


class Process:
    """``ds4 agent`` as a process of its own, on a terminal; words come through a pipe."""

    def __init__(self, folder: Path, *argv: str):
        self.master, slave = pty.openpty()
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), "TERM": "dumb"}
        self.process = subprocess.Popen([sys.executable, "-m", "ds4ref.cli.ds4", "agent", *argv], cwd=folder, env=env,
                                        stdin=slave, stderr=slave, stdout=subprocess.PIPE)  # fmt: skip
        os.close(slave)
        self.screen = ""

    def until(self, *texts: str) -> None:
        """Read what it says until the texts have come, one after the other."""
        for text in texts:
            while text not in self.screen:
                part = os.read(self.master, 4096).decode("utf-8", "replace")
                self.screen += part
            self.screen = self.screen.partition(text)[2]

    def types(self, text: str) -> None:
        os.write(self.master, text.encode())

    def ends(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=120)
        os.close(self.master)
        return self.process.returncode, out.decode()


def test_a_session_on_a_terminal(folder) -> None:
    (folder / "a.txt").write_text("one\n")
    long = "".join(f"{n}\x1b[2J\n" for n in range(100))
    script = [
        calls(("read", {"path": "a.txt"}), ("write", {"path": "b.txt", "content": long})),
        calls(("edit", {"path": "a.txt", "line": 1, "new": "two"}), ("edit", {"path": "a.txt", "old": "o", "new": "x"}),
              ("bash", {"command": "touch c.txt"}), ("bash", {"command": "touch d.txt"})),
        says("Done."), says("Bye."),
    ]  # fmt: skip
    with Endpoint(*script) as endpoint:
        agent = Process(folder, "--target", endpoint.url, "Go")
        agent.types("y\ny\n")  # what was typed before is no answer
        for texts, key in (
            (["wants to make b.txt:", "+0\\x1b[2J", "+99\\x1b[2J", "lways write? "], "n\n"),
            (["the user said no", "-one\r\n  +two\r\n", "[y]es, [n]o, [a]lways edit? "], "yep\n"),
            (["lways edit? "], "\x04"),  # the end of input is a no
            (["said no to this edit call", "-one\r\n  +xne", "lways edit? "], "ALWAYS\n"),
            (["  touch c.txt\r\n", "lways bash? "], "y\ny\n"),  # of several lines one is an answer
            (["exit status 0", "lways bash? "], "no\n"), (["said no to this bash call"], ""),
        ):  # fmt: skip
            agent.until(*texts)
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
    with Endpoint(*script) as endpoint:
        agent = Process(folder, "--target", endpoint.url, *(["--allow", "bash"] if where == "command" else []), "Go")
        if where == "question":
            agent.until("[a]lways bash? ")
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
    with Endpoint(*script) as endpoint:
        agent = Process(folder, "--target", endpoint.url, "-p", "Go", "--yes")
        wait_for(folder / "pid")
        agent.process.send_signal(how)
        assert agent.ends() == (code, "") and len(endpoint.bodies) == 1
    assert not os.path.isdir("/proc/self") or gone(int((folder / "pid").read_text()))
