"""Importance files: both formats there and back, experts never met, and hostile bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ds4ref.errors import DataError
from ds4ref.weights.quantize.imatrix import PRIOR, Imatrix, TensorImportance, read_imatrix, write_imatrix
from ds4ref.weights.writer import TensorSpec, write_gguf

NAME = "blk.0.ffn_gate_exps.weight"


def table() -> Imatrix:
    rng = np.random.default_rng(1)
    experts = TensorImportance(rng.random((4, 8), np.float32), np.array([100.0, 0.0, 1.0, 1e6]))
    experts.means[1] = 0
    return Imatrix({NAME: experts, "output.weight": TensorImportance(rng.random((1, 8), np.float32), np.array([7.0]))},
                   ["book.txt"], 5)  # fmt: skip


def dat(*entries: tuple[str, int, list[float]], trailer: bytes = b"") -> bytes:
    parts = [struct.pack("<i", len(entries))]
    for name, calls, values in entries:
        data = name.encode()
        parts.append(struct.pack("<i", len(data)) + data + struct.pack("<ii", calls, len(values)))
        parts.append(np.array(values, "<f4").tobytes())
    return b"".join(parts) + trailer


def read(tmp_path: Path, data: bytes) -> Imatrix:
    (tmp_path / "i.dat").write_bytes(data)
    return read_imatrix(tmp_path / "i.dat")


def test_gguf_there_and_back(tmp_path):
    write_imatrix(tmp_path / "i.gguf", table())
    found = read_imatrix(tmp_path / "i.gguf")
    assert found.datasets == ["book.txt"] and found.chunks == 5 and list(found.entries) == list(table().entries)
    for name, entry in table().entries.items():
        np.testing.assert_allclose(found.entries[name].means, entry.means, rtol=1e-6)
        np.testing.assert_array_equal(found.entries[name].counts, entry.counts)


def test_gguf_py_reads_what_is_written(tmp_path):
    gguf = pytest.importorskip("gguf")
    write_imatrix(tmp_path / "i.gguf", table())
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "i.gguf").tensors}
    sums, counts = tensors[NAME + ".in_sum2"].data, tensors[NAME + ".counts"].data
    np.testing.assert_allclose(sums.reshape(4, 8)[3], table().entries[NAME].means[3] * 1e6, rtol=1e-5)
    np.testing.assert_array_equal(np.ravel(counts), [100, 0, 1, 1e6])


def test_dat_has_the_layout_that_is_documented(tmp_path):
    found = read(tmp_path, dat(("a", 4, [4.0, 8.0]), ("b", 0, [3.0]), trailer=struct.pack("<ii", 9, 2) + b"xy"))
    assert found.entries["a"].means.tolist() == [[1.0, 2.0]] and found.entries["b"].means.tolist() == [[3.0]]
    assert found.chunks == 9 and found.datasets == ["xy"]


def test_dat_there_and_back(tmp_path):
    write_imatrix(tmp_path / "i.dat", table())
    found = read_imatrix(tmp_path / "i.dat")
    assert found.chunks == 5 and found.datasets == ["book.txt"]
    kept = table().entries[NAME].means
    means = found.entries[NAME].means.reshape(4, 8)
    np.testing.assert_array_equal(means[[0, 2, 3]], kept[[0, 2, 3]])
    np.testing.assert_allclose(means[1], kept[[0, 2, 3]].mean(axis=0), rtol=1e-6)  # never met: the mean of the others


def test_experts_never_met_get_the_mean_of_those_that_were():
    found = table()
    met = found.entries[NAME].means[[0, 2, 3]].astype(np.float64)
    np.testing.assert_allclose(found.importance(NAME, 8, 4, 1), met.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.importance(NAME, 8, 4, 3), met[2], rtol=1e-4)
    trust = 1 / (1 + PRIOR)  # met once: drawn to the mean
    np.testing.assert_allclose(
        found.importance(NAME, 8, 4, 2), trust * met[1] + (1 - trust) * met.mean(axis=0), rtol=1e-6
    )
    assert found.entries[NAME].unmet == 1


def test_vectors_of_ones_are_experts_that_ds4_never_met(tmp_path):
    found = read(tmp_path, dat((NAME, 1, [1e-4, 3e-4, *[1.0, 1.0], 3e-4, 5e-4])))
    np.testing.assert_allclose(found.importance(NAME, 2, 3, 1), [2e-4, 4e-4], rtol=1e-6)
    np.testing.assert_allclose(found.importance(NAME, 2, 3, 2), [3e-4, 5e-4], rtol=1e-6)


def test_which_name_goes_first(tmp_path):
    data = dat((NAME, 1, [1.0, 2.0]), (NAME + ".expert.1", 1, [3.0, 4.0]), (NAME + ".expert_2", 1, [5.0, 6.0]))
    found = read(tmp_path, data)
    assert [found.importance(NAME, 2, 3, e).tolist() for e in range(3)] == [[1, 2], [3, 4], [5, 6]]
    assert found.importance("other", 2) is None


def test_another_length_is_refused(tmp_path):
    found = read(tmp_path, dat((NAME, 1, [1.0] * 6)))
    with pytest.raises(DataError, match="6 values, wanted 4 or 16"):
        found.importance(NAME, 4, 4, 0)


def gguf_bytes(tmp_path: Path, kind="imatrix", sums=(("a.in_sum2", "F32", (4, 1)), ("a.counts", "F32", (1, 1))),
               values=1.0) -> bytes:  # fmt: skip
    specs = [TensorSpec(*spec) for spec in sums]
    metadata = [("general.type", "string", kind)] if isinstance(kind, str) else [("general.type", "u32", 3)]
    with write_gguf(tmp_path / "g.gguf", metadata, specs) as out:
        for spec in specs:
            dtype = np.float32 if spec.fmt == "F32" else np.float16
            out.write(spec.name, np.full(spec.elements, values, dtype))
    return (tmp_path / "g.gguf").read_bytes()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "model"}, "not an importance matrix"),
        ({"kind": 3}, "not an importance matrix"),
        ({"sums": (("a.in_sum2", "F32", (4, 1)),)}, "no counts"),
        ({"sums": (("a.in_sum2", "F32", (4, 2)), ("a.counts", "F32", (1, 3)))}, "3 counts for 2 rows"),
        ({"sums": (("a.in_sum2", "F16", (4, 1)), ("a.counts", "F32", (1, 1)))}, "wanted F32"),
        ({"sums": (("a.counts", "F32", (1, 1)),)}, "no importance matrix entries"),
        ({"values": -1.0}, "an invalid count"),
        ({"values": np.nan}, "an invalid count"),
    ],
)
def test_hostile_gguf(tmp_path, options, says):
    data = gguf_bytes(tmp_path, **options)
    with pytest.raises(DataError, match=says):
        read(tmp_path, data)


def test_a_file_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(DataError, match="cannot open"):
        read_imatrix(tmp_path / "none")
    for name in ("i.dat", "i.gguf"):
        with pytest.raises(DataError, match="cannot write"):
            write_imatrix(tmp_path / "no folder" / name, table())
    with pytest.raises(DataError, match="no tokens were processed"):
        write_imatrix(tmp_path / "i.dat", Imatrix())
    assert not list(tmp_path.iterdir())
