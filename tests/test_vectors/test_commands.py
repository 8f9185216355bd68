"""The commands as a user runs them: ds4's five official cases by path, perplexity."""

from __future__ import annotations

import itertools
import json
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.errors import TargetError
from ds4ref.targets import Ability, Prompt, Request, Step, Token
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors import check, cli
from ds4ref.test_vectors.elicit import PROBE
from ds4ref.test_vectors.official import VecCase, read_vec, write_vec
from ds4ref.test_vectors.ppl import block_error, by_depth, echo_agrees, score

from .scripted import Scripted

pytestmark = pytest.mark.usefixtures("both")

# Names, kinds, contexts and step counts of ds4's set; texts and answers are ours.
OFFICIAL = {
    "short_italian_fact": (16384, 4, "Chi era il mugnaio del vecchio mulino? Una frase sola."),
    "short_code_completion": (4096, 4, "Finish this C call: printf("),
    "short_reasoning_plain": (4096, 1, "What is 4096 divided by 512? Number only."),
    "long_memory_archive": (16384, 4, "".join(f"Record {i}: box {i * 7 % 72}.\n" for i in range(36)) + "Record 31?"),
    "long_code_audit": (16384, 4, "".join(f"Module {i}: no finding.\n" for i in range(34)) + "The audit found"),
}


def run(capsys, *argv: str) -> tuple[int, dict]:
    code = cli.main([*argv])
    out = capsys.readouterr().out
    return code, json.loads(out.strip().splitlines()[-1]) if out.strip() else {}


@pytest.fixture(scope="module")
def local(nano_path):
    with LocalTarget.open(nano_path, backend="cpu", numerics="exact", ctx=4096) as target:
        yield target


@pytest.fixture(scope="module")
def greedy(local) -> dict[str, list[bytes]]:
    """The greedy answers of the embedded model, which are the official answers of this synthetic set."""
    answers = {}
    for name, (_, count, prompt) in OFFICIAL.items():
        done = local.complete(Request(Prompt.chat(prompt), count, top_logprobs=1))
        answers[name] = [step.token.raw for step in done.steps]
    return answers


@pytest.fixture
def official(tmp_path, greedy) -> Path:
    """A folder like ds4's tests/test-vectors: official.vec, prompts, and ds4's own manifest. The case on which engines
    are known to diverge has a different first token."""
    folder = tmp_path / "test-vectors"
    (folder / "prompts").mkdir(parents=True)
    cases = []
    for name, (ctx, _, prompt) in OFFICIAL.items():
        chosen = list(greedy[name])
        if name == "long_memory_archive":
            chosen[0] = b"x" if chosen[0] != b"x" else b"y"
        path = f"prompts/{name}.txt"
        (folder / path).write_text(prompt)
        cases.append(VecCase(name, ctx, path, tuple((raw, ((raw, 0.0),)) for raw in chosen)))
    (folder / "official.vec").write_bytes(write_vec(cases))
    (folder / "manifest.json").write_text('{"schema": "ds4-test-vector-manifest-v1"}')
    return folder


@pytest.mark.parametrize("form", ["official.vec", ""], ids=["vec", "folder"])
def test_the_five_official_cases_are_checked(official, nano_path, tmp_path, capsys, form, monkeypatch) -> None:
    """The report has the time of each: here each takes as long as the one before and a second more."""
    clock = (float(n * n + n) / 2 for n in itertools.count())
    monkeypatch.setattr(check, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    path = str(official / form)
    target = f"local:{nano_path}?backend=cpu&numerics=exact"
    junit = tmp_path / "junit.xml"
    for profile in ("margin", "ds4"):
        code, result = run(capsys, "check", path, "--target", target, "--profile", profile, "--junit", str(junit))
        assert code == 0 and result["passed"] and result["verdicts"] == {"match": 4, "expected": 1}
        suite = ET.parse(junit).getroot().find("testsuite")
        assert suite is not None and (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (
            "5", "0", "1")  # fmt: skip
        times = [float(case.get("time", 0)) for case in suite.iter("testcase")]
        assert np.diff(times).tolist() == [1] * 4


def test_a_wrong_case_fails_the_check(official, nano_path, capsys) -> None:
    cases = {c.id: c for c in read_vec(str(official / "official.vec"))}
    good = cases["long_code_audit"]
    steps = (good.steps[0], (b"q", ((b"q", 0.0),)), *good.steps[2:])
    (official / "official.vec").write_bytes(write_vec([VecCase(good.id, good.ctx, good.prompt_path, steps)]))
    target = f"local:{nano_path}?backend=cpu&numerics=exact"
    code, result = run(capsys, "check", str(official / "official.vec"), "--target", target)
    assert code == 1 and result["failed"] == ["long_code_audit"]


def test_an_external_binary_is_checked_too(official, nano_path, capsys) -> None:
    """Our own ds4 command is checked as an external binary, through its --dump-logprobs."""
    command = f"command:{sys.executable} -m ds4ref.cli.ds4 -m {nano_path} --backend cpu --numerics exact"
    code, result = run(capsys, "check", str(official / "official.vec"), "--only", "short_code_completion",
                      "--target", command)  # fmt: skip
    assert code == 0 and result["verdicts"] == {"match": 1}


def test_capture_convert_and_back(nano_path, tmp_path, capsys) -> None:
    target = f"local:{nano_path}?backend=cpu&numerics=exact"
    prompts, folder = tmp_path / "p.jsonl", str(tmp_path / "v")
    prompts.write_text(json.dumps({"id": "one", "prompt": "A line\u2028separator"}, ensure_ascii=False) + "\n")
    assert run(capsys, "capture", folder, "--prompts", str(prompts), "--target", target, "-n", "3")[0] == 0
    goal = str(tmp_path / "a.vec")
    assert run(capsys, "convert", folder, goal)[0] == 0
    assert run(capsys, "convert", folder, goal)[0] == 2  # never refreshed in place
    code, result = run(capsys, "check", goal, "--target", target)
    assert code == 0 and result["verdicts"] == {"match": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.vec", "p.jsonl", "prompts", "v"]


def test_partial_captures_are_no_vectors(nano_path, tmp_path, capsys) -> None:
    target = f"local:{nano_path}?backend=cpu&numerics=exact"
    prompts, folder = tmp_path / "p.jsonl", tmp_path / "v"
    prompts.write_text("".join(json.dumps({"id": i, "prompt": "Hello"}) + "\n" for i in "ab"))
    assert run(capsys, "capture", str(folder), "--prompts", str(prompts), "--target", target, "-n", "1")[0] == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["complete"] = False
    del manifest["cases"][1]["case_file"], manifest["cases"][1]["sha256"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for argv in (["check", str(folder), "--target", target], ["convert", str(folder), str(tmp_path / "x.vec")]):
        assert run(capsys, *argv)[0] == 1
    assert not (tmp_path / "x.vec").exists()
    assert run(capsys, "check", str(folder), "--target", target, "--allow-partial")[0] == 0
    # a manifest that claims to be complete, but is not
    manifest["complete"] = True
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert run(capsys, "check", str(folder), "--target", target)[0] == 1


def test_a_check_that_compared_nothing_is_not_passed(official, tmp_path, capsys, monkeypatch) -> None:
    silent = Scripted([], forced=[Step(Token(b"?"))] * 4)
    monkeypatch.setattr("ds4ref.test_vectors.check.target_of", lambda *a: silent)
    code, result = run(capsys, "check", str(official / "official.vec"), "--only", "short_code_completion")
    assert code == 1 and result["verdicts"] == {"incomparable": 1} and not result["passed"]


# ------------------------------------------------------------------------------------------------------- perplexity


def test_windows_end_at_their_depth_and_leave_the_start_out() -> None:
    nats = np.zeros(999)
    nats[99:199] = 1.0  # tokens 100 to 199
    assert [d["nll"] for d in by_depth(nats, [100, 200, 300, 1001], 100)] == [0.0, 1.0, 0.0]
    assert by_depth(nats, [32, 33, 40], 256)[-1]["tokens"] == 8  # the first 32 are context only
    (uniform,) = by_depth(np.full(1999, math.log(512)), [2000], 256)
    assert uniform["ppl"] == pytest.approx(512) and uniform["nll_stderr"] == pytest.approx(0, abs=1e-9)
    assert block_error(np.repeat([0.0, 2.0], 64)) == 1.0 and math.isnan(block_error(np.zeros(1)))
    assert by_depth(np.full(99, 800.0), [100], 10)[0]["ppl"] == math.inf
    nats[450] = math.nan
    with pytest.raises(TargetError, match="1 of the 256 tokens before depth 512 have no log probability"):
        by_depth(nats, [512], 256)


def test_ppl_of_the_embedded_model(nano_path, capsys) -> None:
    target = f"local:{nano_path}?backend=cpu&numerics=exact"
    code, result = run(capsys, "ppl", "--depths", "64,512", "--target", target)
    assert code == 0 and [d["depth"] for d in result["depths"]] == [64, 512] and result["echo_agrees"] is None
    assert all(d["ppl"] > 1 and d["nll_stderr"] > 0 for d in result["depths"])
    assert run(capsys, "ppl", "--depths", "3", "--target", target)[0] == 2
    assert run(capsys, "ppl", "--target", f"command:ds4 -m {nano_path}")[0] == 2  # it cannot score


def test_a_text_is_scored_by_an_endpoint() -> None:
    target = Scripted([], forced=())
    target.abilities = frozenset(Ability)
    target.score_text = lambda text, top: [Step(Token(b"x", value)) for value in (None, -0.5, None, -2.0)]
    steps, length = score(target, "text", None)
    assert [step.token.logprob for step in steps] == [None, -0.5, None, -2.0] and length == 4
    assert len(score(target, "text", 2)[0]) == 2


@pytest.mark.parametrize("shift, agrees", [(0, True), (1, False)])
def test_an_echo_that_is_off_by_one_is_noticed(shift, agrees) -> None:
    tops = [tuple(Token(bytes([65 + i + k]), -1.0 - k) for k in range(5)) for i in range(len(PROBE) + 1)]
    target = Scripted([Step(tops[-1][0], tops[-1])])
    for listed, expected in ((tops, agrees), ([()] * len(tops), None)):
        echo = [Step(Token(c.encode()), listed[i + shift]) for i, c in enumerate(PROBE)]
        target.score_text = lambda text, top, echo=echo: echo
        assert echo_agrees(target) is expected


# ------------------------------------------------------------------------------------------------ interrupted, cut


def test_depths_that_are_not_reached_are_named(nano_path, tmp_path, capsys) -> None:
    text = tmp_path / "text"
    text.write_text("A short one. " * 30)
    spec = f"local:{nano_path}?backend=cpu&numerics=exact"
    argv = ["ppl", "--text", str(text), "--depths", "40,48,5000,9000", "--target", spec, "--no-store"]
    code, result = run(capsys, *argv)
    assert code == 0 and [d["depth"] for d in result["depths"]] == [40, 48] and result["not_reached"] == [5000, 9000]
    cli.main(argv)
    assert f"the text has {result['tokens']} tokens: depths not reached: 5000, 9000" in capsys.readouterr().err
    code, cut = run(capsys, *argv, "-c", "44")
    assert code == 0 and [d["depth"] for d in cut["depths"]] == [40] and cut["tokens"] == 44
    cli.main([*argv, "-c", "44"])
    assert "--ctx is 44: depths not reached: 48, 5000, 9000" in capsys.readouterr().err
    assert run(capsys, *argv, "-c", "39")[0] == 2


def test_an_interrupted_ppl_keeps_the_depths_it_reached(nano_path, capsys, monkeypatch, private_data) -> None:
    from ds4ref.runs.store import Store
    from ds4ref.targets.local import LocalTarget

    spec, argv = f"local:{nano_path}?backend=cpu&numerics=exact", ("ppl", "--depths", "64,128,512")
    whole = run(capsys, *argv, "--target", spec)[1]
    pieces = LocalTarget.score_pieces

    def interrupted(self, ids, top_logprobs=0):
        done = 0
        for piece in pieces(self, ids, top_logprobs):
            done += len(piece)
            if done > 200:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(LocalTarget, "score_pieces", interrupted)
    monkeypatch.setattr("ds4ref.targets.local.SCORE_ROWS", 20)
    code, result = run(capsys, *argv, "--target", spec)
    assert code == 130 and result["stopped"] and result["not_reached"] == [512] and result["tokens"] == 181
    assert [d["nll"] for d in result["depths"]] == pytest.approx([d["nll"] for d in whole["depths"][:2]], rel=1e-5)
    with Store.open(private_data / "runs.sqlite") as store:
        assert [(r.status, r.rows) for r in store.runs()] == [("stopped", 2), ("complete", 3)]
        rows = store.rows(store.runs()[1].id)
    assert [row["nll"] / row["tokens"] for row in rows] == pytest.approx([d["nll"] for d in whole["depths"]])
