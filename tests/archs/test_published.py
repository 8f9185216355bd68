"""The same model as a checkpoint and as a GGUF: what the layouts hold, and that the engine computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.engine import Engine
from ds4ref.errors import BackendError, ModelFileError
from ds4ref.kernels.formats import FORMATS
from ds4ref.kernels.formats.f8_e4m3 import E4M3, E8M0
from ds4ref.nano import checkpoint
from ds4ref.nano.checkpoint import write_checkpoint
from ds4ref.weights import open_source
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.published import PublishedSource, TensorParts
from ds4ref.weights.safetensors import SINGLE, Checkpoint
from ds4ref.weights.safetensors_writer import PlannedTensor, write_file, write_json
from ds4ref.weights.writer import write_gguf

TEXT = "The engine reads what a model was published as."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, nano_path: str) -> Path:
    """The embedded model as DeepSeek would publish it."""
    path = tmp_path_factory.mktemp("published") / "nano"
    with open_source(nano_path) as source:
        write_checkpoint(source, path, shard_bytes=3 << 20)
    return path


@pytest.fixture(scope="module")
def expanded(folder: Path) -> Path:
    """The same weights as a GGUF of float32."""
    path = folder.parent / "expanded.gguf"
    with open_source(folder) as source:
        entries = [(key, source.metadata.type_of(key), source.metadata[key]) for key in source.metadata]
        infos = source.tensors.values()
        specs = [TensorSpec(i.name, "I32" if i.fmt.name == "I32" else "F32", i.dims) for i in infos]
        with write_gguf(path, entries, specs) as out:
            for info in infos:
                raw = source.raw(info.name)
                out.write(info.name, raw if info.fmt.name == "I32" else info.fmt.dequantize(raw))
    return path


@pytest.mark.parametrize(("backend", "bar"), [("reference", 0.0), ("cpu", 1e-4)])
def test_the_same_logits_as_from_a_gguf(folder: Path, expanded: Path, backend: str, bar: float) -> None:
    """The reference computes with the same float32 values either way; compiled kernels sum in another order."""
    logits = []
    for path in (folder, expanded):
        with Engine.open(path, backend=backend, numerics="exact", threads=2) as engine:
            ids = engine.tokenizer.encode(TEXT)
            logits.append(engine.session(len(ids) + 1).extend(ids))
            one_by_one = engine.session(len(ids) + 1).extend(ids, one_by_one=True)
            assert np.abs(one_by_one - logits[-1]).max() < 2e-4
    assert np.abs(logits[0] - logits[1]).max() <= bar
    assert logits[0].std() > 1


@pytest.mark.parametrize("numerics", ["exact", "qat", "ds4"])
def test_every_mode_takes_every_format(folder: Path, numerics: str) -> None:
    with Engine.open(folder, backend="reference", numerics=numerics) as engine:
        assert np.isfinite(engine.logits(TEXT[:9])).all()


def test_weights_in_place_are_the_file_s_bytes(folder: Path) -> None:
    with PublishedSource.open(folder) as source:
        stack = source.apart("blk.2.ffn_down_exps.weight")
        assert stack is not None and stack.shape[0] == 16
        for expert in (0, 15):
            name = f"layers.2.ffn.experts.{expert}.w2"
            for part, stored in ((stack.codes, f"{name}.weight"), (stack.scales, f"{name}.scale")):
                file = source.checkpoint.raw(stored)
                assert part[expert].ctypes.data == file.ctypes.data and part[expert].nbytes == file.nbytes
        assert source.apart("blk.2.attn_q_a.weight").shape == source.tensors["blk.2.attn_q_a.weight"].shape[:1] + (
            FORMATS["F8_E4M3"].row_bytes(source.tensors["blk.2.attn_q_a.weight"].dims[0]),)  # fmt: skip
        for converted in ("token_embd.weight", "blk.0.ffn_gate_tid2eid.weight", "output_norm.weight"):
            assert source.apart(converted) is None
        source.in_place = False
        assert source.apart("blk.2.ffn_down_exps.weight") is None


def test_a_checkpoint_larger_than_memory_is_refused_where_it_is_laid_out(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("ds4ref.engine.memory_bytes", lambda: 1 << 20)
    with pytest.raises(BackendError, match="backend cuda takes .* GiB of memory to lay out its weights.*ds4-quantize"):
        Engine.open(folder, backend="cuda")
    Engine.open(folder, backend="reference").close()


# ---- layouts, tensor by tensor


def one(tmp_path: Path, plans: list[PlannedTensor]) -> Checkpoint:
    write_file(tmp_path / SINGLE, plans)
    write_json(tmp_path / "config.json", {"model_type": "deepseek_v4"})
    return Checkpoint.open(tmp_path)


def laid_out(monkeypatch: pytest.MonkeyPatch, found: Checkpoint, *parts: TensorParts) -> PublishedSource:
    """A source of ``parts`` alone."""
    from ds4ref.archs.deepseek4 import published

    monkeypatch.setattr(published, "metadata", lambda config, checkpoint: [])
    monkeypatch.setattr(published, "parts", lambda config, checkpoint: list(parts))
    return PublishedSource(found)


def plan(name: str, dtype: str, array: np.ndarray) -> PlannedTensor:
    return PlannedTensor(name, dtype, array.shape, lambda: array)


@pytest.mark.parametrize(("rows", "cols"), [(128, 128), (256, 384), (1, 128), (200, 256), (576, 128)])
@pytest.mark.parametrize("suffix", ["scale", "weight_scale_inv"])
def test_fp8(tmp_path, monkeypatch, rows: int, cols: int, suffix: str) -> None:
    rng = np.random.default_rng(rows + cols)
    codes = rng.integers(0, 256, (rows, cols), dtype=np.uint8)
    codes[codes % 128 == 127] = 0
    scales = rng.integers(100, 140, (-(-rows // 128), cols // 128), dtype=np.uint8)
    found = one(tmp_path, [plan("a.weight", "F8_E4M3", codes), plan(f"a.{suffix}", "F8_E8M0", scales)])
    source = laid_out(monkeypatch, found, TensorParts("a", ("a.weight",)))
    assert source.tensors["a"].fmt.name == "F8_E4M3" and source.tensors["a"].shape == (rows, cols)
    want = [
        [E4M3.table[codes[r, c]] * E8M0.table[scales[r // 128, c // 128]] for c in range(cols)] for r in range(rows)
    ]
    got = FORMATS["F8_E4M3"].dequantize(source.raw("a")).reshape(rows, cols)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["I8", "U8", "F4"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 32), (7, 96), (130, 256)])
def test_fp4(tmp_path, monkeypatch, dtype: str, rows: int, cols: int) -> None:
    """Two codes a byte, the earlier one low; scales of 32 inputs."""
    rng = np.random.default_rng(cols)
    codes = rng.integers(0, 16, (rows, cols), dtype=np.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    scales = rng.integers(0, 250, (rows, cols // 32), dtype=np.uint8)
    shape = (rows, cols) if dtype == "F4" else packed.shape
    plans = [PlannedTensor("a.weight", dtype, shape, lambda: packed), plan("a.scale", "F8_E8M0", scales)]
    source = laid_out(monkeypatch, one(tmp_path, plans), TensorParts("a", ("a.weight",), stack=True))
    assert source.tensors["a"].fmt.name == "MXFP4" and source.tensors["a"].shape == (1, rows, cols)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    want = np.where(codes & 8, -1, 1) * table[codes & 7] * np.repeat(2.0 ** (scales.astype(float) - 127), 32, axis=1)
    got = FORMATS["MXFP4"].dequantize(source.raw("a")).reshape(rows, cols)
    np.testing.assert_array_equal(got, want.astype(np.float32))


def test_what_is_no_plain_grid_of_128_is_converted(tmp_path, monkeypatch) -> None:
    """Rows in another order, scales for other blocks and scales that are no powers of two have no place in the file."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 127, (256, 256), dtype=np.uint8)
    plans = [plan("a.weight", "F8_E4M3", codes), plan("a.scale", "F8_E8M0", np.full((2, 2), 120, np.uint8)),
             plan("b.weight", "F8_E4M3", codes), plan("b.scale", "F8_E8M0", np.full((1, 2), 120, np.uint8)),
             plan("c.weight", "F8_E4M3", codes), plan("c.scale", "F32", np.full((2, 2), 0.5, np.float32))]  # fmt: skip
    parts = [TensorParts(name, (f"{name}.weight",)) for name in "abc"]
    parts.append(TensorParts("e", ("a.weight",), np.arange(256)[::-1]))
    source = laid_out(monkeypatch, one(tmp_path, plans), *parts)
    assert [source.apart(name) is not None for name in "abce"] == [True, False, False, False]
    made = sum(source.tensors[name].nbytes for name in "bce")
    assert source.made_bytes == made
    np.testing.assert_array_equal(np.asarray(source.apart("a")).reshape(-1), source.raw("a"))


REFUSED = {
    "an integer over 32 bits": ([("a.weight", "I64", np.array([[1, 2**40]]))], "holds 1099511627776"),
    "an integer below": ([("a.weight", "I64", np.array([-(2**31) - 1]))], "more than 32 bits"),
    "FP8 cubes": ([("a.weight", "F8_E4M3", np.zeros((2, 2, 2), np.uint8))], "3 axes"),
    "5-bit floats": ([("a.weight", "F8_E5M2", np.zeros((2, 2), np.uint8))], "F8_E5M2, which is not a supported"),
    "booleans": ([("a.weight", "BOOL", np.zeros((2, 2), np.uint8))], "BOOL"),
    "doubles": ([("a.weight", "F64", np.zeros((2, 2)))], "F64"),
    "bytes without scales": ([("a.weight", "I8", np.zeros((2, 32), np.uint8))], "I8, which is not a supported"),
    "floats with scales": (
        [("a.weight", "F32", np.zeros((2, 32), np.float32)), ("a.scale", "F8_E8M0", np.zeros((1, 1), np.uint8))],
        "F32 with scales"),
    "FP8 without scales": (
        [("a.weight", "F8_E4M3", np.zeros((128, 128), np.uint8))],
        "F8_E4M3 without its scales, 'a.weight_scale_inv' or 'a.scale'"),
    "FP8 with scales of another name": (
        [("a.weight", "F8_E4M3", np.zeros((128, 128), np.uint8)),
         ("a.weight_scale", "F32", np.ones((1, 1), np.float32))], "F8_E4M3 without its scales"),
    "too few scales": (
        [("a.weight", "F8_E4M3", np.zeros((300, 128), np.uint8)), ("a.scale", "F8_E8M0", np.zeros((7, 1), np.uint8))],
        "do not fit"),
    "flat scales": (
        [("a.weight", "F8_E4M3", np.zeros((128, 128), np.uint8)), ("a.scale", "F8_E8M0", np.zeros(1, np.uint8))],
        "do not fit"),
    "scales of integers": (
        [("a.weight", "F8_E4M3", np.zeros((128, 128), np.uint8)), ("a.scale", "I32", np.zeros((1, 1), np.int32))],
        "scales are not I32"),
    "a NaN scale": (
        [("a.weight", "F8_E4M3", np.zeros((128, 128), np.uint8)), ("a.scale", "F8_E8M0", np.full((1, 1), 255, "u1"))],
        "NaN scale"),
    "FP4 with a NaN scale": (
        [("a.weight", "I8", np.zeros((1, 32), np.uint8)), ("a.scale", "U8", np.full((1, 2), 255, "u1"))], "NaN scale"),
    "FP4 with scales of 16": (
        [("a.weight", "I8", np.zeros((1, 32), np.uint8)), ("a.scale", "U8", np.zeros((1, 4), np.uint8))], "do not fit"),
    "FP4 with float scales": (
        [("a.weight", "I8", np.zeros((1, 32), np.uint8)), ("a.scale", "F32", np.zeros((1, 2), np.float32))],
        "do not fit"),
    "nothing": ([("a.weight", "F32", np.zeros((0, 4), np.float32))], "is empty"),
    "no such tensor": ([("b.weight", "F32", np.zeros((2, 4), np.float32))], "'a.weight' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_layout_holds_is_one_line(tmp_path, monkeypatch, case: str) -> None:
    tensors, match = REFUSED[case]
    found = one(tmp_path, [plan(*tensor) for tensor in tensors])
    with pytest.raises(ModelFileError, match=match) as caught:
        laid_out(monkeypatch, found, TensorParts("a", ("a.weight",))).raw("a")
    assert "\n" not in str(caught.value)


# ---- the generator's own rounding


def test_only_one_limit_can_be_published(folder: Path, tmp_path: Path, monkeypatch) -> None:
    from dataclasses import replace

    from ds4ref.errors import UsageError

    with open_source(folder) as source:
        shape = checkpoint.ModelShape.from_metadata(source)
        other = replace(shape, swiglu_limit=(9.0, *shape.swiglu_limit[1:]))
        monkeypatch.setattr(checkpoint.ModelShape, "from_metadata", lambda _: other)
        with pytest.raises(UsageError, match="one SwiGLU limit"):
            write_checkpoint(source, tmp_path / "x")
    assert not (tmp_path / "x").exists()


# ---- config.json


class Metadata:
    """A source of metadata alone, from a config."""

    def __init__(self, folder: Path, values: dict):
        from ds4ref.archs.deepseek4.published import metadata
        from ds4ref.weights.config import Config
        from ds4ref.weights.source import Metadata as Entries

        (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
        self.path = folder
        self.metadata = Entries(metadata(Config(folder / "config.json", values), Checkpoint(str(folder), folder)))


def test_without_yarn_positions_are_not_stretched(tmp_path: Path) -> None:
    shape = checkpoint.ModelShape.from_metadata(Metadata(tmp_path, {**checkpoint.config(FLASH), "rope_scaling": None}))
    assert (shape.yarn_factor, shape.yarn_orig_ctx, shape.compress_theta) == (1.0, 1 << 20, 160000.0)
