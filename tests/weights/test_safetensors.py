"""The safetensors reader: what it reads, against the library of that name, and what it refuses and how."""

from __future__ import annotations

import os

import numpy as np
import pytest

from ds4ref.errors import ModelFileError
from ds4ref.weights import open_source
from ds4ref.weights.safetensors import BITS, INDEX, SINGLE, Checkpoint
from ds4ref.weights.safetensors_writer import PlannedTensor, write_file, write_folder

from .checkpointfile import container, entry, write_small

library = pytest.importorskip("safetensors.numpy")


# ---- what is read


def test_a_file_of_the_library(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {
        "a.weight": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal(7).astype(np.float16),
        "long": rng.integers(-9, 9, (2, 2, 2)),
        "scalar": np.array(4.5),
        "empty": np.zeros((0, 3), np.float32),
    }
    library.save_file(arrays, tmp_path / SINGLE, {"note": "kept"})
    with Checkpoint.open(tmp_path) as found:
        assert found.tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            stored = found.tensors[name]
            assert stored.shape == array.shape and stored.nbytes == array.nbytes
            assert found.raw(name).tobytes() == array.tobytes()
        assert found.size == (tmp_path / SINGLE).stat().st_size
        view = found.raw("a.weight")
    assert not view.flags.writeable
    np.testing.assert_array_equal(view.view(np.float32).reshape(3, 5), arrays["a.weight"])  # outlives its file
    with pytest.raises(ModelFileError, match="closed"):
        found.raw("b")


@pytest.mark.parametrize("shard_bytes", [1, 100, 1 << 20])
def test_what_we_write_the_library_reads_and_so_do_we(tmp_path, shard_bytes):
    arrays = {f"t{i}": np.arange(10 * i + 1, dtype=np.float32) for i in range(6)}
    plans = [PlannedTensor(name, "F32", array.shape, lambda array=array: array) for name, array in arrays.items()]
    write_folder(tmp_path, plans, shard_bytes)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert (len(files) == 1) == (shard_bytes == 1 << 20) and (tmp_path / INDEX).exists() == (len(files) > 1)
    theirs = {name: array for file in files for name, array in library.load_file(file).items()}
    with Checkpoint.open(tmp_path) as found:
        assert found.tensors.keys() == theirs.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(theirs[name], array)
            np.testing.assert_array_equal(found.raw(name).view(np.float32), array)


def test_the_writer_leaves_nothing_when_a_tensor_does_not_fit(tmp_path):
    with pytest.raises(ValueError, match="not the 8 of its plan"):
        write_file(tmp_path / "x.safetensors", [PlannedTensor("a", "F32", (2,), lambda: np.zeros(3, np.float32))])
    assert not list(tmp_path.iterdir())


def test_every_dtype_has_its_size(tmp_path):
    """The dtypes of the safetensors crate, 0.7, with the bits of an element."""
    sizes = {4: "F4", 6: "F6_E2M3 F6_E3M2", 8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0", 16: "I16 U16 F16 BF16",
             32: "I32 U32 F32", 64: "I64 U64 F64 C64"}  # fmt: skip
    assert {name for names in sizes.values() for name in names.split()} == BITS.keys()
    for bits, names in sizes.items():
        for dtype in names.split():
            (tmp_path / SINGLE).write_bytes(container({"a": entry(dtype, (4, 2))}, data=bits))
            with Checkpoint.open(tmp_path) as found:
                assert found.raw("a").size == bits


def test_a_folder_its_index_and_a_file_are_the_same_model(tmp_path):
    write_small(tmp_path / "m", shard_bytes=1 << 18)
    write_small(tmp_path / "one")
    wanted = open_source(tmp_path / "m").tensors.keys()
    for path in (tmp_path / "m" / INDEX, tmp_path / "one", tmp_path / "one" / SINGLE):
        with open_source(path) as source:
            assert source.tensors.keys() == wanted
    renamed = (tmp_path / "one" / SINGLE).rename(tmp_path / "one" / "weights.bin")
    with open_source(renamed) as source:  # told by what it is
        assert source.tensors.keys() == wanted


# ---- what is refused


SPOIL = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "a folder": lambda path: path.mkdir(),
    "2 MB": lambda path: path.write_bytes(b" " * (2 << 20)),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("what", SPOIL)
def test_a_config_that_is_none(tmp_path, what):
    path = write_small(tmp_path / "m") / "config.json"
    path.unlink()
    SPOIL[what](path)
    with pytest.raises(ModelFileError, match="config.json"):
        open_source(path.parent)
