"""The diagnosis on the diagnostic model: a few faults by default, the whole library under ``-m slow``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import diagnosis
from benchmarks.patients import OUTSIDE, kept_as
from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import DIAGNOSTIC, PROMPTS, diagnostic_path
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.diagnose import run_diagnosis
from ds4ref.test_vectors.diagnosis import Signatures, diagnose, search
from ds4ref.test_vectors.observation import from_logits, log_softmax
from ds4ref.variants import LIBRARY, ROUNDING, Runner
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.scoped import ScopedFault, scopes
from tests.marking import sampled

from ..badfiles import BAD, write_bad

pytestmark = pytest.mark.usefixtures("both")

FEW = ["window_short", "no_sink", "row_late", "indexer_recent", "hc_comb_transposed", "chunk_32_window_cut",
       "q4_k_nibbles", "hash_previous_token", "head_mean", "hc_eps_0"]  # fmt: skip

HF = Path(__file__).parents[1] / "data" / "diagnostic.hf.npz"


@pytest.fixture(autouse=True)
def _few(monkeypatch, request) -> None:
    """Few faults and as few families, unless a test is slow: each costs a run for every prompt and rounding set."""
    if request.node.get_closest_marker("slow"):
        return
    names = ("routed_scale", "sinkhorn_rounds", "rms_eps")
    monkeypatch.setattr(search, "FAMILIES", {name: FAMILIES[name] for name in names})
    monkeypatch.setattr(Runner, "faults", lambda self, mode, tokens: applicable(mode, self.formats, tokens))


def applicable(mode: str, formats: set[str], tokens: int):
    """Return those of the few faults that can have an effect."""
    from ds4ref.variants import library

    shown = {fault.name for fault in library.applicable(ROUNDING[mode].numerics, formats, tokens)}
    return [LIBRARY[name] for name in FEW if name in shown]


class Two(Signatures):
    """Signatures whose library has only two faults."""

    def faults(self, mode):
        return [LIBRARY["chunk_128_window_cut"], LIBRARY["no_sink"]]


@pytest.fixture(scope="module")
def library(engine):
    return Signatures(engine, PROMPTS["mixed"]()[:60])


@pytest.fixture(scope="module")
def whole(engine):
    return Signatures(engine, PROMPTS["mixed"]())


def verdict(library, logits, top=None):
    seen = from_logits(library.ids, logits)
    return diagnose(library, seen if top is None else seen.top(top), bos=0)


@pytest.mark.parametrize(
    ("mode", "top"),
    sampled([(mode, top) for mode in ("exact", "qat", "ds4") for top in (None, 20)], [("exact", 20)]),
)
def test_a_clean_engine_is_named_by_its_mode(library, mode, top) -> None:
    result = verdict(library, library.run(mode, [], seed=99), top)
    assert (result.verdict, result.fault, result.first_position) == (mode, None, None)
    assert result.confidence > 0.5 and result.limit is not None and result.limit["size"] > 0
    assert result.limit["seen"] > 3 and "no_sink" not in [name for name, _ in result.limit["not_seen"]]


@pytest.mark.parametrize("name", FEW[:-1])
def test_a_fault_is_named(library, name) -> None:
    result = verdict(library, library.run("exact", [LIBRARY[name]], seed=99), 20)
    assert (result.verdict, result.fault) == ("fault", name) and result.confidence > 0.9


def test_the_first_position_is_where_it_starts(library) -> None:
    window = DIAGNOSTIC.window
    assert verdict(library, library.run("exact", [LIBRARY["window_short"]])).first_position == window - 1
    assert verdict(library, library.run("exact", [LIBRARY["row_late"]])).first_position == 3


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["qat", "ds4"])
def test_a_fault_below_the_noise_is_no_accusation_and_is_said_to_be_unseen(library, mode) -> None:
    result = verdict(library, library.run(mode, [LIBRARY["hc_eps_0"]], seed=1))  # 5 and 6 are undecided on AVX2
    assert result.verdict == mode and "hc_eps_0" in [name for name, _ in result.limit["not_seen"]]
    assert any("below the detection limit" in note and "hc_eps_0" in note for note in result.notes)


@pytest.mark.parametrize(
    "name, mode, top", [pytest.param("pool_flat", "exact", None, marks=pytest.mark.slow), ("leak", "ds4", 20)]
)
def test_an_unknown_fault_gets_no_name_and_no_acquittal(library, name, mode, top, without_families) -> None:
    result = verdict(library, library.run(mode, [OUTSIDE[name](0.7)], seed=7), top)
    assert result.verdict in ("unknown", "undecided") and result.fault is None


@pytest.mark.thorough
@pytest.mark.parametrize("effect", sampled(["route scale", "sinkhorn", "eps"], 3))
def test_a_wide_rounding_set_acquits_nobody(library, effect) -> None:
    """Mistakes as large as the rounding of bfloat16 or float16 products were once diagnosed as that rounding."""
    fault = {"route scale": FAMILIES["routed_scale"].fault(0.9), "sinkhorn": FAMILIES["sinkhorn_rounds"].fault(2),
             "eps": FAMILIES["rms_eps"].fault(1e-3)}[effect]  # fmt: skip
    result = verdict(library, library.run("exact", [fault], seed=7))
    assert not result.clean


def test_a_mistake_has_a_size(library) -> None:
    result = verdict(library, library.run("exact", [FAMILIES["routed_scale"].fault(0.9)], seed=7))
    assert (result.verdict, result.fault) == ("fault", "routed_scale")
    assert result.parameter["value"] == pytest.approx(0.9, rel=0.01)
    assert result.parameter["low"] <= 0.9 <= result.parameter["high"] and result.parameter["right"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("value", "first"), [(0.07, "sink_zero"), (0.0, "sink_scale")])
def test_a_constant_is_not_taken_for_its_neighbour(library, monkeypatch, value, first) -> None:
    """Sinks times 1 / sqrt(head dim), below the grid of factors, are not sinks of zero, and the reverse."""
    monkeypatch.setattr(search, "FAMILIES", {name: FAMILIES[name] for name in ("sink_scale", "sink_offset", "rms_eps")})
    monkeypatch.setattr(Runner, "faults", lambda self, mode, tokens: [LIBRARY["no_sink"], LIBRARY["sink_zero"]])
    result = verdict(library, library.run("exact", [FAMILIES["sink_scale"].fault(value)], seed=7))
    assert (result.verdict, result.fault) == ("fault", "sink_scale" if value else "sink_zero")
    if value:
        assert result.parameter["value"] == pytest.approx(value, rel=1e-3) and result.residue is None


@pytest.mark.thorough
def test_an_unknown_mistake_says_from_where_on_and_what_begins_there(library, monkeypatch) -> None:
    monkeypatch.setattr(Runner, "faults", lambda self, mode, tokens: [LIBRARY["no_sink"]])
    logits, reply = library.run("exact", [LIBRARY["row_late"]], seed=7), []
    result = diagnose(library, from_logits(library.ids, logits), 0, progress=lambda n, what: reply.append(what))
    assert reply[-1] == "places in the pass" and "yet" not in reply[0]
    assert reply[-2].endswith(" (nothing fits yet; exact up to position 3)")
    assert result.verdict == "unknown" and (result.agrees_with, result.agrees_until) == ("exact", 3)
    assert "possible cause: layers with ratio 4: the first compressed row is attended from here on" in result.notes


def test_a_stopped_search_answers_with_what_it_has(library) -> None:
    logits, tried = library.run("exact", [LIBRARY["row_late"]], seed=7), []
    result = diagnose(library, from_logits(library.ids, logits), 0, cancel=lambda: True)
    assert result.fault is None and not result.clean and result.stopped == 1
    result = diagnose(library, from_logits(library.ids, logits), 0, progress=lambda n, what: tried.append((n, what)))
    assert result.fault == "row_late" and result.stopped is None
    assert ("rounding exact", "fault in exact") == (tried[0][1], tried[-1][1]) and tried[-1][0] > tried[0][0] == 0


@pytest.mark.thorough
def test_a_mistake_in_a_part_of_the_model(library) -> None:
    part = "compressed layers"
    fault = ScopedFault(LIBRARY["no_sink"], part, scopes(library.engine.shape)[part])
    result = verdict(library, library.run("exact", [fault], seed=7))
    assert result.fault == "no_sink" and any(part in note for note in result.notes)


@pytest.mark.thorough
def test_a_mistake_of_decode_alone(library) -> None:
    result = verdict(library, library.run("exact", [LIBRARY["no_sink"]], seed=7, since=30))
    assert result.fault == "no_sink" and result.first_position == 30 and "position 30" in result.says


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "4 decimals"])
def test_rounding_on_the_way_is_noise(library, stored) -> None:
    clean = verdict(library, kept_as(library.run("exact", [], seed=3), stored))
    assert clean.verdict == "exact" and clean.stored == stored and any(stored in note for note in clean.notes)
    assert clean.limit["noise"] > 1e-5
    wrong = verdict(library, kept_as(library.run("exact", [LIBRARY["row_late"]], seed=3), stored))
    assert wrong.fault == "row_late"


def test_a_small_uniform_residue_is_told_and_hides_no_name(library) -> None:
    """A mistake is named although precision was lost invisibly, such as by normalising logits after float16."""
    logits = library.run("exact", [LIBRARY["no_sink"]], seed=3)
    result = verdict(library, log_softmax(kept_as(logits, "float16")))
    assert result.fault == "no_sink" and 1e-4 < result.residue < 1e-2
    assert any("remain" in note for note in result.notes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "fault", "stored"),
    [
        ("kv_f16", LIBRARY["indexer_no_weights"], ""),  # begins long after the rounding does
        ("kv_f16", LIBRARY["ring_wrap"], "float16"),
        ("indexer_fp4", LIBRARY["no_shared_expert"], "float16"),  # the rounding begins after the mistake
        ("qat", FAMILIES["window_rows"].fault(-2), "4 decimals"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_mistake_beside_a_rounding_that_begins_elsewhere(library, monkeypatch, mode, fault, stored) -> None:
    family = fault.name.partition("=")[0]
    if fault.name == family:
        monkeypatch.setattr(Runner, "faults", lambda *of: [fault, *(LIBRARY[name] for name in FEW[:6])])
    else:
        monkeypatch.setattr(search, "FAMILIES", search.FAMILIES | {family: FAMILIES[family]})
    result = verdict(library, kept_as(library.run(mode, [fault], seed=5), stored))
    assert result.ranking[0]["name"].startswith(family), result.ranking[:3]
    # where few positions show it, float16 rows flip more than eight noisy runs of it do: then it leads, without a name
    assert result.fault == family or (result.fault is None and mode == "kv_f16" and not stored)


@pytest.mark.thorough
def test_one_wrong_id(library) -> None:
    """The report says up to where the nearest rounding set fits, even if a mistake in a noisier set fits for longer."""
    ids = library.ids.tolist()
    ids[10] = (ids[10] + 1) % DIAGNOSTIC.vocab
    logits = library.runner.run(ids, "exact")[0]
    result = verdict(library, logits)
    assert result.verdict == "unknown" and (result.agrees_with, result.agrees_until) == ("exact", 10)
    assert result.first_position == 10


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
    result = diagnose(library, from_logits(ids, logits[keep], keep), bos=0)
    assert (result.verdict, result.fault) == ("fault", name)


@pytest.mark.parametrize("top", [[], ["--top", "20"]], ids=["full", "top-20"])
def test_hugging_face_is_exact(capsys, without_families, top) -> None:
    """Logits that Hugging Face transformers computed (tests/data): 96 of 200 positions."""
    code, result = run(capsys, "diagnose", "--logits", str(HF), "--key", "hf", "--json", *top)
    assert code == 0 and result["verdict"] == "exact" and result["confidence"] > 0.8
    assert result["first_position"] is None and result["ranking"][0]["distance"] < 1e-4


@pytest.mark.thorough
def test_a_tie_that_falls_the_other_way_is_no_mistake(engine, without_families) -> None:
    """From position 118 of this prompt on, Hugging Face's top-k takes the later of two equal scores."""
    whole = Two(engine, PROMPTS["mixed"]())
    ties = LIBRARY["indexer_ties_high"]
    result = verdict(whole, whole.run("exact", [ties], seed=2))
    assert result.verdict == "exact" and any("tie" in note and "118" in note for note in result.notes)
    result = verdict(whole, whole.run("exact", [LIBRARY["chunk_128_window_cut"], ties], seed=2))
    assert result.fault == "chunk_128_window_cut"


def test_numbers_that_are_none(engine, library) -> None:
    logits = library.run("exact", [])
    logits[20:] = np.nan
    result = run_diagnosis(engine, from_logits(library.ids, logits))
    assert result.verdict == "broken" and result.first_position == 20 and not result.clean
    assert "not a number" in result.says and any("other 20" in note for note in result.notes)
    json.dumps(result.to_json(), allow_nan=False)


def test_signatures_are_kept_and_a_damaged_file_is_made_again(library) -> None:
    before = library.get("exact").logprobs
    path = library._path("exact.clean")
    path.write_bytes(path.read_bytes()[:-100])
    assert np.array_equal(library.get("exact").logprobs, before)


def test_the_gate(tmp_path, capsys, engine, library) -> None:
    """The exit code is 0 only if no mistake was seen; whether a rounding set fits comes first."""
    for name, logits, code in (("clean", library.run("exact", []), 0),
                               ("fault", library.run("exact", [LIBRARY["no_sink"]]), 1)):  # fmt: skip
        np.savez(tmp_path / f"{name}.npz", ids=library.ids, logits=logits)
        assert cli.main(["diagnose", "--logits", str(tmp_path / f"{name}.npz")]) == code
        text = capsys.readouterr().out
        first = text.splitlines()[0]  # told before the search
        assert first.startswith("so far") and ("no mistake seen" in first) == (code == 0)
        assert "verdict" in text and ("detection limit:" in text) == (code == 0)
        if code:  # the tokens where it begins, and what to do next
            assert "at position" in text and "next" in text


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["freq_base", pytest.param("gate_up_swapped", marks=pytest.mark.slow)])
def test_a_wrong_file_is_told_from_a_wrong_engine(tmp_path, capsys, without_families, name) -> None:
    path, ids = tmp_path / "theirs.gguf", PROMPTS["short"]()
    write_bad(diagnostic_path(), path, BAD[name])
    with Engine.open(str(path), backend="cpu", numerics="exact") as other:
        logits = other.session(len(ids) + 1).extend(ids)
    np.savez(tmp_path / "x.npz", ids=np.array(ids, np.int32), logits=logits)
    given = ["diagnose", "--logits", str(tmp_path / "x.npz"), "--their-model", str(path), "--json"]
    code, result = run(capsys, *given)
    assert code == 1 and result["verdict"] == "file"
    assert result["next"] == [f"ds4-vectors damage {diagnostic_path()} {path} names the tensors that differ"]
    # the same numbers from an engine that reads our file are the engine's
    code, result = run(capsys, *given[:3], "--json")
    assert code == 1 and result["verdict"] != "file"


def run(capsys, *argv: str) -> tuple[int, dict]:
    code = cli.main([*argv])
    out = capsys.readouterr().out
    return code, json.loads(out.strip().splitlines()[-1]) if out.strip() else {}


# ---------------------------------------------------------------------------------------------------------- everything


@pytest.mark.slow
def test_a_clean_engine_is_never_accused(engine) -> None:
    """30 simulated correct engines; `python -m benchmarks.diagnosis clean` runs 200."""
    tally = diagnosis.clean(engine, range(30))
    assert tally.total == 30 and not tally.counts["accused"], tally.remarks


@pytest.mark.slow
def test_no_acquittal_above_the_limit(engine) -> None:
    tally = diagnosis.held_out(engine, range(40))
    assert tally.total == 40 and not (tally.counts["wrong name"] or tally.counts["acquitted"]), tally.remarks
