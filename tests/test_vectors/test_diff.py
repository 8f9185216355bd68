"""``ds4-vectors diff`` passes only if all rows were compared, on the same scale, and all values are finite."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import log_softmax as scipys
from scipy.stats import entropy

from ds4ref.errors import DataError
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.diff import differences, summary
from ds4ref.test_vectors.observation import log_softmax

pytestmark = pytest.mark.usefixtures("both")

RNG = np.random.default_rng(11)
IDS = RNG.integers(0, 40, 20)
LOGITS = RNG.normal(0, 2, (20, 40)).astype(np.float32)


@pytest.fixture
def diff(tmp_path, capsys):
    """A function that compares two tables and returns (exit code, line of JSON, table, stderr)."""

    def run(a, b, *argv: str, **more):
        for name, arrays in (("a.npz", a), ("b.npz", b)):
            result = arrays if isinstance(arrays, dict) else {"logits": arrays, "ids": IDS[: len(arrays)]}
            np.savez(tmp_path / name, **result)
        code = cli.main(["diff", str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), *argv])
        out, err = capsys.readouterr()
        return code, json.loads(out.strip().splitlines()[-1]) if out else {}, out, err

    return run


def test_equal_files_pass(diff) -> None:
    code, result, out, _ = diff(LOGITS, LOGITS, "--fail")
    assert code == 0 and result["passed"] and result["max"] == 0.0 and result["notes"] == [] and "note:" not in out
    assert (result["only_a"], result["only_b"], result["non_finite"], result["positions"]) == (0, 0, 0, 20)


def test_a_part_is_not_the_whole(diff) -> None:
    """A comparison of 200 rows with 150 once passed."""
    part = {"logits": LOGITS[:15], "ids": IDS, "rows": np.arange(15)}
    for a, b, only in ((LOGITS, part, (5, 0)), (part, LOGITS, (0, 5))):
        code, result, out, _ = diff(a, b, "--fail")
        assert code == 1 and not result["passed"] and (result["only_a"], result["only_b"]) == only
        assert result["max"] == 0.0 and result["positions"] == 15 and result["first_bad"] is None
        assert "compared the 15 they share" in out
        assert diff(a, b)[0] == 0, "without --fail it tells and ends well"
    code, result, _, _ = diff(part, part, "--fail")
    assert code == 0 and result["positions"] == 15


def test_what_is_no_number_is_called_so(diff) -> None:
    broken = np.array(LOGITS)
    broken[3, 4] = broken[7] = np.nan
    code, result, out, _ = diff(LOGITS, broken, "--fail")
    assert code == 1 and result["non_finite"] == 2 and result["first_bad"] == 3 and result["worst_position"] == 3
    assert [result[k] for k in ("max", "rms", "kl")] == [None] * 3 and result["top1"] == pytest.approx(18 / 20)
    assert out.count("not a number") >= 4 and "None" not in out.splitlines()[2]
    assert "NaN or infinite difference at 2 of 20 positions, first at 3" in out
    code, result, _, _ = diff(broken, broken, "--fail")
    assert code == 1 and not result["passed"] and result["top1"] == pytest.approx(18 / 20), "nothing agrees with a NaN"


def test_nothing_is_learnt_from_zeros(diff) -> None:
    zeros = np.zeros_like(LOGITS)
    for a, b in ((zeros, zeros), (LOGITS, zeros), (zeros, LOGITS)):
        code, _, out, err = diff(a, b)
        assert code == 1 and out == "" and "all rows hold only zeros: the buffer was never written" in err
    some = np.array(LOGITS)
    some[5:7] = 0
    code, result, out, _ = diff(some, some, "--fail")
    assert code == 1 and not result["passed"] and "A: only zeros at positions 5 and 6" in out and "B: only zeros" in out


def test_rows_repeated_in_both_files_are_not_passed(diff) -> None:
    stale = np.array(LOGITS)
    stale[9] = stale[8]
    code, result, out, _ = diff(stale, stale, "--fail")
    assert code == 1 and result["first_bad"] is None and "repeated bit for bit at position 9" in out


@pytest.mark.parametrize("kind, change", [
    ("probabilities", lambda x: np.exp(log_softmax(x))),
    ("log probabilities", log_softmax),
    ("logarithms to base 10", lambda x: log_softmax(x) / np.log(10)),
    ("logarithms to base 2", lambda x: log_softmax(x) / np.log(2)),
])  # fmt: skip
def test_scales_are_made_one(diff, kind, change) -> None:
    code, result, out, _ = diff(LOGITS, change(LOGITS), "--fail")
    assert code == 0 and result["max"] < 1e-5 and "A holds logits, the other none: compared as log prob" in out
    assert kind in out
    off = LOGITS + np.where(np.arange(40) == LOGITS.argmax(axis=1)[:, None], 0.5, 0).astype(np.float32)
    code, result, _, _ = diff(off, change(LOGITS), "--fail")
    assert code == 1 and 0.1 < result["max"] < 0.5


def test_padding_is_cut(diff) -> None:
    wide = np.concatenate((LOGITS, np.zeros((20, 3), np.float32)), axis=1)
    for a, b, name in ((LOGITS, wide, "B"), (wide, LOGITS, "A")):
        code, _, out, _ = diff(a, b, "--fail")
        assert code == 0 and f"{name}: 3 padding columns ignored" in out
    code, _, _, err = diff(np.concatenate((LOGITS, LOGITS[:, :3]), axis=1), LOGITS)
    assert code == 1 and "cannot be compared" in err


@pytest.mark.parametrize("rows", [np.arange(19), np.zeros(20, int), np.arange(20.0)], ids=["few", "twice", "floats"])
def test_positions_that_cannot_be(diff, rows) -> None:
    code, _, out, err = diff(LOGITS, {"logits": LOGITS, "ids": IDS, "rows": rows})
    assert code == 1 and out == "" and err.count("\n") == 1 and "position" in err


def test_differences_are_those_of_the_definitions() -> None:
    b = LOGITS + RNG.normal(0, 0.3, LOGITS.shape).astype(np.float32)
    rows = np.arange(20) + 3
    result = differences(LOGITS, b)
    one, two = LOGITS.astype(np.float64), b.astype(np.float64)
    assert result["max"] == pytest.approx(abs(one - two).max(axis=1))
    assert result["rms"] == pytest.approx(np.sqrt(((one - two) ** 2).mean(axis=1)))
    assert result["kl"] == pytest.approx(entropy(np.exp(scipys(one, axis=1)), np.exp(scipys(two, axis=1)), axis=1))
    assert result["top1"].tolist() == (one.argmax(axis=1) == two.argmax(axis=1)).tolist()
    best = [(set(np.argsort(-x)[:5]), set(np.argsort(-y)[:5])) for x, y in zip(one, two, strict=True)]
    assert result["overlap"] == pytest.approx([len(x & y) / 5 for x, y in best])
    reply = summary(result, rows, 0.1)
    assert reply["rms"] == pytest.approx(np.sqrt(((one - two) ** 2).mean())), "over all values, not over rows"
    assert reply["worst_position"] == rows[int(result["max"].argmax())] and reply["kl"] == pytest.approx(
        result["kl"].mean()
    )
    limit = float(result["max"][4])
    assert summary(result, rows, limit)["first_bad"] == next(
        (r for r, m in zip(rows, result["max"], strict=True) if m > limit), None
    )
    with pytest.raises(DataError, match="cannot be compared"):
        differences(LOGITS, LOGITS[:3])


def test_a_token_masked_on_both_sides_is_no_difference() -> None:
    a, b = LOGITS.copy(), LOGITS.copy()
    a[:, 4] = b[:, 4] = -np.inf
    result = differences(a, b)
    assert (
        not result["max"].any() and not result["kl"].any() and result["top1"].all() and (result["overlap"] == 1).all()
    )
    b[2, 4] = 0.0
    assert summary(differences(a, b), np.arange(20), 100.0)["first_bad"] == 2


def test_tables_without_ids_are_compared_row_by_row(tmp_path, capsys) -> None:
    np.save(tmp_path / "a.npy", LOGITS)
    np.savez(tmp_path / "b.npz", logits=LOGITS, ids=IDS)
    for a, b in (("a.npy", "b.npz"), ("b.npz", "a.npy"), ("a.npy", "a.npy")):
        assert cli.main(["diff", str(tmp_path / a), str(tmp_path / b), "--fail"]) == 0, (a, b)
