"""The diagnosis on the diagnostic model: a few faults by default, the whole library under ``-m slow``."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import diagnosis
from benchmarks.diagnosis import HELD_OUT
from ds4ref.engine import Engine
from ds4ref.errors import DataError
from ds4ref.nano.diagnostic import DIAGNOSTIC, PROMPTS, diagnostic_path
from ds4ref.variants import LIBRARY, ROUNDING
from test_vectors import cli
from test_vectors.diagnose import diagnose
from test_vectors.evidence import broad, log_distance, noise_model, row_margin, score
from test_vectors.observation import Observation, from_logits, from_top, log_softmax, read
from test_vectors.signatures import Signatures

FEW = ["window_short", "no_sink", "row_late", "indexer_recent", "hc_comb_transposed", "chunk_32_window_cut",
       "q4_k_nibbles", "hash_previous_token", "head_mean", "hc_eps_0"]  # fmt: skip

HF = Path(__file__).parents[1] / "data" / "diagnostic.hf.npz"


class Few(Signatures):
    """A library of a few faults."""

    def faults(self, mode):
        return [LIBRARY[name] for name in FEW]


@pytest.fixture(scope="module")
def engine(_model_cache):
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as opened:
        yield opened


@pytest.fixture(scope="module")
def library(engine):
    return Few(engine, PROMPTS["mixed"]()[:60])


@pytest.fixture(scope="module")
def whole(engine):
    return Signatures(engine, PROMPTS["mixed"]())


def verdict(library, logits, top=None):
    seen = from_logits(library.ids, logits)
    return diagnose(library, seen if top is None else seen.top(top), bos=0)


def test_the_closest_decision_since_the_last_observed_row() -> None:
    seen = Observation(np.arange(6), np.array([1, 3, 5]), None, np.zeros((3, 2)))
    assert row_margin(seen, np.array([5.0, 1.0, 7.0, 2.0, 8.0, 9.0])).tolist() == [1.0, 2.0, 8.0]


def test_a_name_is_given_on_stricter_terms_than_a_mode(monkeypatch) -> None:
    """Replicas score 10 +- 1; an engine that scores less is taken for one of them within 4 spreads, and for a mistake's
    name within 2, plus a little for each row."""
    from test_vectors import diagnose as module

    replicas = [SimpleNamespace(logprobs=right) for right in (9.0, 11.0)]
    one = SimpleNamespace(get=lambda mode: SimpleNamespace(logprobs=None), replicas=lambda mode: replicas)
    monkeypatch.setattr(module, "between", lambda seen, clean, right: right)
    monkeypatch.setattr(module, "score", lambda x, *rest: SimpleNamespace(right=float(x)))
    case = module._Case(one, SimpleNamespace(rows=range(round(module.TAU))), None)
    monkeypatch.setattr(case, "noise", lambda mode: (None, None, None))
    reached = [(case.typical("exact", x), case.typical("exact", x, strict=True)) for x in (7.9, 7.8, 5.8, 5.6)]
    assert reached == [(True, True), (True, False), (True, False), (False, False)]


@pytest.mark.parametrize("top", [None, 20])
@pytest.mark.parametrize("mode", ["exact", "qat", "ds4"])
def test_a_clean_engine_is_named_by_its_mode(library, mode, top) -> None:
    found = verdict(library, library.run(mode, [], seed=99), top)
    assert (found.verdict, found.fault, found.first_position) == (mode, None, None)
    assert found.confidence > 0.5 and found.ranking[0]["name"] == mode


@pytest.mark.parametrize("top", [None, 20])
@pytest.mark.parametrize("name", FEW[:-1])
def test_a_fault_is_named(library, name, top) -> None:
    found = verdict(library, library.run("exact", [LIBRARY[name]], seed=99), top)
    assert (found.verdict, found.fault) == ("fault", name) and found.confidence > 0.9


def test_the_first_position_is_where_it_starts(library) -> None:
    window = DIAGNOSTIC.window
    assert verdict(library, library.run("exact", [LIBRARY["window_short"]])).first_position == window - 1
    assert verdict(library, library.run("exact", [LIBRARY["row_late"]])).first_position == 3


def test_a_fault_below_the_noise_is_no_accusation(library) -> None:
    assert verdict(library, library.run("exact", [LIBRARY["hc_eps_0"]], seed=5)).verdict == "exact"


@pytest.mark.parametrize("top", [None, 20])
@pytest.mark.parametrize("fault", HELD_OUT, ids=lambda f: f.name)
def test_an_unknown_fault_gets_no_confident_name(library, fault, top) -> None:
    found = verdict(library, library.run("exact", [fault], seed=7), top)
    assert found.verdict == "unknown" or found.confidence < 0.9
    assert found.fault is None


@pytest.mark.parametrize("pair", [("no_sink", "hash_previous_token"), ("indexer_recent", "row_late"),
                                  ("head_mean", "chunk_32_window_cut")], ids="+".join)  # fmt: skip
def test_two_faults_are_none_of_these(library, pair) -> None:
    found = verdict(library, library.run("exact", [LIBRARY[name] for name in pair], seed=7))
    assert found.verdict == "unknown"


def test_the_first_of_two_faults_is_located(library) -> None:
    """head_mean shows from position 0 on, the chunk edge at 32: the ranking says until where the first one fits."""
    both = [LIBRARY["head_mean"], LIBRARY["chunk_32_window_cut"]]
    found = verdict(library, library.run("exact", both, seed=7))
    assert found.agrees_with == "head_mean@exact" and found.agrees_until == 32


@pytest.mark.parametrize("name", ["bos_added", "rows_early", "rows_late", "ids_up", "first_token_dropped", "scaled"])
def test_mistakes_outside_the_model(library, name) -> None:
    clean = library.run("exact", [], seed=3)
    if name == "bos_added":
        logits = library.runner.run([0, *library.ids.tolist()], "exact")[0][1:]
    elif name == "first_token_dropped":
        rest = library.runner.run(library.ids[1:].tolist(), "exact")[0]
        logits = np.concatenate((rest[:1], rest))
    else:
        logits = {"rows_early": np.roll(clean, -1, 0), "rows_late": np.roll(clean, 1, 0),
                  "ids_up": np.roll(clean, 1, 1), "scaled": clean / 0.7}[name]  # fmt: skip
    ids = library.ids
    rows = np.arange(len(ids))
    keep = rows[1:] if name in ("rows_late", "first_token_dropped") else rows[:-1] if name == "rows_early" else rows
    found = diagnose(library, from_logits(ids, logits[keep], keep), bos=0)
    assert (found.verdict, found.fault) == ("fault", name)


@pytest.mark.parametrize("top", [[], ["--top", "20"]], ids=["full", "top-20"])
def test_hugging_face_is_exact(capsys, top) -> None:
    """Logits that Hugging Face transformers computed (tests/data): 96 of 200 positions."""
    code, found = run(capsys, "diagnose", "--logits", str(HF), "--key", "hf", "--json", *top)
    assert code == 0 and found["verdict"] == "exact" and found["confidence"] > 0.99
    assert found["first_position"] is None and found["ranking"][0]["distance"] < 1e-4


def test_a_tie_excuses_only_what_begins_at_it(library) -> None:
    """Rows after a near-tie that still fit show that it fell the same way; a later deviation is a mistake."""
    seen = from_logits(library.ids, library.run("exact", [LIBRARY["chunk_32_window_cut"]], seed=1))
    clean = library.get("exact")
    noise, differs = noise_model(seen, clean, library.replicas("exact"), False), broad(seen, clean)
    x = log_distance(seen, clean.logprobs)
    far = np.full(len(library.ids), 1.0)
    right = [score(x, noise, differs, np.where(np.arange(len(far)) == at, 0.0, far)).right for at in (20, 32)]
    assert right[1] - right[0] > 5


def test_another_engines_rounding_set_is_named(library) -> None:
    assert verdict(library, library.run("kv_f16", [], seed=4)).verdict == "kv_f16"


def test_one_position_is_enough_to_be_heard(library) -> None:
    """A single row is little evidence, but neither a crash nor a number that JSON does not have."""
    logits = library.run("exact", [])
    for row in (0, len(library.ids) - 1):
        seen = from_logits(library.ids, logits[row : row + 1], [row])
        for each in (seen, seen.top(1), seen.top(20)):
            found = diagnose(library, each, bos=0)
            assert found.fault is None
            json.dumps(found.to_json(), allow_nan=False)


def test_numbers_that_are_none(library) -> None:
    logits = library.run("exact", [])
    logits[20:] = np.nan
    found = verdict(library, logits)
    assert found.verdict == "unknown" and found.first_position == 20
    assert any("not numbers" in note for note in found.notes)
    json.dumps(found.to_json(), allow_nan=False)


def test_logprobs_with_few_decimals(library) -> None:
    logprobs = np.round(log_softmax(library.run("exact", [])), 3)
    assert verdict(library, logprobs, 20).verdict == "exact"


def test_signatures_are_kept_and_a_damaged_file_is_made_again(library) -> None:
    before = library.get("exact").logprobs
    path = library._path("exact.clean")
    path.write_bytes(path.read_bytes()[:-100])
    assert np.array_equal(library.get("exact").logprobs, before)


def test_observations_are_checked(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.arange(3), logits=np.zeros((4, 9)))
    with pytest.raises(DataError, match="do not go with"):
        read(str(tmp_path / "a.npz"), None)
    with pytest.raises(DataError, match="other token ids"):
        read(str(tmp_path / "a.npz"), [1, 2, 3])
    (tmp_path / "b.npz").write_bytes(b"PK junk")
    with pytest.raises(DataError):
        read(str(tmp_path / "b.npz"), None)
    (tmp_path / "c.json").write_text(
        json.dumps({"ids": [1, 2], "rows": [{"position": 1, "top": [[3, -0.5], [4, -9999]]}]})
    )
    seen = read(str(tmp_path / "c.json"), None)
    assert seen.rows.tolist() == [1] and seen.support is not None and seen.support.tolist() == [[3]]
    with pytest.raises(DataError, match="no position has usable"):
        from_top([1], [(0, [(3, -9999.0)])])


def run(capsys, *argv: str) -> tuple[int, dict]:
    code = cli.main([*argv])
    out = capsys.readouterr().out
    return code, json.loads(out.strip().splitlines()[-1]) if out.strip() else {}


def test_the_command(tmp_path, capsys, engine) -> None:
    ids = PROMPTS["short"]()
    np.savez(tmp_path / "x.npz", ids=np.array(ids, np.int32), logits=engine.session(100).extend(ids))
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    code, found = run(capsys, "diagnose", "-m", diagnostic_path(), "--token-ids", str(tmp_path / "ids.json"),
                      "--logits", str(tmp_path / "x.npz"), "--json")  # fmt: skip
    assert code == 0 and {"verdict", "fault", "confidence", "first_position", "ranking"} <= set(found)
    assert found["verdict"] == "exact" and found["fault"] is None and found["confidence"] > 0.9
    assert run(capsys, "diagnose", "--target", "local?numerics=exact")[0] == 1  # the embedded model is another one
    assert run(capsys, "diagnose")[0] == 2
    assert run(capsys, "diagnose", "--logits", str(tmp_path / "none.npz"))[0] == 1


def test_diff_freeze_and_golden(tmp_path, capsys) -> None:
    ids, out = tmp_path / "ids.json", str(tmp_path / "g.npz")
    ids.write_text(json.dumps(PROMPTS["short"]()))
    target = f"local:{diagnostic_path()}?numerics=exact"
    assert run(capsys, "freeze", out, "--token-ids", str(ids), "--target", target)[0] == 0
    assert run(capsys, "freeze", out, "--token-ids", str(ids), "--target", target)[0] == 2
    code, same = run(capsys, "golden", out, "--target", target + "&backend=reference")
    assert code == 0 and same["passed"] and same["max"] < 1e-3
    code, other = run(capsys, "golden", out, "--target", target.replace("exact", "ds4"))
    assert code == 1 and not other["passed"] and other["first_bad"] == 0
    code, found = run(capsys, "diff", target, target.replace("exact", "qat"), "--token-ids", str(ids), "--fail")
    assert code == 1 and found["max"] > 1e-3
    top = str(tmp_path / "top.npz")
    assert run(capsys, "freeze", top, "--token-ids", str(ids), "--target", target, "--top", "20")[0] == 0
    assert run(capsys, "golden", top, "--target", target)[0] == 0
    data = bytearray((tmp_path / "g.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "g.npz").write_bytes(data)
    assert run(capsys, "golden", out, "--target", target)[0] == 1


# ---------------------------------------------------------------------------------------------------------- everything


@pytest.mark.slow
@pytest.mark.parametrize("top", diagnosis.TOPS)
def test_every_fault_above_float_noise(engine, top) -> None:
    tally = diagnosis.faults(engine, top=top)
    assert tally.total >= 100 and tally.share("right") >= diagnosis.BARS[top], tally.remarks


@pytest.mark.slow
def test_a_clean_engine_is_never_accused(engine) -> None:
    """30 of the trials; `python -m benchmarks.diagnosis clean` makes 200."""
    tally = diagnosis.clean(engine, range(30))
    assert tally.total == 30 and not tally.counts["accused"], tally.remarks


@pytest.mark.slow
@pytest.mark.parametrize("top", diagnosis.TOPS)
def test_no_confident_wrong_name_for_pairs_and_unknown_faults(engine, top) -> None:
    for tally in (diagnosis.pairs(engine, range(40), top=top), diagnosis.held_out(engine, top, seeds=1)):
        assert tally.total >= 9 and not tally.counts["confident wrong name"], tally.remarks


@pytest.mark.slow
@pytest.mark.parametrize("mode", sorted(ROUNDING))
def test_every_rounding_set_of_the_three_modes_is_itself(whole, mode) -> None:
    found = verdict(whole, whole.run(mode, [], seed=21))
    if mode in ("exact", "qat", "ds4"):
        assert found.verdict == mode
    else:
        assert found.fault is None
