"""``ds4 steer``, and ds4's flags of steering: what is refused, what is written, what is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.steering import write_directions
from ds4ref.cli.ds4 import main
from ds4ref.cli.steer import build_parser
from ds4ref.console.model import add_part, steering
from ds4ref.console.options import Parser
from ds4ref.errors import UsageError


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with pairs of stories (one more) and of copies."""
    monkeypatch.chdir(tmp_path)
    names = "Rosa Dan Kim Leo Ada Otto Zoe Ivan Nina Walt Hal Ida Sam Vera Jan Eva Gina Tim Ella Kai".split()
    lines = [f"Tell a story about {name}." for name in names]
    (tmp_path / "good.txt").write_text("# stories\n" + "\n\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "bad.txt").write_text(
        "\n".join(f"Copy: {name[0]} {name[1]} q" for name in names[:-1]), encoding="utf-8"
    )
    return tmp_path


def parsed(*flags: str) -> tuple[float, float] | None:
    parser = Parser("x", usage="", description="")
    add_part(parser, "steering")
    found = steering(parser.parse(flags))
    return None if found is None else (found.attn, found.ffn)


def test_the_rules_of_the_flags() -> None:
    file = "--dir-steering-file", "d.f32"
    assert parsed() is None
    assert parsed(*file) == (0, 1)
    assert parsed(*file, "--dir-steering-attn", "-2") == (-2, 0), "one scale is given: the other is 0"
    assert parsed(*file, "--dir-steering-ffn", "0.5") == (0, 0.5)
    assert parsed(*file, "--dir-steering-ffn", "0") == (0, 0)
    assert parsed(*file, "--dir-steering-attn", "100", "--dir-steering-ffn", "-100") == (100, -100)
    assert parsed("--dir-steering-ffn", "0", "--dir-steering-attn", "0") is None, "as in ds4, nothing is asked"
    for flag in ("--dir-steering-attn", "--dir-steering-ffn"):
        with pytest.raises(UsageError, match=f"{flag} needs --dir-steering-file"):
            parsed(flag, "0.1")
        with pytest.raises(UsageError, match=f"invalid value for {flag}: 100.1: expected a number from -100 to 100"):
            parsed(*file, flag, "100.1")


def test_a_steered_answer_is_announced(trained_path: str, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.zeros((3, 256), np.float32)
    rows[:, 0] = 1
    write_directions("d.f32", rows)
    one = ["-m", trained_path, "-p", "Copy: a b", "--nothink", "--temp", "0", "-n", "5", "--dir-steering-file"]
    assert main([*one, "d.f32", "--dir-steering-attn", "0.25"]) == 0
    assert "ds4: directional steering enabled: d.f32 attn=0.25 ffn=0\n" in capsys.readouterr().err
    assert main([*one, "d.f32", "--dir-steering-ffn", "0"]) == 0
    assert "steering" not in capsys.readouterr().err
    write_directions("d.f32", rows[:2])
    assert main([*one, "d.f32"]) == 1
    assert (
        "d.f32: directions take 3 x 256 x 4 = 3072 bytes for this model, the file has 2048" in capsys.readouterr().err
    )


def test_build_and_measure(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stories from copies, with the embedded model: they are told apart, and those left out are moved."""
    made = ["steer", "build", "--good-file", "good.txt", "--bad-file", "bad.txt", "-o", "d.f32", "--json"]
    assert main(made) == 0
    out, err = capsys.readouterr()
    about = json.loads(out)
    assert about == json.loads((prompts / "d.json").read_text(encoding="utf-8"))
    assert "20 good and 19 bad prompts: using the first 19 of each" in err and "wrote d.f32 and d.json" in err
    assert about["format"] == "ds4-directional-steering-v1" and about["shape"] == [3, 256]
    assert (about["component"], about["thinking"], about["pairs"], about["held_out"]) == ("ffn_out", False, 10, 9)
    assert about["note"].startswith("separates the 9 pairs held out in ") and len(about["used"]) == 20
    assert (prompts / "d.f32").stat().st_size == 3 * 256 * 4

    few = ["-n", "8", "--scales", "0,2", "--json"]
    asked = ["steer", "measure", "d.f32", "good.txt", "--like", "The", "--unlike", "1", *few]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert "10 of 20 prompts were used for building: 10 left" in err
    (point,) = result["points"]
    assert result["prompts"] == 10 and point["scale"] == 2 and point["moves"] == -1, "stories begin with The"
    assert point["effect"][2] < -1 and result["verdict"].startswith("moves the 10 prompts")

    (prompts / "d.json").unlink()
    (prompts / "one.txt").write_text("Tell a story about Ann.\nTell a story about Max.\n", encoding="utf-8")
    assert main(["steer", "measure", "d.f32", "one.txt", "-n", "4", "--scales", "1e-9"]) == 0
    out, err = capsys.readouterr()
    assert "does not move the 2 prompts: at no scale beyond chance (95%)" in out and "no .json next to" in err


def test_what_is_refused(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (prompts / "empty.txt").write_text("# nothing\n\n", encoding="utf-8")
    build = ["steer", "build", "--good-file", "good.txt", "--bad-file", "bad.txt", "-o", "d.f32"]
    measure = ["steer", "measure", "d.f32", "good.txt"]
    cases = [
        (["steer"], 0, ""),
        (["steer", "bild"], 2, "unknown command 'bild' (did you mean build?)"),
        (build[:-2], 2, "--output is needed"),
        ([*build[:4], *build[6:]], 2, "--bad-file is needed"),
        ([*build[:-1], "d.json"], 2, "--output must not end in .json"),
        ([*build[:5], "empty.txt", *build[6:]], 1, "empty.txt: no prompts"),
        ([*build, "--component", "q"], 2, "choose from ffn_out, attn_out"),
        (measure[:-1], 2, "name a file of directions and a file of prompts"),
        ([*measure, "--like", "a"], 2, "--like and --unlike go together"),
        ([*measure, "--scales", "0"], 2, "give at least one nonzero scale"),
        ([*measure, "--scales", "1,101"], 2, "expected a number from -100 to 100"),
        (measure, 1, "d.f32: cannot read directions: No such file or directory"),
    ]
    for argv, code, said in cases:
        assert main(argv) == code, argv
        assert said in capsys.readouterr().err, argv
    write_directions("d.f32", np.zeros((3, 256), np.float32))
    assert main(measure) == 1 and "d.f32: all directions are zero" in capsys.readouterr().err


def test_scales_may_begin_with_a_minus() -> None:
    """Which ds4's tool takes for a flag."""
    assert build_parser("measure").parse(["--scales", "-1,0.5"]).scales == [-1, 0.5]
