"""Terminal agents as clients: writes their configuration, runs them, and decides whether they succeeded.

Each agent gets its own home folder, and none of the user's keys, settings or proxies. Its configuration names the
server, the model and the context length; it gets one task (``task``). It succeeds if it exits by itself with code 0 and
its answer contains the secret word of the task's file.

Configurations follow the agents' documentation, with telemetry and updates off (docs/evidence/clients.md).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .clients import Kind
from .install import Place
from .results import Check, State
from .talk import shown
from .task import Task, task

KEPT = ("LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT")
"""Environment variables that an agent inherits."""
DUMMY = "dummy"


@dataclass(frozen=True)
class Setting:
    """Everything that a client's run depends on.

    place      where the client is installed
    work       folder in which its home and its working folder are created
    url, model, ctx, key   the server's address, the model, its context length in tokens, and the API key
    led        whether the server's answers are scripted, so that tools are certain to be called
               (``ds4ref.cli.scripted``)
    timeout    seconds for each command
    """

    place: Place
    work: Path
    url: str
    model: str
    ctx: int
    key: str = DUMMY
    led: bool = False
    timeout: float = 300.0

    @property
    def home(self) -> Path:
        """The agent's home folder."""
        return self.work / "home"

    @property
    def folder(self) -> Path:
        """The agent's working folder."""
        return self.work / "project"


@dataclass(frozen=True)
class Run:
    """A command line, and the environment variables to set for it."""

    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A finished process.

    code      exit code, None if it timed out
    out, err  standard output and standard error
    late      the message for the report if it timed out
    """

    code: int | None
    out: str
    err: str
    late: str = ""

    @property
    def ended(self) -> str:
        """How the process ended, in a few words for the report."""
        return self.late if self.code is None else f"exit code {self.code}"

    @property
    def tail(self) -> str:
        """The last two lines of the process's output, as one line."""
        words = [line for text in (self.err, self.out) for line in text.splitlines() if line.strip()]
        return shown(" / ".join(words[-2:])) or "nothing"


def run(setting: Setting, how: Run, name: str) -> Done:
    """Run a command until it ends or times out, then kill its process group.

    Its output goes to the files ``name``.out and ``name``.err in the work folder.
    """
    env = {key: os.environ[key] for key in KEPT if key in os.environ}
    env |= {"HOME": str(setting.home), "PATH": setting.place.path, "NO_COLOR": "1", "TERM": "dumb", **how.env}
    paths, late = [setting.work / f"{name}.{end}" for end in ("out", "err")], ""
    with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
        process = subprocess.Popen(
            how.command, cwd=setting.folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(setting.timeout)
        except subprocess.TimeoutExpired:
            code = None
            late = f"no end within {setting.timeout:.0f} s (--timeout gives more time)"
        finally:
            # opencode ignores SIGTERM while it loops, and agents leave child processes behind
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    out_text, err_text = (path.read_text(errors="replace") for path in paths)
    return Done(code, out_text, err_text, late)


# --- how each is started


def codex(s: Setting, api: str, prompt: str) -> Run:
    """Return the command that runs Codex CLI on the responses API; writes its configuration."""
    folder = s.home / ".codex"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        f'model = "{s.model}"\nmodel_provider = "smoke"\nmodel_context_window = {s.ctx}\n\n'
        f'[model_providers.smoke]\nname = "smoke"\nbase_url = "{s.url}/v1"\nenv_key = "SMOKE_KEY"\n'
        'wire_api = "responses"\n'
    )
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Run([s.place.program("codex"), "exec", *options, prompt], {"CODEX_HOME": str(folder), "SMOKE_KEY": s.key})


def claude(s: Setting, api: str, prompt: str) -> Run:
    """Return the command that runs Claude Code on the messages API; writes its configuration."""
    sizes = (f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU"))
    names = ("ANTHROPIC_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL", *sizes)
    env = {
        **dict.fromkeys(names, s.model), "ANTHROPIC_BASE_URL": s.url, "ANTHROPIC_AUTH_TOKEN": s.key,
        "CLAUDE_CONFIG_DIR": str(s.home / ".claude"), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(s.ctx),
    }  # fmt: skip
    return Run([s.place.program("claude"), "-p", "--allowedTools", "Bash Read", "--", prompt], env)


def opencode(s: Setting, api: str, prompt: str) -> Run:
    """Return the command that runs opencode on the chat completions API; writes its configuration."""
    limit = {"context": s.ctx, "output": min(8192, s.ctx // 4)}
    provider = {
        "npm": "@ai-sdk/openai-compatible", "name": "smoke",
        "options": {"baseURL": f"{s.url}/v1", "apiKey": s.key},
        "models": {s.model: {"name": s.model, "tool_call": True, "reasoning": True, "limit": limit}},
    }  # fmt: skip
    config = {
        "$schema": "https://opencode.ai/config.json", "model": f"smoke/{s.model}", "autoupdate": False,
        "share": "disabled", "provider": {"smoke": provider},
        "permission": {"bash": "allow", "edit": "allow", "external_directory": "allow"},
    }  # fmt: skip
    (s.folder / "opencode.json").write_text(json.dumps(config))
    dirs = {f"XDG_{kind}_HOME": str(s.home / kind.lower()) for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
    off = dict.fromkeys(("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD"), "1")
    env = {**dirs, **{f"OPENCODE_DISABLE_{name}": value for name, value in off.items()}}
    return Run([s.place.program("opencode"), "run", prompt], env)


PI = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}


def pi(s: Setting, api: str, prompt: str) -> Run:
    """Return the command that runs pi on the API ``api``; writes its configuration."""
    folder = s.home / ".pi" / "agent"
    folder.mkdir(parents=True)
    model: dict[str, Any] = {
        "id": s.model, "name": s.model, "reasoning": True, "input": ["text"], "contextWindow": s.ctx,
        "maxTokens": min(8192, s.ctx // 4), "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
    }  # fmt: skip
    if api == "chat":
        model["compat"] = {
            "supportsStore": False, "supportsDeveloperRole": False, "supportsReasoningEffort": True,
            "maxTokensField": "max_tokens", "thinkingFormat": "deepseek",
            "requiresReasoningContentOnAssistantMessages": True,
        }  # fmt: skip
    base = s.url if api == "messages" else f"{s.url}/v1"
    provider = {"baseUrl": base, "api": PI[api], "apiKey": s.key, "models": [model]}
    (folder / "models.json").write_text(json.dumps({"providers": {"smoke": provider}}))
    env = {"PI_CODING_AGENT_DIR": str(folder), "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}
    options = ["-p", "--provider", "smoke", "--model", s.model, "--no-session"]
    return Run([s.place.program("pi"), *options, prompt], env)


RECIPES: dict[str, Callable[[Setting, str, str], Run]] = {
    "codex": codex,
    "claude": claude,
    "opencode": opencode,
    "pi": pi,
}


# --- results


def prepared(setting: Setting) -> Task:
    """Create an agent's home and working folder and the task's file; return the task."""
    setting.home.mkdir(parents=True)
    setting.folder.mkdir()
    return task(setting.folder)


def agent(kind: Kind, api: str, setting: Setting) -> Iterator[Check]:
    """Run the agent ``kind`` on one task, over the API ``api``; yield the checks of start, turn, tool call, answer."""
    job = prepared(setting)
    how = RECIPES[kind.name](setting, api, job.prompt)
    name = f"{kind.name}.{api}" if api else kind.name
    version = run(setting, Run([how.command[0], "--version"], how.env), "version")
    begins = "ok" if version.code == 0 and (version.out + version.err).strip() else "fail"
    yield Check(f"{name}.start", "start", _state(begins == "ok"), True, "it starts and tells its version", version.tail)
    begun = time.monotonic()
    done = run(setting, how, "turn")
    seconds = round(time.monotonic() - begun, 1)
    expected = "it ends by itself, with exit code 0"
    got = "" if done.code == 0 else f"{done.ended}: {done.tail}"
    yield Check(f"{name}.turn", "turn", _state(done.code == 0), True, expected, got, "", seconds)
    yield from outcome(name, job, done, setting.led)


def outcome(name: str, job: Task, done: Done, led: bool) -> Iterator[Check]:
    """Yield the checks of tool call and answer: both pass if the secret word is in the agent's output.

    name: begins the checks' names; job: the task; done: the agent's finished process; led: whether the server's answers
    were scripted. If they were not, and the agent exited with code 0 without the word, the checks are skipped.
    """
    known, how = job.word in done.out, "scripted" if led else ""
    for feature, expected in (
        ("tools", "the tool is run that the model called"),
        ("answer", "the answer to its result has the secret word"),
    ):
        if known:
            yield Check(f"{name}.{feature}", feature, "ok", True, expected, "", how)
        elif not led and done.code == 0:
            why = f"the model did not do it ({done.tail}); only one that calls tools by itself shows whether it could"
            yield Check(f"{name}.{feature}", feature, "skip", True, expected, why, how)
        else:
            yield Check(f"{name}.{feature}", feature, "fail", True, expected, done.tail, how)


def _state(good: bool) -> State:
    return "ok" if good else "fail"
