"""Runs from the command line: our own server, another one, clients that are not there, probes and agents that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4ref.cli import server
from ds4ref.conformance import agents, clients, harnesses, install, runner
from ds4ref.conformance.checks import groups
from ds4ref.conformance.servers import Own
from ds4ref.server.worker import Worker
from tests.server.conftest import running

from .faults import FORMED


@pytest.fixture(scope="module")
def good(nano_engine):
    with running(Worker(nano_engine, ctx=3000, constrain=FORMED)) as one:
        yield one.url, {}


@pytest.fixture
def found(capsys):
    """What the command prints, and its exit code."""

    def run(*argv):
        code = server.main(["smoke", "--json", "--tokens", "160", *argv])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_who_is_asked_for_by_name_has_to_run(found, monkeypatch, tmp_path):
    """Nothing is installed unasked; without names what is not there is skipped, with the reason."""
    monkeypatch.setenv("DS4_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(install, "install", lambda *_: pytest.fail("installed unasked"))
    code, told = found("--url", "http://127.0.0.1:9", "--client", "codex")
    assert code == 1 and "--install takes it from npm" in told["clients"][0]["checks"][0]["got"]
    monkeypatch.setattr(clients, "KINDS", (clients.find("codex"),))
    code, told = found("--url", "http://127.0.0.1:9")
    assert code == 0 and told["clients"][0]["skipped"].startswith("not installed; --install")


def test_only_the_apis_that_are_asked_for(found, good, monkeypatch, capsys):
    """Of the others nothing is tried, and whoever speaks none of them does not run."""
    url, known = good
    monkeypatch.setattr(install, "installed", lambda kind: install.Place(None, kind.version))
    code, told = found("--url", url, "--client", "codex,claude", "--api", "chat, completions")
    assert code == 0
    assert [(one["name"], one["skipped"], one["checks"]) for one in told["clients"]] == [
        ("codex", "it speaks responses, which --api leaves out", []),
        ("claude", "it speaks messages, which --api leaves out", []),
    ]
    assert [one.name for one in groups(("completions", "chat"))] == ["server", "chat", "completions"]
    assert [one.name for one in groups()] == ["server", "chat", "completions", "responses", "messages"]
    assert server.main(["smoke", "--api", "chats"]) == 2
    assert "--api chats: choose from chat, completions, responses, messages" in capsys.readouterr().err
    assert server.main(["smoke", "--api", " ,"]) == 2


def test_what_was_found_before_ctrl_c_is_kept(tmp_path, monkeypatch):
    """And who did not get a turn is skipped, which is no pass; the command says that it was interrupted."""

    def run(kind, o, servers, tell):
        if kind.name == "openai":
            raise KeyboardInterrupt
        yield runner.Client(kind.name, "1", [runner.Check("a", "turn", "ok")])

    monkeypatch.setattr(runner, "_run", run)
    report = runner.smoke(clients.chosen(["http", "openai", "codex"]), options(tmp_path))
    assert [(one.name, one.skipped) for one in report.clients] == [
        ("http", ""), ("openai", "interrupted"), ("codex", "interrupted"),
    ]  # fmt: skip
    assert report.interrupted


def test_our_own_server_is_started_and_ended(trained_path, tmp_path):
    with Own(tmp_path, ctx=512) as own:
        assert own.url.startswith("http://127.0.0.1:") and own.process.poll() is None
    assert own.process.poll() == 0
    assert own.end is not None and [check.state for check in own.end.checks] == ["ok", "ok"]


def test_a_server_that_complains_is_found_out(tmp_path, monkeypatch):
    code = (
        "import json,sys,time;e=sys.stderr;"
        "print(json.dumps({'message':'listening on http://127.0.0.1:1'}),file=e,flush=True);"
        "print(json.dumps({'level':'error','message':'broke'}),file=e,flush=True);time.sleep(60)"
    )
    monkeypatch.setattr("ds4ref.conformance.servers._random", list)
    real = agents.subprocess.Popen
    monkeypatch.setattr("subprocess.Popen", lambda command, **more: real([sys.executable, "-c", code], **more))
    with Own(tmp_path, ctx=512) as own:
        pass
    assert [(check.name, check.state) for check in own.end.checks] == [("server.ends", "fail"), ("server.log", "fail")]
    assert own.end.checks[1].got == "broke"


# --- agents, without any


def agent(tmp_path, script, led=True, timeout=60.0):
    """The checks of an agent that is this Python script."""
    name = f"agent-{len(list(tmp_path.iterdir()))}"
    work = tmp_path / name
    work.mkdir()
    program = tmp_path / f"{name}.py"
    program.write_text(script)
    setting = agents.Setting(install.Place(None, "1"), work, "http://x", "m", 1000, led=led, timeout=timeout)
    kind = clients.Kind("codex", "npm", "x", "1", "agent", "a")
    recipe = lambda s, api, prompt: agents.Run([sys.executable, str(program), prompt])  # noqa: E731
    before = agents.RECIPES["codex"]
    agents.RECIPES["codex"] = recipe
    try:
        return {check.feature: check for check in agents.agent(kind, "", setting)}
    finally:
        agents.RECIPES["codex"] = before


READS = """
import re, sys
prompt = sys.argv[-1]
print("The file says", open(re.search(r"/\\S+\\.txt", prompt)[0]).read())
"""


def alive(pid):
    """Whether a process runs: one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout[:1] != "Z"
    except ProcessLookupError:
        return False


def test_an_agent_that_comes_through(tmp_path):
    assert {f: c.state for f, c in agent(tmp_path, READS).items()} == dict.fromkeys(
        ("start", "turn", "tools", "answer"), "ok"
    )


@pytest.mark.thorough
def test_an_agent_that_fails_or_hangs_or_never_reads(tmp_path):
    crashed = agent(tmp_path, READS + "sys.exit('no connection')")
    assert crashed["turn"].state == "fail" and "exit code 1: " in crashed["turn"].got and crashed["tools"].state == "ok"
    silent = agent(tmp_path, "print('I do not know')")
    assert silent["turn"].state == "ok" and silent["tools"].state == silent["answer"].state == "fail"
    assert "I do not know" in silent["answer"].got
    free = agent(tmp_path, "print('I do not know')", led=False)
    assert free["tools"].state == "skip" and "the model did not do it" in free["tools"].got
    # its children go with it, and SIGTERM is not enough
    hangs = "import signal,subprocess,sys,time\nsignal.signal(15, signal.SIG_IGN)\nif len(sys.argv)>2: sys.exit()\n"
    hangs += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    hangs += f"open({str(tmp_path / 'child')!r}, 'w').write(str(p.pid))\n"
    hangs += "if sys.argv[1] != '--version': time.sleep(600)\n"
    late = agent(tmp_path, hangs, timeout=5.0)
    assert late["turn"].state == "fail"
    assert late["turn"].got.startswith("no end within 5 s (--timeout gives more time): ")
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 30
    while alive(child):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.05)


def test_an_agent_sees_nothing_of_the_user(tmp_path, monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HTTPS_PROXY", "PYTHONPATH"):
        monkeypatch.setenv(name, "theirs")
    setting = agents.Setting(install.Place(None, "1"), tmp_path / "w", "http://x", "m", 1000)
    agents.prepared(setting)
    show = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]
    seen = json.loads(agents.run(setting, agents.Run(show, {"MINE": "1"}), "x").out)
    assert "theirs" not in seen.values() and seen["HOME"] == str(setting.home) and seen["MINE"] == "1"


@pytest.mark.parametrize("name", agents.RECIPES)
@pytest.mark.parametrize("api", clients.APIS)
def test_every_recipe_names_server_model_and_key(tmp_path, name, api):
    """Whatever file or variable it is that a client reads them from."""
    binary = tmp_path / "node_modules" / ".bin" / name.split("-")[0]
    binary.parent.mkdir(parents=True)
    binary.touch()
    setting = agents.Setting(
        install.Place(tmp_path, "1"), tmp_path / "w", "http://127.0.0.1:7", "my-model", 4321, key="my-key"
    )
    given = agents.prepared(setting)
    how = agents.RECIPES[name](setting, api, given.prompt)
    files = "".join(path.read_text() for path in setting.work.rglob("*") if path.is_file() and path != given.note)
    told = files + json.dumps(dict(how.env)) + " ".join(how.command)
    assert all(word in told for word in ("http://127.0.0.1:7", "my-model", "my-key", "4321", given.prompt))
    assert given.word not in told and how.command[0] == str(binary)


def test_scores_of_a_harness_are_looked_at(tmp_path):
    done = agents.Done(0, "", "")
    assert "no results" in harnesses._scores(tmp_path, "choice", done)
    assert "exit code 3" in harnesses._scores(tmp_path, "choice", agents.Done(3, "", "Traceback"))

    def said(suite, **numbers):
        (tmp_path / "results_1.json").write_text(json.dumps({"results": {f"smoke_{suite}": numbers}}))
        return harnesses._scores(tmp_path, suite, done)

    assert said("choice", **{"acc,none": 0.5, "acc_stderr,none": float("nan")}) == ""
    assert said("rolling", **{"word_perplexity,none": 1e9}) == ""
    assert "results" in said("rolling", **{"word_perplexity,none": float("inf")})
    assert "results" in said("rolling", **{"word_perplexity,none": 0.5})
    assert "results" in said("choice", **{"acc,none": 7}) and "results" in said("choice", alias="x")


# --- probes and installations


def options(tmp_path, **more):
    return runner.Options(tmp_path, tokens=10, timeout=30.0, **more)


def test_a_probe_that_crashes_keeps_what_it_had(good, tmp_path, monkeypatch):
    from ds4ref.conformance.talk import Talk

    folder = tmp_path / "probes"
    folder.mkdir()
    line = json.dumps({"name": "x.a", "feature": "turn", "state": "ok"})
    (folder / "openai_sdk.py").write_text(
        f"import sys; open(sys.argv[1], 'a').write({line!r} + '\\n'); sys.exit('boom')"
    )
    monkeypatch.setattr(runner, "PROBES", folder)
    talk = Talk(good[0])
    checks = runner.probe(clients.find("openai"), install.Place(None, "1"), tmp_path, talk, options(tmp_path))
    talk.close()
    assert [(check.name, check.state) for check in checks] == [("x.a", "ok"), ("openai.end", "fail")]
    assert "exit code 1: boom" in checks[1].got


def test_an_installation_is_whole_or_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("DS4_CACHE_DIR", str(tmp_path))
    kind = clients.Kind("thing", "pip", "no-such-thing", "1.0", "agent", "a")
    commands = []

    def run(command, kind, log):
        commands.append(command)
        Path(clients.home(), kind.folder, "half").write_text("x")
        if len(commands) > 1:
            raise install.DataError("no network")

    monkeypatch.setattr(install, "_run", run)
    with open(tmp_path / "log", "w") as log, pytest.raises(install.DataError):
        install.install(kind, log)
    assert install.installed(kind) is None, "half of it is nothing"
    monkeypatch.setattr(install, "_pip", lambda kind, folder, log: "1.0.7")
    with open(tmp_path / "log", "w") as log:
        place = install.install(kind, log)
    assert place.version == "1.0.7" and install.installed(kind) == place
    assert not (place.folder / "half").exists(), "what was broken off is begun anew"


def test_versions_in_this_interpreter_count_only_if_they_are_the_tables(monkeypatch, tmp_path):
    monkeypatch.setenv("DS4_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(install.metadata, "version", lambda name: "3.54.0")
    assert install.installed(clients.find("openai")) == install.Place(None, "3.54.0")
    monkeypatch.setattr(install.metadata, "version", lambda name: "3.99.0")
    assert install.installed(clients.find("openai")) is None


@pytest.mark.parametrize(("called", "told"), [("/home/me/models/a.gguf", "a.gguf"), ("org/a", "org/a")])
def test_where_a_model_lies_is_not_told(called, told):
    class Asked:
        model, models = called, SimpleNamespace(headers={"server": "s"})

    one = SimpleNamespace(options=SimpleNamespace(url="http://x"), talk=lambda _: Asked)
    assert runner.Servers.facts(one) == {"name": "s", "url": "http://x", "model": told}
