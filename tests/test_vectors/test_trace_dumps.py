"""Reading other engines' dumps: every file format, and files that are damaged or malicious."""

import json
import shutil
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from ds4ref.errors import DataError
from ds4ref.test_vectors.trace.dumps import Dump, DumpChunk, read
from ds4ref.test_vectors.trace.names import NameRule, guess
from ds4ref.test_vectors.trace.theirs import Theirs, Unfit, fitted

from .tracing import recorded

X = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
ROOT = Path(__file__).resolve().parents[2]


def loaded(dump, name):
    return np.concatenate([piece.load() for piece in dump.tensors[name]])


def test_npz(tmp_path):
    np.savez(tmp_path / "a.npz", **{"attn_norm.0": X, "half": X.astype(np.float16), "ids": np.arange(5)})
    dump = read(str(tmp_path / "a.npz"))
    assert dump.ids == [0, 1, 2, 3, 4] and set(dump.tensors) == {"attn_norm.0", "half"}
    assert np.array_equal(loaded(dump, "attn_norm.0"), X) and dump.tensors["half"][0].dtype == "float16"


def test_safetensors_with_bfloat16_and_manifest(tmp_path):
    header = {
        "__metadata__": {"manifest": json.dumps({"ids": [3, 4]})},
        "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "f": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
    }
    bits = (X[:2, :2].view(np.uint32) >> 16).astype("<u2")
    head = json.dumps(header).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bits.tobytes() + X[0, :2].tobytes())
    dump = read(str(tmp_path / "a.safetensors"))
    assert dump.ids == [3, 4] and dump.tensors["b"][0].dtype == "bfloat16"
    assert np.array_equal(loaded(dump, "b").view(np.uint32), X[:2, :2].view(np.uint32) & 0xFFFF0000)
    assert np.array_equal(loaded(dump, "f"), X[0, :2])


def test_folder_with_manifest(tmp_path):
    X[:2].tofile(tmp_path / "0.f32")
    X[2:].tofile(tmp_path / "1.f32")
    X.astype(np.float16).tofile(tmp_path / "2.f16")
    lines = [
        {"ids": [7] * 5},
        {"name": "attn_norm", "layer": 1, "shape": [2, 8], "file": "0.f32"},
        {"name": "attn_norm", "layer": 1, "shape": [3, 8], "file": "1.f32"},
        {"name": "q", "shape": [8, 5], "file": "2.f16", "dtype": "f16", "order": "ggml"},
    ]
    (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))
    dump = read(str(tmp_path))
    assert dump.ids == [7] * 5
    assert np.array_equal(loaded(dump, "attn_norm.1"), X)
    assert np.array_equal(loaded(dump, "q"), X.astype(np.float16))


def test_graph_dumps_of_ds4(tmp_path):
    X.tofile(tmp_path / "out_Qcur-3_pos0.bin")
    X.tofile(tmp_path / "out_Qcur-3_pos5.bin")
    np.arange(6, dtype=np.int32).tofile(tmp_path / "out_ffn_moe_topk-3_pos0.i32")
    X.tofile(tmp_path / "out_result_norm_pos0.bin")
    dump = read(str(tmp_path))
    assert set(dump.tensors) == {"Qcur.3", "ffn_moe_topk.3", "result_norm"}
    assert [piece.first for piece in dump.tensors["Qcur.3"]] == [0, 5]
    _, result = guess(dump.tensors, 6)
    assert set(result) == {("Qcur", 3), ("ffn_moe_topk", 3), ("result_norm", -1)}


# --- damaged and hostile


def broken(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as error:
        dump = read(str(tmp_path / name))
        for pieces in dump.tensors.values():
            for piece in pieces:
                piece.load()
    assert "\n" not in str(error.value) and name in str(error.value)


def test_truncated_files(tmp_path):
    np.savez(tmp_path / "whole.npz", a=X)
    save_file({"a": X}, tmp_path / "whole.safetensors")
    for suffix in ("npz", "safetensors"):
        data = (tmp_path / f"whole.{suffix}").read_bytes()
        for size in (0, 7, 9, len(data) // 2, len(data) - 1):
            broken(tmp_path, f"cut.{suffix}", data[:size])
    np.savez(tmp_path / "objects.npz", a=np.array([{"b": 1}], dtype=object))
    broken(tmp_path, "objects2.npz", (tmp_path / "objects.npz").read_bytes())


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [5, 8], "file": "../outside.f32"},
        {"shape": [5, 8], "file": "/etc/hostname"},
        {"shape": [5, 8], "file": "absent.f32"},
        {"shape": [5, 9], "file": "x.f32"},
        {"shape": [4, 8], "file": "x.f32"},
        {"shape": [1 << 40, 1 << 40], "file": "x.f32"},
        {"shape": [-5, -8], "file": "x.f32"},
        {"shape": "5x8", "file": "x.f32"},
        {"shape": [5, 8], "file": "x.f32", "dtype": "quaternion"},
        {"shape": [5, 8], "file": "x.f32", "offset": 64},
        {"shape": [5, 8]},
    ],
)
def test_hostile_manifest(tmp_path, entry):
    folder = tmp_path / "dump"
    folder.mkdir()
    X.tofile(folder / "x.f32")
    X.tofile(tmp_path / "outside.f32")
    (folder / "manifest.jsonl").write_text(json.dumps({"name": "attn_norm.0", **entry}))
    with pytest.raises(DataError) as error:
        read(str(folder))
    assert "\n" not in str(error.value)


# --- names and shapes


def test_presets_know_only_points_of_the_pass_and_are_told_apart():
    ours = recorded(layers=[2])
    assert guess(ours, 6)[0].name == "ours"
    assert guess([name.replace(".", "-") for name in ours], 6)[0].name == "ds4"
    assert guess(["attn_norm-0", "q-0", "kv-0", "attn_derope-0"], 6)[0].name == "llama.cpp"
    assert guess(["model.layers.0.input_layernorm.out"], 6)[0].name == "hf"
    with pytest.raises(DataError, match="--names"):
        guess(["unheard.of"], 6)


def test_shapes_are_brought_into_ours():
    plain = NameRule("q")
    q = np.arange(5 * 2 * 3, dtype=np.float32).reshape(5, 2, 3)
    like = q.shape
    for values in (q, q[None], q.reshape(5, 6), q.reshape(-1), q.transpose(1, 0, 2)):
        assert np.array_equal(fitted(values, plain, "THF", like, "q"), q)
    assert np.array_equal(fitted(q.transpose(1, 0, 2)[None], NameRule("q", axes="1HTF"), "THF", like, "q"), q)
    assert np.array_equal(fitted(q[1:3], plain, "THF", like, "q"), q[1:3]), "fewer tokens"
    grouped = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    merged = fitted(grouped, NameRule("low", axes="GTF"), "TF", (5, 24), "low")
    assert np.array_equal(merged, grouped.transpose(1, 0, 2).reshape(5, 24))
    padded = np.concatenate((q.reshape(5, 6), np.zeros((5, 2), np.float32)), axis=1)
    assert np.array_equal(fitted(padded, NameRule("s", first="R"), "TR", (5, 6), "s"), q.reshape(5, 6))
    assert np.array_equal(fitted(padded, NameRule("s", slice=(0, 6)), "TF", (5, 6), "s"), q.reshape(5, 6))
    for values in (q[:, :, :2], np.zeros(7, np.float32), np.zeros((0, 3), np.float32)):
        with pytest.raises(Unfit):
            fitted(values, plain, "THF", like, "q")


def given(values, point="attn_norm", **chunk):
    """Return another engine's ``values`` of a point of layer 0, for a model of five tokens and five experts."""
    dump = Dump("memory")
    dump.positions = chunk.pop("positions", None)
    dump.add("x", DumpChunk(values.shape, values.dtype.name, lambda: values, **chunk))
    theirs = Theirs(dump, {(point, 0): ("x", NameRule("x"))}, SimpleNamespace(n_experts=5), 5)
    return theirs, theirs.get((point, 0), X if point == "attn_norm" else None)


@pytest.mark.parametrize(
    ("count", "chunk", "rows"),
    [(5, {}, None), (1, {}, [4]), (2, {"first": 3}, [3, 4]), (5, {"first": 0}, None),
     (3, {"positions": [0, 2, 4]}, [0, 2, 4]), (2, {"positions": [4, 0]}, [4, 0])],
)  # fmt: skip
def test_which_tokens_rows_are_of(count, chunk, rows):
    theirs, (fit,) = given(X[:count], **dict(chunk))
    assert (None if fit.rows is None else fit.rows.tolist()) == rows and np.array_equal(fit.values, X[:count])
    assert theirs.notes == (["one row stands for the last token, x for one"] if rows == [4] else [])
    ours = np.zeros((5, 8), np.float32)
    wanted = ours.copy()
    wanted[range(5) if rows is None else rows] = X[:count]
    assert np.array_equal(fit.into(ours), wanted) and not ours.any()


@pytest.mark.parametrize(
    ("count", "chunk", "why"),
    [
        (3, {}, "x has 3 tokens, there are 5 ids: say which with positions"),
        (3, {"positions": [0, 1]}, "x has 3 tokens, its positions are 2"),
        (2, {"first": 4}, "x: positions must be different and lie inside the 5 tokens"),
        (2, {"positions": [-1, 0]}, "x: positions must be different and lie inside the 5 tokens"),
        (2, {"positions": [1, 1]}, "x: positions must be different and lie inside the 5 tokens"),
    ],
)
def test_rows_of_tokens_that_are_not_there(count, chunk, why):
    theirs, fits = given(X[:count], **dict(chunk))
    assert fits is None and theirs.unfit == {("attn_norm", 0): why} and theirs.keys() == set()


@pytest.mark.parametrize(("ids", "wrong"), [([0, 4], ""), ([0, 5], "5"), ([-1, 3], "-1"), ([-2, 9], "-2")])
def test_experts_that_are_not_there(ids, wrong):
    theirs, fits = given(np.array([ids] * 5, np.float32), "ffn_moe_topk")
    assert theirs.unfit == ({("ffn_moe_topk", 0): f"there is no expert {wrong}"} if wrong else {})
    assert wrong or fits[0].values.tolist() == [ids] * 5


# --- the examples of docs/reference/trace.md


def example(language, containing):
    text = (ROOT / "docs" / "reference" / "trace.md").read_text()
    blocks = [block.split("```")[0] for block in text.split(f"```{language}\n")[1:]]
    return next(block for block in blocks if containing in block)


def test_the_c_of_the_page_writes_what_is_read(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    body = """
int main(int argc, char **argv) {
    float x[6] = {1, 2, 3, 4, 5, 6.5};
    trace(argv[1], "attn_norm", 2, x, 2, 3);
    trace(argv[1], "result_norm", -1, x, 1, 6);
    trace(argv[1], "attn_norm", 2, x + 3, 1, 3);
    return argc != 2;
}
"""
    (tmp_path / "t.c").write_text(example("c", "void trace(") + body)
    subprocess.run([compiler, "-Wall", "-Werror", "-o", tmp_path / "t", tmp_path / "t.c"], check=True)
    (tmp_path / "out").mkdir()
    subprocess.run([tmp_path / "t", tmp_path / "out"], check=True)
    dump = read(str(tmp_path / "out"))
    assert loaded(dump, "attn_norm.2").tolist() == [[1, 2, 3], [4, 5, 6.5], [4, 5, 6.5]]
    assert guess(dump.tensors, 6)[1].keys() == {("attn_norm", 2), ("result_norm", -1)}
