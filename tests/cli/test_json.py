"""``--json`` of ``ds4``: stdout is one JSON value or empty, whatever happens."""

from __future__ import annotations

import json

import pytest

from ds4ref.cli.ds4 import main


def test_an_answer_as_json_is_the_answer_as_text(nano_path, capsys):
    flags = ["-m", nano_path, "-p", "Why?", "--temp", "0", "-n", "8", "-c", "256", "-t", "1", "--nothink"]
    assert main(flags) == 0
    text = capsys.readouterr().out
    assert main([*flags, "--json"]) == 0
    out, err = capsys.readouterr()
    got = json.loads(out)
    assert out.count("\n") == 1 and got["text"].rstrip("\n") == text.rstrip("\n") and got["reasoning"] == ""
    assert len(got["token_ids"]) == got["tokens"] == 8 and got["finish"] == "length" and got["prompt_tokens"] > 1
    assert got["decode_s"] > 0 and "prefill:" in err
    assert main([*flags[:-1], "--think", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reasoning"] != ""


def test_inspect_as_json(nano_path, capsys):
    assert main(["--inspect", nano_path, "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["path"] == nano_path and got["shape"]["n_layers"] > 0 and got["accounts"]["tensors"]["refused"] == {}


@pytest.mark.parametrize("argv, code", [
    (["--inspect", "none.gguf", "--json"], 1), (["-m", "none.gguf", "-p", "x", "--json"], 1), (["--json"], 2),
    (["-p", "x", "--dump-tokens", "--json"], 2), (["-p", "x", "--json", "--temp", "-1"], 2),
])  # fmt: skip
def test_an_error_leaves_stdout_empty(argv, code, capsys):
    assert main(argv) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
