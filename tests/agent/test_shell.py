"""Commands end, with all that they started; what they print is bounded; no key reaches them."""

from __future__ import annotations

import os
import re
import threading
import time

import pytest

from ds4ref.agent import shell as module
from ds4ref.agent.shell import OUTPUT_CHARS, Shell, scrubbed, shortened
from ds4ref.cancellation import Cancellation


@pytest.fixture
def shell(tmp_path) -> Shell:
    return Shell(str(tmp_path), os.environ)


def run(shell: Shell, command: str, timeout: float = 600, cancel: Cancellation | None = None):
    return shell.run(command, timeout, cancel or Cancellation())


class Clock:
    """Says 0 until it is told that time has passed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Whether it ends soon; a killed process takes a moment."""
    for _ in range(3000):
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


def when(path, action) -> threading.Thread:
    """Does it as soon as there is a file."""

    def watch() -> None:
        for _ in range(3000):
            if path.exists():
                break
            time.sleep(0.01)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc to look for processes in")


def test_output_and_status(shell, tmp_path) -> None:
    done = run(shell, "echo out; echo err >&2; pwd; exit 7")
    assert (done.status, done.output, done.why) == (7, f"out\nerr\n{tmp_path}\n", "")
    assert run(shell, "kill -9 $$").status == 137 and run(shell, "kill -15 $$").status == 143
    assert run(shell, "no-such-command").status == 127
    assert run(shell, "printf 'a\\0b\\377'").output == "a\ufffdb\ufffd"
    assert run(shell, "true").output == ""


def test_there_is_no_input_and_no_terminal(shell) -> None:
    assert run(shell, "cat; read x; echo end").output == "end\n"
    assert run(shell, "echo bad > /dev/tty || echo none").output.endswith("none\n")


def test_a_command_that_takes_too_long_is_ended(tmp_path) -> None:
    clock = Clock()
    shell = Shell(str(tmp_path), os.environ, clock)
    thread = when(tmp_path / "begun", lambda: setattr(clock, "now", 11.0))
    done = run(shell, "echo first; touch begun; sleep 1000; echo never", timeout=10)
    thread.join()
    assert (done.why, done.output, done.status, done.seconds) == ("timeout", "first\n", 143, 11.0)


@needs_proc
def test_a_timeout_ends_the_whole_group(tmp_path) -> None:
    clock = Clock()
    thread = when(tmp_path / "begun", lambda: setattr(clock, "now", 11.0))
    command = "(trap '' TERM; sleep 1000; sleep 1000) & echo $!; sleep 1000 | sleep 1000 & echo $!; touch begun; wait"
    done = run(Shell(str(tmp_path), os.environ, clock), command, timeout=10)
    thread.join()
    pids = [int(line) for line in done.output.split()]
    assert done.why == "timeout" and len(pids) == 2 and all(gone(pid) for pid in pids)


@needs_proc
def test_what_runs_on_in_the_background_ends_with_the_command(shell) -> None:
    done = run(shell, "sleep 1000 & echo $!; (sleep 1000 >/dev/null 2>&1 &) ; echo end")
    pid, end = done.output.split()
    assert (done.why, done.status, end) == ("", 0, "end") and gone(int(pid))


@needs_proc
def test_what_flees_from_the_group_holds_nobody_up(shell, monkeypatch) -> None:
    monkeypatch.setattr(module, "DRAIN", 0.05)
    done = run(shell, "setsid sh -c 'echo $$ > pid; exec sleep 1000' & until [ -s pid ]; do sleep 0.01; done; echo end")
    with open(f"{shell.folder}/pid") as file:
        pid = int(file.read())
    try:
        assert done.status == 0 and done.output == "end\n" and alive(pid)
    finally:
        os.kill(pid, 9)


@needs_proc
def test_pressing_the_button_ends_it(shell, tmp_path) -> None:
    cancel = Cancellation()
    thread = when(tmp_path / "begun", cancel.press)
    done = run(shell, "sleep 1000 & echo $!; touch begun; wait", cancel=cancel)
    thread.join()
    assert (done.why, done.status) == ("interrupt", 143) and gone(int(done.output))
    assert run(shell, "sleep 1000", cancel=cancel).why == "interrupt"


@needs_proc
def test_impatience_leaves_no_process(shell, tmp_path, monkeypatch) -> None:
    """A second Ctrl-C while the group is asked to end."""
    cancel, wait = Cancellation(), module.subprocess.Popen.wait

    def impatient(self, timeout=None):
        if timeout == module.GRACE:
            raise KeyboardInterrupt
        return wait(self, timeout)

    monkeypatch.setattr(module.subprocess.Popen, "wait", impatient)
    thread = when(tmp_path / "pid", cancel.press)
    with pytest.raises(KeyboardInterrupt):
        run(shell, "trap '' TERM; echo $$ > new; mv new pid; while :; do sleep 0.1; done", cancel=cancel)
    thread.join()
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_command_that_closes_its_output_is_waited_for(shell, tmp_path) -> None:
    done = run(shell, "echo a; exec >&- 2>&-; sleep 0.2; touch end; exit 3")
    assert (done.output, done.status) == ("a\n", 3) and (tmp_path / "end").exists()


def test_no_descriptor_is_left(shell) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc to count descriptors in")
    before = len(os.listdir("/proc/self/fd"))
    for command in ("true", "sleep 1000 & echo", "exit 3"):
        run(shell, command)
    shell.folder += "/missing"
    with pytest.raises(FileNotFoundError):
        run(shell, "true")
    assert len(os.listdir("/proc/self/fd")) == before


# --- output


def test_long_output_shows_its_ends(shell) -> None:
    lines = run(shell, "seq 100000").output.split("\n")
    assert lines[:100] == [str(n) for n in range(1, 101)] and lines[-101:-1] == [str(n) for n in range(99901, 100001)]
    assert lines[100] == "[... 588003 of 588895 characters left out; 100000 lines in all ...]" and len(lines) == 202


@pytest.mark.parametrize("text, whole", [
    ("1\n" * 200, True), ("1\n" * 201, False), ("1\n" * 200 + "1", True), ("x" * OUTPUT_CHARS, True),
    ("x" * (OUTPUT_CHARS + 1), False), ("\u20ac" * OUTPUT_CHARS, True), ("", True),
])  # fmt: skip
def test_where_output_is_cut(text, whole) -> None:
    shown = shortened(text.encode())
    assert (shown == text) is whole and len(shown) < OUTPUT_CHARS + 200
    if not whole:
        head, gap, tail = re.split(r"\n(\[.*\])\n", shown)
        missing = len(text) - len(head) - len(tail)
        assert text.startswith(head) and text.endswith(tail) and missing > 0
        assert gap.startswith(f"[... {missing} of {len(text)} characters left out; ")
        assert min(len(head), len(tail)) == OUTPUT_CHARS // 2 or head.count("\n") == tail.count("\n") - 1 == 99


def test_a_command_that_prints_too_much_is_ended(shell, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_OUTPUT", 1 << 20)
    done = run(shell, "yes")
    assert done.why == "output" and done.status == 143 and len(done.output) < OUTPUT_CHARS + 200


# --- where it runs


@pytest.mark.parametrize("name, value", [
    *((name, "x") for name in (
        "DS4_API_KEY", "aws_secret_access_key", "GITHUB_TOKEN", "DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "SMTP_PASS",
        "GPG_PASSPHRASE", "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK", "XAUTHORITY", "SESSION_COOKIE",
        "JENKINS_PAT", "SENTRY_DSN", "SLACK_WEBHOOK", "PRIVATE_STUFF", "BASH_ENV", "ENV", "PROMPT_COMMAND")),
    *(("PLAIN", value) for value in (
        "https://user:pass@example.org/simple", "sk-abcdefghijklmnopqrst", "ghp_" + "a1" * 18, "AKIAABCDEFGHIJKLMNOP",
        "hf_" + "aB3" * 10, "xoxb-1-2", "-----BEGIN RSA PRIVATE", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.x",
        "prefix sk-proj-abcdefghijklmnop")),
])  # fmt: skip
def test_variables_that_look_like_keys_are_left_out(name, value) -> None:
    assert name not in scrubbed({name: value, "PATH": "/bin"})


def test_others_stay() -> None:
    kept = {"PATH": "/bin", "HOME": "/home/x", "LANG": "C.UTF-8", "GIT_AUTHOR_NAME": "a", "TOKENIZERS_PARALLELISM": "0",
            "OLDPWD": "/", "PWD": "/", "VIRTUAL_ENV": "/v", "CUDA_HOME": "/c", "CC": "gcc",
            "URL": "https://example.org/a@b", "http_proxy": "http://proxy:3128", "DATE": "12:30@home"}  # fmt: skip
    assert scrubbed(kept).items() >= kept.items()
    assert scrubbed({"TERM": "xterm", "PAGER": "less"}) == module._PLAIN


def test_the_key_in_use_is_left_out_under_any_name() -> None:
    environ = {"MY_ACCESS": "abcd1234", "COPY": "Bearer abcd1234", "PATH": "/bin", "EMPTY": ""}
    assert set(scrubbed(environ, "MY_ACCESS")) - set(module._PLAIN) == {"PATH", "EMPTY"}
    assert set(scrubbed(environ, "EMPTY", "MISSING")) - set(module._PLAIN) == {"MY_ACCESS", "COPY", "PATH"}


def test_a_command_sees_the_given_environment_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DS4_API_KEY", "sesame")
    shell = Shell(str(tmp_path), scrubbed({**os.environ, "PLAIN": "kept"}, "DS4_API_KEY"))
    assert run(shell, "echo $PLAIN; env | grep -c sesame").output == "kept\n0\n"


def test_without_bash_there_is_sh(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    shell = Shell(str(tmp_path), os.environ)
    assert shell.program == "/bin/sh" and run(shell, "echo a").output == "a\n"
