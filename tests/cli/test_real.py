"""``ds4`` on real files: the small models and, where present, the golden one.

With the reference backend, so that nothing has to be compiled.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ds4ref.cli.ds4 import main
from tests.golden import ROOT as GOLDEN
from tests.golden import needs_golden
from tests.marking import sampled
from tests.terminal import ROOT, Terminal

COMMAND = [sys.executable, "-m", "ds4ref.cli.ds4", "--backend", "reference"]


def ds4(capsys, *argv: str) -> str:
    code = main(["--backend", "reference", *argv])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def logits(capsys, out: Path, *argv: str) -> np.ndarray:
    assert ds4(capsys, "--dump-logits", str(out), *argv) == ""
    with np.load(out) as arrays:
        return arrays["logits"]


def ids_file(folder: Path, ids: list[int]) -> str:
    (folder / "ids.json").write_text(json.dumps(ids))
    return str(folder / "ids.json")


@needs_golden
@pytest.mark.parametrize("flags", sampled(["", "--prefill-chunk 7", "--one-by-one"], 3))
def test_dumped_logits_are_those_of_hugging_face(capsys, tmp_path, flags):
    argv = ["-m", str(GOLDEN / "tiny.gguf"), "--token-ids", str(GOLDEN / "t40.ids.json"), "--numerics", "exact"]
    got = logits(capsys, tmp_path / "o.npz", *argv, *flags.split())
    with np.load(GOLDEN / "tiny.t40.npz") as golden:
        want, rows = golden["hf"], golden["rows"]
    assert np.abs(got[rows] - want).max() < 2e-4


def test_embedded_model_is_the_default_and_is_named(tmp_path, trained_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [*COMMAND, "-p", "Hi", "-n", "2", "--seed", "1"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    first, second = done.stderr.splitlines()
    assert done.returncode == 0
    about = "the embedded model, a test instrument trained on generated tasks, not an assistant"
    assert first == f"ds4: model: {about} ({trained_path}; no ./ds4flash.gguf here)"
    assert re.fullmatch(r"ds4: prefill: \d+\.\d\d t/s, generation: \d+\.\d\d t/s", second)
    (tmp_path / "ds4flash.gguf").symlink_to(trained_path)
    again = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert again.stderr.startswith("ds4: model: ds4flash.gguf\n")
    assert again.stdout == done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_chat_on_a_terminal(tmp_path, nano_path):
    """Typing, history, Ctrl-C at the prompt and in an answer, a bad command, leaving."""
    command = [*COMMAND, "-m", nano_path, "--seed", "1"]
    with Terminal(command, HOME=str(tmp_path), TERM="xterm", PROMPT_TOOLKIT_NO_CPR="1") as talk:
        talk.until(r"ds4>")
        talk.types("hello\r")
        talk.until(r"\x1b\[90m.")  # thinking is grey
        time.sleep(0.3)
        talk.types("\x03")
        assert "\x1b[0m" in talk.until(r"generation: \d+\.\d\d t/s")
        talk.until(r"ds4>")
        talk.types("half a mess\x03")
        talk.until(r"ds4>")
        talk.types("/ctx many\r")
        talk.until(r"ds4: /ctx: expected an integer >= 1, not many", r"ds4>")
        talk.types("\x04")
        assert talk.ends()[0] == 0
    assert {"+hello", "+/ctx many"} <= set((tmp_path / ".ds4ref_history").read_text().splitlines())
