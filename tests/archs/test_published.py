"""The same model as a checkpoint and as a GGUF: what the layouts hold, and that the engine computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import FLASH, check_published
from ds4ref.engine import Engine
from ds4ref.errors import BackendError, ModelFileError
from ds4ref.kernels.formats import FORMATS, ApartRows
from ds4ref.kernels.formats.f8_e4m3 import E4M3, E8M0
from ds4ref.nano import checkpoint
from ds4ref.nano.checkpoint import to_bf16, to_fp4, to_fp8, write_checkpoint
from ds4ref.weights import open_source
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.published import PublishedSource, TensorParts
from ds4ref.weights.safetensors import SINGLE, Checkpoint
from ds4ref.weights.safetensors_writer import PlannedTensor, write_file, write_json
from ds4ref.weights.writer import GGUFWriter

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
        with GGUFWriter(path, entries, specs) as out:
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


def test_the_tokenizer_is_the_gguf_s(folder: Path, nano_path: str) -> None:
    with Engine.open(folder, backend="reference") as ours, Engine.open(nano_path, backend="reference") as theirs:
        text = TEXT + "<｜User｜> naïve 中文 \x00\n\n"
        assert ours.prompt(text) == theirs.prompt(text)
        assert ours.shape == theirs.shape


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("numerics", ["exact", "qat", "ds4"])
def test_in_place_are_the_bits_of_the_conversion(folder: Path, monkeypatch, backend: str, numerics: str) -> None:
    """Prefill through tiles, decode through recorded row kernels."""
    logits = []
    for apart in (PublishedSource.apart, lambda source, name: None):
        monkeypatch.setattr(PublishedSource, "apart", apart)
        with Engine.open(folder, backend=backend, numerics=numerics, threads=2) as engine:
            w = engine.model.weights.layers[-1]
            kinds = {type(m.data) for m in (w.attn_q_a, w.ffn_up_shexp, w.ffn_gate_exps, w.ffn_down_exps)}
            assert kinds == {np.ndarray if logits else ApartRows}
            ids = engine.tokenizer.encode(TEXT[:20] if backend == "reference" else TEXT)
            session = engine.session(len(ids) + 4)
            session.sync(ids)
            logits.append([session.logits.copy(), *(session.eval(token).copy() for token in (9, 77, 3))])
    np.testing.assert_array_equal(*logits)


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


def test_pieces_are_what_a_stack_is_made_of(folder: Path) -> None:
    with PublishedSource.open(folder) as source:
        name = "blk.2.ffn_up_exps.weight"
        assert source.pieces(name) == source.tensors[name].shape[0] == 16
        whole = source.raw(name).reshape(16, -1)
        for expert in (0, 7, 15):
            np.testing.assert_array_equal(source.piece(name, expert), whole[expert])
        assert source.pieces("output.weight") == 1
        np.testing.assert_array_equal(source.piece("output.weight", 0), source.raw("output.weight"))
        made = sum(
            source.tensors[n].nbytes
            for n in source.tensors
            if source.tensors[n].fmt.name in ("MXFP4", "F8_E4M3", "I32")
        )
        integers = sum(info.nbytes for info in source.tensors.values() if info.fmt.name == "I32")
        assert source.made_bytes == integers > 0
        source.in_place = False
        assert source.made_bytes == made
        assert not source.tensor_account().inert and not source.tensor_account().refused


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


@pytest.mark.parametrize(
    ("rows", "cols", "scales", "dtype"),
    [
        (64, 96, (1, 1), "F8_E8M0"),
        (64, 96, (2, 3), "F8_E8M0"),
        (130, 200, (2, 2), "F8_E8M0"),
        (128, 256, (1, 2), "F32"),
        (128, 256, (1, 2), "BF16"),
    ],
)
def test_fp8_of_other_blocks(tmp_path, monkeypatch, rows: int, cols: int, scales, dtype: str) -> None:
    rng = np.random.default_rng(cols)
    codes = rng.integers(0, 127, (rows, cols), dtype=np.uint8)
    stored = rng.uniform(0.5, 3, scales).astype(np.float32)
    if dtype == "F8_E8M0":
        stored = rng.integers(120, 130, scales, dtype=np.uint8)
    elif dtype == "BF16":
        stored = to_bf16(stored)
    values = {"F8_E8M0": lambda s: E8M0.table[s], "F32": lambda s: s}.get(
        dtype, lambda s: (s.astype(np.uint32) << 16).view(np.float32)
    )(stored)
    plans = [plan("a.weight", "F8_E4M3", codes), plan("a.weight_scale_inv", dtype, stored)]
    high = 128 if scales[0] == -(-rows // 128) else rows // scales[0]
    wide = 128 if scales[1] == -(-cols // 128) else cols // scales[1]
    factors = values[np.arange(rows)[:, None] // high, np.arange(cols) // wide]
    source = laid_out(monkeypatch, one(tmp_path, plans), TensorParts("a", ("a.weight",)))
    info = source.tensors["a"]
    got = info.fmt.dequantize(source.raw("a")).reshape(rows, cols)
    np.testing.assert_array_equal(got, (E4M3.table[codes] * factors).astype(np.float32))
    assert info.fmt.name == "F32"


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


def test_rows_in_another_order_and_stacks(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((6, 4)).astype(np.float32) for _ in range(3)]
    found = one(tmp_path, [plan(f"t{i}", "F32", array) for i, array in enumerate(arrays)])
    order = np.array([3, 1, 0, 5, 4, 2])
    source = laid_out(monkeypatch, found, TensorParts("a", ("t0",), order), TensorParts("b", ("t2", "t0", "t1"), order))
    np.testing.assert_array_equal(source.raw("a").view("<f4").reshape(6, 4), arrays[0][order])
    want = np.stack([arrays[i][order] for i in (2, 0, 1)])
    np.testing.assert_array_equal(source.raw("b").view("<f4").reshape(3, 6, 4), want)
    assert source.tensors["b"].dims == (4, 6, 3) and source.made_bytes == 4 * 6 * 4 * 4


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


def test_experts_that_differ_are_not_stacked(tmp_path, monkeypatch) -> None:
    found = one(tmp_path, [plan("a", "F32", np.zeros((2, 4), "f4")), plan("b", "F32", np.zeros((4, 2), "f4"))])
    with pytest.raises(ModelFileError, match="cannot be stacked"):
        laid_out(monkeypatch, found, TensorParts("x", ("a", "b")))


# ---- the generator's own rounding


@pytest.mark.parametrize("integers", [False, True])
def test_codes_are_the_nearest(integers: bool) -> None:
    """Against every code tried: none is nearer, and of two that are as near (integers have such) the even one is
    taken."""
    rng = np.random.default_rng(1)
    values = (rng.standard_normal((128, 128)) * np.exp(rng.normal(0, 3, (128, 128)))).astype(np.float32)
    if integers:
        values = rng.integers(-448, 449, (128, 128)).astype(np.float32)
        values[:, ::32] = 448
    eight, four = to_fp8(values), to_fp4(values)
    for codes, exponent, table in (
        (eight[0], np.broadcast_to(eight[1], (128, 128)), E4M3.table[:127].astype(np.float64)),
        (unpacked(four[0]), np.repeat(four[1], 32, axis=1), np.array([*range(4), 4, 6, 8, 12]) / 2),
    ):
        scaled = np.abs(values) / 2.0 ** (exponent.astype(np.float64) - 127)
        size = codes & (127 if len(table) > 8 else 7)
        error = np.abs(scaled[..., None] - table)
        assert (error.min(axis=2) == np.take_along_axis(error, size[..., None].astype(int), 2)[..., 0]).all()
        tie = (error == error.min(axis=2, keepdims=True)).sum(axis=2) > 1
        assert tie.any() == integers and (size[tie] % 2 == 0).all()
        assert scaled.max() <= table[-1]
        assert ((codes >= (128 if len(table) > 8 else 8)) == np.signbit(values)).all()


def unpacked(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def test_bfloat16_is_the_nearest() -> None:
    values = np.float32([0, -0.0, 1, 1.00390625, 1.01171875, 3.4e38, np.inf, -np.inf, np.nan, 1e-45, -2.5])
    got = (to_bf16(values).astype(np.uint32) << 16).view(np.float32)
    want = np.float32([0, -0.0, 1, 1.0, 1.015625, np.inf, np.inf, -np.inf, np.nan, 0, -2.5])
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_a_scale_is_the_least_that_holds_its_block() -> None:
    for most, make in ((448.0, to_fp8), (6.0, to_fp4)):
        for largest in (most, np.nextafter(most, 1e9), most / 2, most / 2 * 1.001, 1e-30, 0.0):
            values = np.zeros((128, 128), np.float32)
            values[3, 5] = -largest
            exponent = int(make(values)[1].flat[3 * 4 if make is to_fp4 else 0]) - 127
            want = 0 if largest == 0 else max(-127, int(np.ceil(np.log2(np.float32(largest) / np.float64(most)))))
            assert exponent == want, (most, largest)


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
        from ds4ref.weights.published import Metadata as Entries

        (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
        self.path = folder
        self.metadata = Entries(metadata(Config(folder / "config.json", values), Checkpoint(str(folder), folder)))


def test_a_config_of_flash_is_flash(tmp_path: Path) -> None:
    """Every key of the strict check, and one more ratio for the layer that is left out."""
    values = checkpoint.config(FLASH)
    assert check_published(Metadata(tmp_path, values)) == FLASH
    values["compress_ratios"] += [0]
    values["num_hidden_layers"] = 43.0
    assert check_published(Metadata(tmp_path, values)) == FLASH


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": None, "rope_parameters": {**checkpoint.config(FLASH)["rope_scaling"], "rope_type": "yarn"}},
        {"qk_rope_head_dim": None, "partial_rotary_factor": 0.125},
        {"num_hash_layers": None, "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40},
        {"compress_ratios": None, "layer_types": [
            {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}[ratio]
            for ratio in FLASH.ratios]},
        {"scoring_func": None, "num_key_value_heads": None, "norm_topk_prob": None},
    ],
)  # fmt: skip
def test_other_ways_to_say_the_same(tmp_path: Path, changes: dict) -> None:
    assert check_published(Metadata(tmp_path, {**checkpoint.config(FLASH), **changes})) == FLASH


def test_without_yarn_positions_are_not_stretched(tmp_path: Path) -> None:
    shape = checkpoint.ModelShape.from_metadata(Metadata(tmp_path, {**checkpoint.config(FLASH), "rope_scaling": None}))
    assert (shape.yarn_factor, shape.yarn_orig_ctx, shape.compress_theta) == (1.0, 1 << 20, 160000.0)
