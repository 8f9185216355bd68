"""A mistyped option, subcommand, value or model file is answered with what is nearest to it."""

from __future__ import annotations

import shutil

import pytest

from ds4ref.cli.ds4 import main


@pytest.mark.parametrize("argv, says", [
    (["--promt", "x"], "unknown option: --promt (did you mean --prompt?)"),
    (["--backend", "refrence"], "(did you mean reference?)"),
    (["--numerics", "QAT"], "(did you mean qat?)"),
    (["--split", "unicod", "-p", "x"], "(did you mean unicode?)"),
    (["inspct"], "unexpected argument: inspct (did you mean --inspect?)"),
    (["agnet"], "unexpected argument: agnet (did you mean agent?)"),
    (["nano", "slcie"], "unknown command 'slcie' (did you mean slice?)"),
    (["zzz"], "unexpected argument: zzz; see"),
])  # fmt: skip
def test_the_nearest_name_is_suggested(argv, says, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert says in err and err.count("\n") == 1 and out == ""


def test_the_nearest_model_is_suggested(tmp_path, nano_path, capsys):
    shutil.copy(nano_path, tmp_path / "flash-q4.gguf")
    (tmp_path / "prompt.txt").write_text("x")
    assert main(["-m", str(tmp_path / "falsh-q4.gguf"), "-p", "x"]) == 1
    assert "No such file or directory (did you mean flash-q4.gguf?)" in capsys.readouterr().err
    assert main(["-m", str(tmp_path), "-p", "x"]) == 1
    assert "a folder without config.json; name one of its files: flash-q4.gguf" in capsys.readouterr().err
    assert main(["-m", str(tmp_path / "prompt.text"), "-p", "x"]) == 1
    assert "did you mean" not in capsys.readouterr().err
