"""Data that is no logits, or logits of a broken engine: said as what it is, before any question about rounding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ds4ref.errors import DataError
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.finding import Finding
from ds4ref.test_vectors.observation import Observation, OtherModel, from_logits, from_top, log_softmax
from ds4ref.test_vectors.preflight import preflight
from ds4ref.test_vectors.reading import read
from ds4ref.test_vectors.storage import written
from ds4ref.test_vectors.tables import BROKEN, REFUSE, WARN, of_table, refused

T, V = 30, 64
RNG = np.random.default_rng(3)
IDS = RNG.integers(0, V, T)
LOGITS = RNG.normal(0, 3, (T, V)).astype(np.float32)


def found(logits: np.ndarray, ids: np.ndarray = IDS, vocab: int | None = V, **options) -> dict[str, Finding]:
    """Findings by name; no name twice."""
    seen = from_logits(ids, logits, vocab=vocab, **options)
    findings = preflight(seen, vocab)
    assert len({f.name for f in findings}) == len(findings) and all("\n" not in f.says for f in findings)
    json.dumps([f.to_json() for f in findings])
    return {f.name: f for f in findings}


def changed(change, logits: np.ndarray = LOGITS) -> np.ndarray:
    out = np.array(logits)
    change(out)
    return out


def test_sound_logits_have_no_finding() -> None:
    assert found(LOGITS) == {} and found(log_softmax(LOGITS)) == {}
    top = from_logits(IDS, LOGITS).top(20)
    assert preflight(top, V) == [] and preflight(from_logits(IDS[:1], LOGITS[:1]), V) == []


def test_one_row_that_is_no_number() -> None:
    """It was called "exact", with confidence 0.995."""
    (only,) = found(changed(lambda x: x.__setitem__(17, np.nan))).values()
    assert (only.name, only.outcome, only.positions) == ("nan", BROKEN, (17,))
    assert "64 values are not a number, at position 17" in only.says


@pytest.mark.parametrize(("value", "name"), [(np.nan, "nan"), (np.inf, "infinite"), (-np.inf, "infinite")])
def test_values_that_are_not_finite(value, name) -> None:
    def change(x) -> None:
        x[3, 5] = x[3, 6] = x[9, 5] = value

    (only,) = found(changed(change)).values()
    assert (only.name, only.outcome, only.positions) == (name, BROKEN, (3, 9))
    assert only.says.startswith("3 values are ") and "positions 3 and 9" in only.says


def test_many_places_are_counted() -> None:
    (only,) = found(changed(lambda x: x.__setitem__(slice(4, 24), np.nan))).values()
    assert len(only.positions) == 20 and "20 of 30 positions, first at 4" in only.says


def test_rows_of_a_part_are_named_by_their_positions() -> None:
    rows = np.arange(10, 20)
    seen = from_logits(IDS, changed(lambda x: x.__setitem__(2, np.nan), LOGITS[:10]), rows, V)
    assert preflight(seen, V)[0].positions == (12,)


@pytest.mark.parametrize("value", [-np.inf, -1e9, np.finfo(np.float32).min], ids=str)
def test_a_token_masked_everywhere_is_no_fault_of_the_engine(value) -> None:
    masked = changed(lambda x: x.__setitem__((slice(None), 7), value))
    (only,) = found(masked).values()
    assert (only.name, only.outcome, only.tokens) == ("masked", WARN, (7,))
    assert np.isneginf(from_logits(IDS, masked).logprobs[:, 7]).all(), "not a large number to compare with"


def test_a_mask_does_not_hide_a_hole() -> None:
    def change(x) -> None:
        x[:, 7] = -np.inf
        x[4, 8] = -np.inf

    findings = found(changed(change))
    assert findings["masked"].tokens == (7,) and findings["infinite"].positions == (4,)
    assert "1 values are -infinity" in findings["infinite"].says
    half = found(changed(lambda x: (change(x), x.__setitem__((slice(None), slice(32, 63)), -1e30))))
    assert half["masked"].outcome == WARN and len(half["masked"].tokens) == 32
    assert half["infinite"].positions == (4,)


def test_a_filter_before_the_dump() -> None:
    """top-k, as samplers apply it: the others become -infinity, in every row others."""
    kept = np.sort(LOGITS, axis=1)[:, -20:].min(axis=1, keepdims=True)
    findings = found(np.where(LOGITS >= kept, LOGITS, -np.inf))
    assert findings["filtered"].outcome == REFUSE and "about 20 of 64" in findings["filtered"].says
    (some,) = found(np.where((LOGITS >= kept) | (np.arange(T) < 15)[:, None], LOGITS, -np.inf)).values()
    assert (some.name, some.outcome) == ("infinite", BROKEN) and some.positions == tuple(range(15, 30))
    most = changed(lambda x: x.__setitem__((slice(None), slice(0, 40)), -np.inf))
    assert found(most)["masked"].outcome == REFUSE


@pytest.mark.parametrize(("value", "name"), [(0.0, "zero"), (2.5, "constant")])
def test_rows_that_were_never_written(value, name) -> None:
    (some,) = found(changed(lambda x: x.__setitem__(slice(25, 30), value))).values()
    assert (some.name, some.outcome, some.positions) == (name, BROKEN, (25, 26, 27, 28, 29))
    every = found(np.full_like(LOGITS, value))
    assert every[name].outcome == REFUSE and refused(list(every.values())) is every[name]


def test_a_buffer_that_was_not_written_again() -> None:
    def stale(x) -> None:
        x[12] = x[11]
        x[20] = x[11]

    (only,) = found(changed(stale)).values()
    assert (only.name, only.outcome, only.positions) == ("repeated", BROKEN, (12, 20))
    every = found(np.repeat(LOGITS[:1], T, axis=0))
    assert every["repeated"].outcome == REFUSE
    close = changed(lambda x: x.__setitem__(12, np.nextafter(x[11], np.float32(9))))
    assert found(close) == {}, "equal to the last bit or not at all"


def test_one_token_in_common_is_no_excuse() -> None:
    ids = np.arange(T)
    ids[[11, 12, 20]] = 11, 11, 11
    rows = changed(lambda x: x.__setitem__(20, x[11]))
    assert found(rows, ids)["repeated"].positions == (20,), "after 10 and 11, and after 19 and 11"


def test_the_same_end_of_the_text_may_give_the_same_row() -> None:
    ids = np.full(T, 5)
    assert found(np.repeat(LOGITS[:1], T, axis=0)[:2], ids[:2]).keys() == {"repeated"}, "one token before, and two"
    assert "repeated" not in found(changed(lambda x: x.__setitem__(12, x[11])), ids)
    assert "repeated" in found(changed(lambda x: x.__setitem__(12, x[11])), np.arange(T))


def test_repeated_lists_of_the_best_tokens() -> None:
    seen = from_logits(IDS, changed(lambda x: x.__setitem__(12, x[11]))).top(8)
    (only,) = preflight(seen, V)
    assert (only.name, only.positions) == ("repeated", (12,))
    for known, count in ((5, 1), (4, 0)):
        few = from_logits(IDS, changed(lambda x: x.__setitem__(12, x[11]))).top(known)
        assert len(preflight(few, V)) == count, "a few values agree by chance"


# ------------------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_probabilities_are_said_and_converted(dtype) -> None:
    logs = log_softmax(LOGITS)
    given = np.exp(logs).astype(dtype)
    seen = from_logits(IDS, given, vocab=V)
    assert preflight(seen, V)[0].name == "probabilities" and not seen.raw
    if seen.support is None:
        assert np.allclose(seen.logprobs, logs, atol=2e-3 if dtype == np.float16 else 1e-5)
    else:
        known = seen.support >= 0
        wanted = np.take_along_axis(logs, np.maximum(seen.support, 0), axis=1)
        assert known.sum() == (given > 0).sum()
        known &= wanted > -9  # below, float16 has few bits
        assert known.sum() > T * V / 2 and np.allclose(seen.logprobs[known], wanted[known], atol=2e-3)


def test_probabilities_too_small_to_be_stored_are_unknown() -> None:
    p = np.round(np.exp(log_softmax(LOGITS)), 3)
    seen = from_logits(IDS, p)
    assert seen.support is not None and np.isfinite(seen.logprobs[seen.support >= 0]).all()
    findings = {f.name: f for f in preflight(seen, V)}
    assert f"{int((p == 0).sum())} of {p.size} probabilities are 0" in findings["underflow"].says
    assert findings["storage"].says.startswith("the values were written as 3 decimals")


@pytest.mark.parametrize(("name", "base"), [("log10", 10.0), ("log2", 2.0)])
def test_logarithms_to_another_base(name, base) -> None:
    logs = log_softmax(LOGITS)
    seen = from_logits(IDS, logs / np.log(base))
    assert [f.name for f in preflight(seen, V)] == [name] and np.allclose(seen.logprobs, logs)
    assert not seen.raw and not from_logits(IDS, logs).raw and from_logits(IDS, LOGITS).raw


def test_one_broken_row_does_not_hide_the_scale() -> None:
    p = changed(lambda x: x.__setitem__(4, np.nan), np.exp(log_softmax(LOGITS)))
    findings = found(p)
    assert list(findings) == ["nan", "probabilities"] and findings["nan"].positions == (4,)
    twice = changed(lambda x: x.__setitem__(4, 3 * x[4]), np.exp(log_softmax(LOGITS)))
    assert list(found(twice)) == ["probabilities"], "the typical row decides"
    assert list(found(np.exp(log_softmax(LOGITS)) * 1.03)) == [], "3 % too much is no rounding"


def test_what_was_repaired_is_not_forgotten_with_fewer_alternatives() -> None:
    assert [f.name for f in from_logits(IDS, np.exp(log_softmax(LOGITS))).top(5).findings] == ["probabilities"]


def test_logits_that_add_up_to_one_are_no_probabilities() -> None:
    """Centred logits do, nearly, and some are negative."""
    x = LOGITS - LOGITS.mean(axis=1, keepdims=True) + 1 / V
    assert found(x) == {} and from_logits(IDS, x).raw


def test_small_positive_logits_are_no_probabilities() -> None:
    assert found(np.abs(LOGITS) / 100) == {} and found(-np.abs(LOGITS)) == {}


def test_lists_of_probabilities() -> None:
    entries = [(t, [(i, float(p)) for i, p in enumerate(row[:9])]) for t, row in enumerate(np.exp(log_softmax(LOGITS)))]
    seen = from_top(IDS, entries)
    assert [f.name for f in preflight(seen, V)] == ["probabilities"]
    assert np.allclose(seen.logprobs, log_softmax(LOGITS)[:, :9])
    certain = [(t, [(3, 0.0), (4, -9999.0)]) for t in range(T)]
    (only,) = preflight(from_top(IDS, certain), V)
    assert (only.name, only.outcome) == ("degenerate", REFUSE)
    ragged = from_top(IDS, [(0, [(3, 0.0)]), (1, [(3, 0.0), (4, 0.0)])])
    assert refused(preflight(ragged, V)).name == "degenerate"


def test_lists_that_add_up_to_more_than_one() -> None:
    logs = log_softmax(LOGITS)

    def entries(scale: np.ndarray):
        return [(t, [(int(i), float(row[i]) * scale[t]) for i in np.argsort(-row)[:20]]) for t, row in enumerate(logs)]

    tens = preflight(from_top(IDS, entries(np.full(T, 1 / np.log(10)))), V)
    assert (tens[0].name, tens[0].outcome) == ("sum", REFUSE) and "base-10" in tens[0].says
    some = np.where(np.arange(T) == 6, 0.1, 1.0)
    (only,) = preflight(from_top(IDS, entries(some)), V)
    assert (only.name, only.outcome, only.positions) == ("sum", BROKEN, (6,)) and "summing to" in only.says
    raw_logits = from_top(IDS, [(t, [(i, float(x)) for i, x in enumerate(row[:20])]) for t, row in enumerate(LOGITS)])
    assert "base-10" not in refused(preflight(raw_logits, V)).says
    coarse = from_top(IDS, [(t, [(i, round(p, 2)) for i, p in top]) for t, top in entries(np.ones(T))])
    assert [f.name for f in preflight(coarse, V)] == ["storage"], "rounding is no error of the sum"


def test_a_token_listed_twice() -> None:
    seen = from_top(IDS, [(0, [(1, -1.0), (2, -2.0)]), (1, [(1, -1.0), (1, -2.0)])])
    (only,) = preflight(seen, V)
    assert (only.name, only.positions) == ("twice", (1,))


def test_lists_with_holes_are_reported() -> None:
    nan = float("nan")
    seen = from_top(IDS, [(0, [(1, -1.0), (2, None)]), (1, [(1, nan)]), (2, [(1, -0.5), (2, -np.inf)])])
    (only,) = preflight(seen, V)
    assert (only.name, only.outcome, only.positions) == ("nan", BROKEN, (0, 1))
    with pytest.raises(DataError, match="no position has usable log probabilities: NaN log probabilities at 1 of 1"):
        from_top(IDS, [(0, [(1, nan)])])


# ------------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(("logits", "why"), [
    (LOGITS.T, "look transposed"),
    (LOGITS[1:], "one row is missing"),
    (np.concatenate((LOGITS, LOGITS[:1])), "one row too many .* BOS"),
    (LOGITS[-1:], "a single row"),
    (LOGITS[:7], r"logits of shape \(7, 64\) do not match 30 positions$"),
    (LOGITS[0], "expected one row per position"),
    (LOGITS.view("V4"), "not numbers"),
    (LOGITS.astype(np.float16).view("V2"), "no bfloat16: save float32"),
    (LOGITS > 0, "not numbers"),
], ids=range(9))  # fmt: skip
def test_shapes_that_do_not_fit_say_why(logits, why) -> None:
    with pytest.raises(DataError, match=why):
        from_logits(IDS, logits)


def test_few_rows_of_a_wide_table_are_not_transposed() -> None:
    with pytest.raises(DataError, match="30 positions$"):
        from_logits(IDS, LOGITS.T[:7], vocab=V)
    with pytest.raises(DataError, match="transposed"):
        from_logits(IDS, LOGITS.T, vocab=V)


def test_a_batch_of_one_is_a_table() -> None:
    for logits in (LOGITS[None], LOGITS[:, :, None]):
        assert np.array_equal(from_logits(IDS, logits).logprobs, from_logits(IDS, LOGITS).logprobs)


@pytest.mark.parametrize("fill", [0.0, -np.inf, np.arange(6.0)], ids=str)
def test_padding_beyond_the_vocabulary_is_cut(fill) -> None:
    wide = np.concatenate((LOGITS, np.broadcast_to(np.float32(fill), (T, 6))), axis=1)
    seen = from_logits(IDS, wide, vocab=V)
    assert np.array_equal(seen.logprobs, from_logits(IDS, LOGITS).logprobs)
    (only,) = preflight(seen, V)
    assert (only.name, only.outcome) == ("padded", WARN) and only.says.startswith("6 padding columns")


def test_padding_of_a_single_row() -> None:
    """Nothing shows that its columns are constant, but that they are all the same."""
    wide = np.concatenate((LOGITS[:1], np.zeros((1, 6), np.float32)), axis=1)
    assert from_logits(IDS[:1], wide, vocab=V).logprobs.shape == (1, V)
    with pytest.raises(OtherModel):
        from_logits(IDS[:1], np.concatenate((LOGITS[:1], LOGITS[:1, :6]), axis=1), vocab=V)


def test_another_vocabulary() -> None:
    wide = np.concatenate((LOGITS, LOGITS[:, :6]), axis=1)
    for logits, vocab in ((wide, V), (LOGITS, V + 1)):
        with pytest.raises(OtherModel, match=f"{logits.shape[1]} wide, the model's vocabulary is {vocab}"):
            from_logits(IDS, logits, vocab=vocab)
    with pytest.raises(OtherModel, match="outside the vocabulary of 64"):
        from_logits(IDS + V, LOGITS, vocab=V)
    with pytest.raises(OtherModel, match="token id 70 is outside"):
        from_top(IDS, [(0, [(70, -1.0)])], vocab=V)
    assert refused(preflight(from_logits(IDS, wide), V)).name == "width"
    assert refused(preflight(from_top(IDS, [(0, [(70, -1.0), (3, -2.0)])]), V)).tokens == (70,)
    outside = refused(preflight(from_logits(np.where(np.arange(T) == 4, V, IDS), LOGITS), V))
    assert (outside.name, outside.positions, outside.tokens) == ("ids", (4,), (V,))


# ------------------------------------------------------------------------------------------------------------ storage


@pytest.mark.parametrize(("stored", "name"), [
    (LOGITS.astype(np.float16), "float16"),
    (LOGITS.astype(np.float16).astype(np.float32), "float16"),
    ((LOGITS.view(np.uint32) & 0xFFFF0000).view(np.float32), "bfloat16"),
    (np.round(LOGITS.astype(np.float64), 4), "4 decimals"),
    (np.round(LOGITS.astype(np.float64), 4).astype(np.float32), "4 decimals"),
    (np.round(LOGITS), "whole numbers"),
    (np.round(LOGITS).astype(np.int16), "whole numbers"),
    (LOGITS + np.float32(50), ""), (LOGITS, ""), (LOGITS.astype(np.float64) + 1e-9, ""), (np.zeros((3, 3)), ""),
], ids=range(11))  # fmt: skip
def test_how_values_were_stored(stored, name) -> None:
    told, precision = written(stored)
    steps = {"float16": 2**-11, "bfloat16": 2**-8, "4 decimals": 1e-4, "whole numbers": 1.0, "": 0.0}
    assert told == name and precision == pytest.approx(steps[name])
    if stored.shape == LOGITS.shape:
        findings = found(stored)
        assert set(findings) == ({"storage"} if name else set())
        assert not name or (name in findings["storage"].says and findings["storage"].outcome == WARN)


def test_a_mask_does_not_hide_how_the_rest_was_stored() -> None:
    stored = changed(lambda x: x.__setitem__((slice(None), 7), -1e9), LOGITS.astype(np.float16).astype(np.float32))
    assert written(stored)[0] == "float16" and set(found(stored)) == {"masked", "storage"}


def test_decimals_of_full_logits_are_their_quantum() -> None:
    """The log softmax in between hides them."""
    assert from_logits(IDS, np.round(LOGITS.astype(np.float64), 3)).quantum == pytest.approx(1e-3)


def test_worst_first() -> None:
    def change(x) -> None:
        x[:, 7] = -np.inf
        x[3, :9] = np.nan

    severities = [f.outcome for f in preflight(from_logits(IDS, changed(change).astype(np.float16)), V + 1)]
    assert severities == [REFUSE, BROKEN, WARN, WARN]


def test_an_observation_made_by_hand() -> None:
    seen = Observation(IDS.astype(np.int32), np.arange(T), None, log_softmax(changed(lambda x: x.fill(np.nan))))
    assert [f.name for f in preflight(seen)] == ["nan"] and len(preflight(seen)[0].positions) == T
    assert of_table(np.zeros((0, 5)), np.zeros(0, np.int64)) == []


# ----------------------------------------------------------------------------------------------------------- commands


def test_what_is_no_logits_ends_a_diagnosis_in_one_line(tmp_path, capsys) -> None:
    def said(name: str, **arrays) -> str:
        np.savez(tmp_path / name, **arrays)
        assert cli.main(["diagnose", "--logits", str(tmp_path / name)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    ids = np.arange(8)
    assert "only zeros" in said("zero.npz", ids=ids, logits=np.zeros((8, 512), np.float32))
    assert "give yours with -m" in said("wide.npz", ids=ids, logits=RNG.normal(0, 1, (8, 600)))
    assert "give yours with -m" in said("ids.npz", ids=ids + 512, logits=RNG.normal(0, 1, (8, 512)))
    assert "one row is missing" in said("rows.npz", ids=ids, logits=RNG.normal(0, 1, (7, 512)))
    (tmp_path / "top.json").write_text(json.dumps([{"position": 0, "top": [[600, -1.0]]}]))
    (tmp_path / "ids.json").write_text("[1, 2]")
    argv = ["--logits", str(tmp_path / "top.json"), "--token-ids", str(tmp_path / "ids.json")]
    assert cli.main(["diagnose", *argv]) == 1 and "give yours with -m" in capsys.readouterr().err


def test_nulls_in_a_file_of_lists(tmp_path: Path) -> None:
    """JSON has no NaN: an engine that writes null there is broken, the file is not."""
    rows = [{"position": 0, "top": [[1, None]]}, {"position": 1, "top": [[1, -0.5], [2, -1.5]]}]
    (tmp_path / "x.json").write_text(json.dumps({"ids": [1, 2], "rows": rows}))
    (only,) = preflight(read(str(tmp_path / "x.json"), None), V)
    assert (only.name, only.positions) == ("nan", (0,))
