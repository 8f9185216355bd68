"""Foreign files of logits: every damage is one line, never a traceback and never a wrong number."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.errors import DataError, Ds4Error
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.diagnosis.decide import _broken
from ds4ref.test_vectors.observation import from_logits, from_top, log_softmax
from ds4ref.test_vectors.reading import read, read_ids

IDS = np.arange(3, dtype=np.int32)
LOGITS = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)


def saved(path: Path, **arrays: object) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize("arrays, why", [
    ({}, "no array 'logits'"),
    ({"ids": IDS}, "no array 'logits'"),
    ({"logits": LOGITS}, "contains no token ids"),
    ({"ids": IDS, "logits": LOGITS[0]}, "do not match"),
    ({"ids": IDS, "logits": LOGITS[:2]}, "do not match"),
    ({"ids": IDS, "logits": LOGITS[:, :0]}, "empty logits"),
    ({"ids": IDS[:0], "logits": LOGITS[:0]}, "ids must be a list of integers"),
    ({"ids": IDS, "logits": LOGITS.astype(complex)}, "not numbers"),
    ({"ids": IDS, "logits": LOGITS.astype("U9")}, "not numbers"),
    ({"ids": IDS.astype(float), "logits": LOGITS}, "ids must be a list of integers"),
    ({"ids": IDS[None], "logits": LOGITS}, "ids must be a list of integers"),
    ({"ids": IDS - 1, "logits": LOGITS}, "token ids must be 0 to"),
    ({"ids": IDS + np.int64(2**40), "logits": LOGITS}, "token ids must be 0 to"),
    ({"ids": IDS, "logits": LOGITS, "rows": np.array([0.0, 1.0, 2.0])}, "positions of the logits must be a list"),
    ({"ids": IDS, "logits": LOGITS, "rows": np.array([0, 2, 1])}, "must ascend"),
    ({"ids": IDS, "logits": LOGITS, "rows": np.array([0, 1, 3])}, "must ascend and lie inside"),
    ({"ids": IDS, "logits": LOGITS, "rows": np.array([-1, 1, 2])}, "must ascend and lie inside"),
    ({"ids": IDS, "logits": np.array([None, 1], object)}, "is not a usable .npz"),
], ids=range(18))  # fmt: skip
def test_arrays_that_are_no_logits(tmp_path, arrays, why) -> None:
    saved(tmp_path / "x.npz", **arrays)
    with pytest.raises(Ds4Error, match=why) as caught:
        read(str(tmp_path / "x.npz"), None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "3", "{}", "[]", "[1.0]", "[true]", "[-1]", "[2147483648]", '["1"]', "[1,",
                                  "[[1]]", '{"ids": 3}', "[" * 5000, "\udcff"], ids=range(14))  # fmt: skip
def test_files_that_are_no_token_ids(tmp_path, text) -> None:
    (tmp_path / "ids.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as caught:
        read_ids(str(tmp_path / "ids.json"))
    assert "\n" not in str(caught.value)


TOP = {"ids": [1, 2], "rows": [{"position": 1, "top": [[3, -0.5], [4, -1.5]]}]}


@pytest.mark.parametrize("change", [
    {"rows": 3}, {"rows": None}, {"rows": [3]}, {"rows": [{}]}, {"rows": [{"top": 3}]}, {"rows": [{"top": [[1]]}]},
    {"rows": [{"top": [["a", 1]]}]}, {"rows": [{"position": "a", "top": [[1, -1]]}]},
    {"rows": [{"position": 0.5, "top": [[1, -1]]}]}, {"rows": [{"position": 2, "top": [[1, -1]]}]},
    {"rows": [{"position": -1, "top": [[1, -1]]}]}, {"rows": [{"position": 0, "top": [[-1, -1]]}]},
    {"rows": [{"position": 0, "top": [[1e99, -1]]}]}, {"rows": [{"position": 0, "top": [[1 << 70, -1]]}]},
    {"ids": 3}, {"ids": []}, {"ids": ["a"]}, {"ids": [[1], [2, 3]]}, {"ids": [1 << 70]}, {"ids": [1.5]},
], ids=range(20))  # fmt: skip
def test_top_k_files_that_are_none(tmp_path, change) -> None:
    (tmp_path / "x.json").write_text(json.dumps(TOP | change))
    with pytest.raises(Ds4Error) as caught:
        read(str(tmp_path / "x.json"), None)
    assert "\n" not in str(caught.value)


def test_values_that_say_nothing_are_dropped() -> None:
    seen = from_top([1, 2], [(1, [(3, -0.5), (4, -9999.0), (5, float("nan")), (6, float("inf"))])])
    assert seen.support is not None and seen.support.tolist() == [[3]]


def test_forms_agree(tmp_path) -> None:
    ids = IDS.tolist()
    saved(tmp_path / "x.npz", ids=IDS, logits=LOGITS)
    np.save(tmp_path / "x.npy", LOGITS)
    np.savetxt(tmp_path / "x.csv", LOGITS, delimiter=",")
    np.savetxt(tmp_path / "x.tsv", LOGITS, delimiter="\t")
    wanted = read(str(tmp_path / "x.npz"), None)
    for name in ("x.npy", "x.csv", "x.tsv"):
        assert np.allclose(read(str(tmp_path / name), ids).logprobs, wanted.logprobs, atol=1e-6)
    rows = [{"position": t, "top": [[i, float(p)] for i, p in enumerate(row)]}
            for t, row in enumerate(log_softmax(LOGITS))]  # fmt: skip
    (tmp_path / "x.json").write_text(json.dumps(rows))
    assert np.allclose(read(str(tmp_path / "x.json"), ids).logprobs, wanted.logprobs)


def damaged(tmp_path: Path, change: Callable[[bytearray], object], name: str = "x.npz") -> str:
    np.savez_compressed(tmp_path / "x.npz", ids=IDS, logits=LOGITS)
    np.save(tmp_path / "x.npy", LOGITS)
    data = bytearray((tmp_path / name).read_bytes())
    change(data)
    (tmp_path / name).write_bytes(data)
    return str(tmp_path / name)


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.booleans(), name=st.sampled_from(["x.npz", "x.npy"]))
def test_damaged_bytes_are_one_line(tmp_path_factory, at, value, cut, name) -> None:
    def change(data: bytearray) -> None:
        if cut:
            del data[at % len(data) :]
        else:
            data[at % len(data)] = value

    path = damaged(tmp_path_factory.mktemp("d"), change, name)
    try:
        seen = read(path, IDS.tolist())
    except Ds4Error as error:
        assert "\n" not in str(error)
    else:
        assert seen.logprobs.shape == (3, 7)


def test_archives_of_other_kinds(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_LZMA) as z:
        z.writestr("logits.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'shape': (1 << 60,), }")
    np.save(tmp_path / "array", LOGITS)
    (tmp_path / "array.npy").rename(tmp_path / "y.npz")
    (tmp_path / "z.npz").mkdir()
    for name in ("x.npz", "y.npz", "z.npz", "absent.npz", "x.txt"):
        with pytest.raises(Ds4Error) as caught:
            read(str(tmp_path / name), [1])
        assert "\n" not in str(caught.value)


def test_the_command_says_it_in_one_line(tmp_path, capsys) -> None:
    (tmp_path / "bad.json").write_text("[1, 2")
    saved(tmp_path / "x.npz", ids=IDS, logits=LOGITS)
    saved(tmp_path / "wide.npz", ids=IDS, logits=np.zeros((3, 100000), np.float32))
    saved(tmp_path / "ids.npz", ids=IDS + 512, logits=np.zeros((3, 512), np.float32))
    for argv in (
        ["--logits", "x.npz", "--token-ids", "bad.json"],
        ["--logits", "bad.json"],
        ["--logits", "x.npz"],
        ["--logits", "wide.npz"],
        ["--logits", "ids.npz"],
        ["--logits", "x.npz", "-m", "bad.json"],
    ):
        paths = [str(tmp_path / a) if a.endswith((".npz", ".json")) else a for a in argv]
        assert cli.main(["diagnose", *paths]) in (1, 2)
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and "internal error" not in err, err


def test_rows_of_a_part() -> None:
    seen = from_logits(IDS, LOGITS[1:], np.array([1, 2], np.uint8))
    assert seen.rows.dtype == np.int64 and seen.rows.tolist() == [1, 2]


def test_masked_tokens_are_no_broken_numbers() -> None:
    """-inf is a token that cannot come (banned words, a padded vocabulary); NaN and +inf are an engine's failure."""
    logits = np.zeros((6, 9), np.float32)
    logits[:, 7:] = -np.inf
    assert _broken(from_logits(range(6), logits)) is None
    logits[2, 0] = logits[5] = np.nan
    found = _broken(from_logits(range(6), logits))
    assert (found.verdict, found.first_position, found.positions) == ("broken", 2, 6)
    assert found.says == "18 values are not finite, at 2 of 6 positions"  # a softmax of a NaN has no finite value
    assert found.notes == ["positions 2, 5; 2 of them have no finite value at all"]
    logits[2:] = 0
    logits[4, 1] = np.inf
    assert _broken(from_logits(range(6), logits)).first_position == 4
    for count, listed in ((1, "0"), (8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7 and 1 more")):
        logits = np.zeros((10, 9), np.float32)
        logits[:count, 5] = np.nan
        assert _broken(from_logits(range(10), logits)).notes == [
            f"positions {listed}; {count} of them have no finite value at all"
        ]
