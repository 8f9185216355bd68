"""Data that are not logits, or logits of a broken engine, are reported as such before rounding is diagnosed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ds4ref.errors import DataError
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.finding import Finding
from ds4ref.test_vectors.observation import OtherModel, from_logits, from_top, log_softmax, preflight
from ds4ref.test_vectors.storage import written
from ds4ref.test_vectors.tables import BROKEN, REFUSE, WARN

T, V = 30, 64
RNG = np.random.default_rng(3)
IDS = RNG.integers(0, V, T)
LOGITS = RNG.normal(0, 3, (T, V)).astype(np.float32)
LOGS = log_softmax(LOGITS)
ALL = slice(None)


def result(logits: np.ndarray, ids: np.ndarray = IDS, vocab: int | None = V, **options) -> dict[str, Finding]:
    """Return the findings about ``logits`` by name, which occurs only once."""
    findings = preflight(from_logits(ids, logits, vocab=vocab, **options))
    assert len({f.name for f in findings}) == len(findings) and all("\n" not in f.says for f in findings)
    json.dumps([f.to_json() for f in findings], allow_nan=False)
    return {f.name: f for f in findings}


def put(*places, of: np.ndarray = LOGITS) -> np.ndarray:
    """Return a copy of the array ``of`` with the value of each (index, value) in ``places`` put in."""
    out = np.array(of)
    for index, value in places:
        out[index] = value
    return out


KEPT = np.sort(LOGITS, axis=1)[:, -20:].min(axis=1, keepdims=True)
FILTERED = np.where(LOGITS >= KEPT, LOGITS, -np.inf)
STALE = put((12, LOGITS[11]), (20, LOGITS[11]))

TABLE = {
    # table, findings: name -> (outcome, positions, tokens, part of what is said)
    "sound": (LOGITS, {}),
    "sound log probabilities": (LOGS, {}),
    "a row of NaN": (put((17, np.nan)), {"nan": (BROKEN, (17,), (), "64 values are not a number, at position 17")}),
    "many": (put((slice(4, 24), np.nan)), {"nan": (BROKEN, tuple(range(4, 24)), (), "20 of 30 positions, first at 4")}),
    "infinite": (put(((3, 5), np.inf), ((9, 5), np.inf)), {"infinite": (BROKEN, (3, 9), (), "positions 3 and 9")}),
    "a hole": (put(((3, 5), -np.inf)), {"infinite": (BROKEN, (3,), (), "1 values are -infinity")}),
    "masked": (put(((ALL, 7), -np.inf)), {"masked": (WARN, (), (7,), "1 token masked")}),
    "masked by a number": (put(((ALL, 7), -1e9)), {"masked": (WARN, (), (7,), "")}),
    "masked by the least": (put(((ALL, 7), np.finfo(np.float32).min)), {"masked": (WARN, (), (7,), "")}),
    "a mask and a hole": (put(((ALL, 7), -np.inf), ((4, 8), -np.inf)),
                          {"infinite": (BROKEN, (4,), (), ""), "masked": (WARN, (), (7,), "")}),
    "most masked": (put(((ALL, slice(0, 40)), -np.inf)), {"masked": (REFUSE, (), tuple(range(40)), "40 of the 64")}),
    "filtered": (FILTERED, {"filtered": (REFUSE, (), (), "about 20 of 64")}),
    "filtered in part": (np.where((np.arange(T) < 15)[:, None], LOGITS, FILTERED),
                         {"infinite": (BROKEN, tuple(range(15, 30)), (), "")}),
    "zeros": (put((slice(25, 30), 0.0)), {"zero": (BROKEN, tuple(range(25, 30)), (), "never written")}),
    "a constant": (put((slice(25, 30), 2.5)), {"constant": (BROKEN, tuple(range(25, 30)), (), "")}),
    "all zeros": (0 * LOGITS, {"zero": (REFUSE, (), (), "all rows hold only zeros")}),
    "stale": (STALE, {"repeated": (BROKEN, (12, 20), (), "a stale buffer")}),
    "one row again": (np.repeat(LOGITS[:1], T, axis=0), {"repeated": (REFUSE, (), (), "every position has the same")}),
    "nearly stale": (put((12, np.nextafter(LOGITS[11], np.float32(9)))), {}),
    "probabilities": (np.exp(LOGS), {"probabilities": (WARN, (), (), "logarithm was taken")}),
    "probabilities, one broken": (put((4, np.nan), of=np.exp(LOGS)),
                                  {"nan": (BROKEN, (4,), (), ""), "probabilities": (WARN, (), (), "")}),
    "no probabilities": (np.exp(LOGS) * 1.03, {}),
    "logarithms to base 10": (LOGS / np.log(10), {"log10": (WARN, (), (), "base 10")}),
    "logarithms to base 2": (LOGS / np.log(2), {"log2": (WARN, (), (), "base 2")}),
    "centred": (LOGITS - LOGITS.mean(axis=1, keepdims=True) + 1 / V, {}),
    "small": (np.abs(LOGITS) / 100, {}),
    "negative": (-np.abs(LOGITS), {}),
    "padded": (np.concatenate((LOGITS, np.zeros((T, 6), np.float32)), axis=1), {"padded": (WARN, (), (), "6 padding")}),
    "float16": (LOGITS.astype(np.float16), {"storage": (WARN, (), (), "rounded to float16")}),
    "worst first": (put(((ALL, 7), -np.inf), ((3, slice(0, 7)), np.nan)).astype(np.float16),
                    {"nan": (BROKEN, (3,), (), ""), "masked": (WARN, (), (7,), ""), "storage": (WARN, (), (), "")}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_findings_of_tables(name) -> None:
    logits, wanted = TABLE[name]
    with np.errstate(invalid="ignore"):
        seen = result(logits)
    listed = {f.name: (f.outcome, f.positions, f.tokens, f.says) for f in seen.values()}
    known = {each: value for each, value in wanted.items() if value is not None}
    assert list(listed)[: len(known)] == list(known) and set(listed) <= set(wanted), listed
    for each, (*rest, part) in known.items():
        assert list(listed[each][:3]) == rest and part in listed[each][3], listed[each]


def test_what_is_converted_is_the_same() -> None:
    for given in (np.exp(LOGS), LOGS, LOGS / np.log(2), LOGS / np.log(10), LOGITS[None], LOGITS[:, :, None]):
        assert np.allclose(from_logits(IDS, given).logprobs, LOGS, atol=1e-5)
    assert from_logits(IDS, LOGITS).raw and not from_logits(IDS, LOGS).raw
    for base in (2, 10):  # a mean square, so by the square of the factor
        stored = from_logits(IDS, np.round(LOGS / np.log(base), 3)).storage
        assert stored is not None and np.allclose(stored, (1e-3 * np.log(base)) ** 2 / 12, rtol=1e-6)
    half = from_logits(IDS, np.exp(LOGS).astype(np.float16), vocab=V)
    known = np.isfinite(half.logprobs)  # tokens that underflowed are unknown, not impossible
    assert np.array_equal(known, np.exp(LOGS).astype(np.float16) != 0) and not np.isinf(half.logprobs).any()
    known &= LOGS > -9  # below, float16 has few bits
    assert known.sum() > T * V / 2 and np.allclose(half.logprobs[known], LOGS[known], atol=2e-3)
    assert [f.name for f in from_logits(IDS, np.exp(LOGS)).top(5).findings] == ["probabilities"], "not forgotten"
    coarse = from_logits(IDS, LOGITS.astype(np.float16))
    assert coarse.top(5).shared is coarse.shared is not None and coarse.top(5).stored == "float16"


@pytest.mark.parametrize(("ids", "rows", "again"), [
    (np.full(T, 5), STALE, ()),  # the same end of the text may give the same row
    (put((11, 11), (12, 11), (20, 11), of=np.arange(T)), put((20, LOGITS[11])), (20,)),  # one token alike is no excuse
    (np.full(2, 5), np.repeat(LOGITS[:1], 2, axis=0), ()),
])  # fmt: skip
def test_where_a_row_may_be_repeated(ids, rows, again) -> None:
    seen = result(rows, ids)
    assert ("repeated" in seen) == (bool(again) or len(ids) == 2)
    assert not again or seen["repeated"].positions == again


def lists(values: np.ndarray, count: int = 9):
    return [(t, [(int(i), float(row[i])) for i in np.argsort(-row)[:count]]) for t, row in enumerate(values)]


NAN = float("nan")


@pytest.mark.parametrize(("entries", "wanted"), [
    (lists(np.exp(LOGS)), [("probabilities", WARN, ())]),
    ([(t, [(3, 0.0), (4, -9999.0)]) for t in range(T)], [("degenerate", REFUSE, ())]),
    (lists(LOGS / np.log(10), 20), [("sum", REFUSE, ())]),
    (lists(LOGS * np.where(np.arange(T) == 6, 0.1, 1.0)[:, None], 20), [("sum", BROKEN, (6,))]),
    (lists(np.round(LOGS, 2), 20), [("storage", WARN, ())]),  # rounding is no error of the sum
    ([(0, [(1, -1.0), (2, -2.0)]), (1, [(1, -1.0), (1, -2.0)])], [("twice", BROKEN, (1,))]),
    ([(0, [(1, -1.0), (2, None)]), (1, [(1, NAN)]), (2, [(1, -0.5), (2, -np.inf)])], [("nan", BROKEN, (0, 1))]),
    (lists(STALE[:13], 8), [("sum", REFUSE, ()), ("repeated", BROKEN, (12,))]),
    (lists(log_softmax(STALE[:13]), 8), [("repeated", BROKEN, (12,))]),
    (lists(log_softmax(STALE[:13]), 4), []),  # a few values agree by chance
], ids=range(10))  # fmt: skip
def test_findings_of_lists(entries, wanted) -> None:
    assert [(f.name, f.outcome, f.positions) for f in preflight(from_top(IDS, entries))] == wanted


@pytest.mark.parametrize(("logits", "why"), [
    (LOGITS.T, "look transposed"),
    (LOGITS[1:], "one row is missing"),
    (np.concatenate((LOGITS, LOGITS[:1])), "one row too many .* BOS"),
    (LOGITS[-1:], "a single row"),
    (LOGITS[:7], r"logits of shape \(7, 64\) do not match 30 positions$"),
    (LOGITS.T[:7], "30 positions$"),
    (LOGITS[0], "expected one row per position"),
    (LOGITS.view("V4"), "not numbers"),
    (LOGITS.astype(np.float16).view("V2"), "no bfloat16: save float32"),
    (LOGITS > 0, "not numbers"),
], ids=range(10))  # fmt: skip
def test_shapes_that_do_not_fit_say_why(logits, why) -> None:
    with pytest.raises(DataError, match=why):
        from_logits(IDS, logits, vocab=V)


def test_another_vocabulary() -> None:
    wide = np.concatenate((LOGITS, LOGITS[:, :6]), axis=1)
    for logits, vocab in ((wide, V), (LOGITS, V + 1)):
        with pytest.raises(OtherModel, match=f"{logits.shape[1]} wide, the model's vocabulary is {vocab}"):
            from_logits(IDS, logits, vocab=vocab)
    with pytest.raises(OtherModel, match="outside the vocabulary of 64"):
        from_logits(IDS + V, LOGITS, vocab=V)
    with pytest.raises(OtherModel, match="token id 70 is outside"):
        from_top(IDS, [(0, [(70, -1.0)])], vocab=V)
    with pytest.raises(DataError, match="no position has usable log probabilities: NaN log probabilities at 1 of 1"):
        from_top(IDS, [(0, [(1, NAN)])])


@pytest.mark.parametrize(("stored", "name", "step"), [
    (LOGITS.astype(np.float16).astype(np.float32), "float16", 2**-11),
    ((LOGITS.view(np.uint32) & 0xFFFF0000).view(np.float32), "bfloat16", 2**-8),
    (np.round(LOGITS.astype(np.float64), 4).astype(np.float32), "4 decimals", 1e-4),
    (np.round(LOGITS).astype(np.int16), "whole numbers", 1.0),
    (put(((ALL, 7), -1e9), of=LOGITS.astype(np.float16).astype(np.float32)), "float16", 2**-11),
    (LOGITS + np.float32(50), "", 0.0), (LOGITS.astype(np.float64) + 1e-9, "", 0.0), (np.zeros((3, 3)), "", 0.0),
], ids=range(8))  # fmt: skip
def test_how_values_were_stored(stored, name, step) -> None:
    assert written(stored) == (name, pytest.approx(step))


def test_what_is_no_logits_ends_a_diagnosis_in_one_line(tmp_path, capsys) -> None:
    def reply(name: str, **arrays) -> str:
        np.savez(tmp_path / name, **arrays)
        assert cli.main(["diagnose", "--logits", str(tmp_path / name)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    ids = np.arange(8)
    assert "only zeros" in reply("zero.npz", ids=ids, logits=np.zeros((8, 512), np.float32))
    assert "give yours with -m" in reply("wide.npz", ids=ids, logits=RNG.normal(0, 1, (8, 600)))
    assert "give yours with -m" in reply("ids.npz", ids=ids + 512, logits=RNG.normal(0, 1, (8, 512)))
    assert "one row is missing" in reply("rows.npz", ids=ids, logits=RNG.normal(0, 1, (7, 512)))


def test_printed_values_of_a_16_bit_engine_are_told_from_other_decimals() -> None:
    """Logits of a 16-bit engine stay 16-bit ones when printed, unless the decimals are as coarse as the type."""
    x = np.random.default_rng(0).normal(0, 4, (20, 50)).astype(np.float32)
    half = x.astype(np.float16).astype(np.float64)
    brain = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    cases = ((x, 4, "4 decimals"), (half, 4, "float16"), (brain, 3, "bfloat16"), (brain, 1, "1 decimals"))
    for values, places, name in cases:
        assert written(np.round(values.astype(np.float64), places))[0] == name
