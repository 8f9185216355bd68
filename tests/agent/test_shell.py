"""Commands end, with all that they started; what they print is bounded; no key reaches them."""

from __future__ import annotations

import os
import re
import time

import pytest

from ds4ref.agent import shell as module
from ds4ref.agent.shell import OUTPUT_CHARS, Shell, scrubbed, shortened
from ds4ref.cancellation import Cancellation


@pytest.fixture
def shell(tmp_path) -> Shell:
    """Its clock says 0, and 10 as soon as a command has made the file ``late``."""
    return Shell(str(tmp_path), os.environ, lambda: 10.0 if (tmp_path / "late").exists() else 0.0)


def run(shell: Shell, command: str, cancel: Cancellation | None = None):
    return shell.run(command, 10, cancel or Cancellation())


def gone(pid: int) -> bool:
    """Return whether a process ends soon; a killed one takes a moment, and is a zombie until it is buried."""
    for _ in range(3000):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc to look for processes in")


def test_output_and_status(shell, tmp_path) -> None:
    done = run(shell, "echo out; echo err >&2; pwd; exit 7")
    assert (done.status, done.output, done.why) == (7, f"out\nerr\n{tmp_path}\n", "")
    assert run(shell, "kill -9 $$").status == 137 and run(shell, "no-such-command").status == 127
    assert run(shell, "printf 'a\\0b\\377'").output == "a\ufffdb\ufffd" and run(shell, "true").output == ""
    assert run(shell, "cat; read x; echo bad > /dev/tty || echo none").output.endswith("none\n"), (
        "no input, no terminal"
    )
    done = run(shell, "echo a; exec >&- 2>&-; sleep 0.2; touch end; exit 3")
    assert (done.output, done.status) == ("a\n", 3) and (tmp_path / "end").exists(), "it closed its output and ran on"


@needs_proc
def test_a_timeout_ends_the_whole_group(shell) -> None:
    done = run(shell, "(trap '' TERM; sleep 1000; sleep 1000) & echo $!; sleep 1000 | cat & echo $!; touch late; wait")
    pids = [int(line) for line in done.output.split()]
    assert (done.why, done.status, done.seconds) == ("timeout", 143, 10.0) and len(pids) == 2 and all(map(gone, pids))


@needs_proc
def test_what_runs_on_in_the_background_ends_with_the_command(shell) -> None:
    done = run(shell, "sleep 1000 & echo $!; (sleep 1000 >/dev/null 2>&1 &) ; echo end")
    pid, end = done.output.split()
    assert (done.why, done.status, end) == ("", 0, "end") and gone(int(pid))


@needs_proc
@pytest.mark.parametrize("patient", [True, False])
def test_pressing_the_button_ends_it(shell, tmp_path, monkeypatch, patient) -> None:
    """Impatient is a second Ctrl-C while the group is asked to end."""
    cancel, wait = Cancellation(), module.subprocess.Popen.wait

    def struck(self, timeout=None):
        if timeout == module.GRACE:
            raise KeyboardInterrupt
        return wait(self, timeout)

    shell.clock = lambda: cancel.press() or 0.0 if (tmp_path / "pid").exists() else 0.0
    command = "echo $$ > new; mv new pid; sleep 1000"
    if patient:
        done = run(shell, command, cancel)
        assert (done.why, done.status) == ("interrupt", 143)
    else:
        monkeypatch.setattr(module.subprocess.Popen, "wait", struck)
        with pytest.raises(KeyboardInterrupt):
            run(shell, f"trap '' TERM; {command}", cancel)
    assert gone(int((tmp_path / "pid").read_text()))


# --- output


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
