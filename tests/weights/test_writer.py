"""What the writer writes, gguf-py reads; what fails, leaves nothing behind."""

from __future__ import annotations

import os
import resource
import signal

import numpy as np
import pytest

from ds4ref.errors import ModelFileError
from ds4ref.weights.writer import TensorSpec, write_gguf

gguf = pytest.importorskip("gguf")

ENTRIES = [
    ("general.architecture", "string", "deepseek4"),
    ("u8", "u8", 255),
    ("i8", "i8", -128),
    ("u16", "u16", 65535),
    ("i16", "i16", -32768),
    ("u32", "u32", 2**32 - 1),
    ("i32", "i32", -(2**31)),
    ("u64", "u64", 2**64 - 1),
    ("i64", "i64", -(2**63)),
    ("f32", "f32", 0.15625),
    ("f64", "f64", 0.1),
    ("yes", "bool", True),
    ("no", "bool", False),
    ("text", "string", "<｜User｜> naïve\n"),
    ("blank", "string", ""),
    ("numbers", "i32[]", [0, -4, 128]),
    ("reals", "f64[]", [0.1, -2.5]),
    ("flags", "bool[]", [True, False, True]),
    ("words", "string[]", ["", "Ġt", "｜DSML｜"]),
]

SPECS = [
    TensorSpec("a.weight", "F32", (5, 3)),
    TensorSpec("b.weight", "Q8_0", (64, 3, 2)),
    TensorSpec("c", "F16", (7,)),
]


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_gguf_py_reads_it_back(tmp_path, alignment):
    path = tmp_path / "m.gguf"
    rng = np.random.default_rng(1)
    a = rng.standard_normal((3, 5), np.float32)
    b = rng.integers(0, 256, (2, 3, 68), dtype=np.uint8)
    c = rng.standard_normal(7).astype(np.float16)
    with write_gguf(path, ENTRIES, SPECS, alignment=alignment) as out:
        out.write("a.weight", a)
        out.write("b.weight", (bytes(row) for expert in b for row in expert))
        out.write("c", memoryview(c.tobytes()))
    reader = gguf.GGUFReader(path)
    assert reader.alignment == alignment
    for key, _, value in ENTRIES:
        assert reader.fields[key].contents() == value
    ours = {"a.weight": a, "b.weight": b, "c": c}
    assert [t.name for t in reader.tensors] == list(ours)
    for t in reader.tensors:
        assert t.data_offset % alignment == 0
        np.testing.assert_array_equal(t.data, ours[t.name])
        assert t.data.dtype == ours[t.name].dtype


@pytest.mark.parametrize("length", range(1, 33))
def test_data_begins_at_the_next_multiple_wherever_the_directory_ends(tmp_path, length):
    """Ours and gguf-py's file are the same byte by byte, tensors that end on a multiple included."""
    text, shapes = "x" * length, [(8,), (3,), (16,)]
    arrays = {name: np.full(shape, 1.5, np.float32) for name, shape in zip("abc", shapes, strict=True)}
    theirs = gguf.GGUFWriter(tmp_path / "theirs.gguf", "any")
    theirs.add_string("k", text)
    for name, array in arrays.items():
        theirs.add_tensor(name, array)
    theirs.write_header_to_file()
    theirs.write_kv_data_to_file()
    theirs.write_tensors_to_file()
    theirs.close()
    entries = [("general.architecture", "string", "any"), ("k", "string", text)]
    specs = [TensorSpec(name, "F32", array.shape) for name, array in arrays.items()]
    with write_gguf(tmp_path / "ours.gguf", entries, specs) as out:
        for name, array in arrays.items():
            out.write(name, array)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def broken(data):
    yield data[: len(data) // 2]
    raise RuntimeError("generator failed")


@pytest.mark.parametrize("failure", ["missing", "short", "long", "order", "unknown", "source", "interrupt"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")
    data = np.zeros(15, np.float32)
    expected = {"source": RuntimeError, "interrupt": KeyboardInterrupt}.get(failure, ValueError)
    with pytest.raises(expected), write_gguf(path, ENTRIES, SPECS) as out:
        if failure == "short":
            out.write("a.weight", data[:-1])
        elif failure == "long":
            out.write("a.weight", [data, b"x"])
        elif failure == "order":
            out.hole("c")
        elif failure == "unknown":
            out.hole("d")
        elif failure == "source":
            out.write("a.weight", broken(data.tobytes()))
        elif failure == "interrupt":
            raise KeyboardInterrupt
        else:
            out.write("a.weight", data)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    """A file size limit stands in for the full disk: both fail in the middle of a write."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    spec = TensorSpec("t", "F32", (1 << 16,))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
        with pytest.raises(ModelFileError, match="cannot write: File too large"):
            with write_gguf(tmp_path / "m.gguf", [], [spec]) as out:
                out.write("t", np.ones(1 << 16, np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("entries", "specs"),
    [
        ([("a", "u32", 1), ("a", "u32", 2)], []),
        ([("a", "u33", 1)], []),
        ([("a", "u8", 256)], []),
        ([("a", "u32", -1)], []),
        ([("a", "u32", "1")], []),
        ([("a", "f32", 1e300)], []),
        ([], [TensorSpec("t", "F32", (1,))] * 2),
        ([], [TensorSpec("t", "Q8_0", (33,))]),
        ([], [TensorSpec("a", "F8_E4M3", (128, 2))]),  # GGUF has no such type
    ],
)
def test_nonsense_is_refused_before_a_file_exists(tmp_path, entries, specs):
    with pytest.raises(ValueError), write_gguf(tmp_path / "m.gguf", entries, specs):
        pass
    assert os.listdir(tmp_path) == []
