"""Folders in GPTQ and AWQ: every weight bit for bit, logits beside the same folder in float32, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ds4ref.archs.dense.shape import DenseShape
from ds4ref.cli.ds4 import main as ds4
from ds4ref.cli.quantize import main as quantize
from ds4ref.engine import Engine
from ds4ref.errors import ModelFileError
from ds4ref.weights import open_source, packed4
from ds4ref.weights.config import Config
from ds4ref.weights.published import PublishedSource
from ds4ref.weights.safetensors import Checkpoint
from ds4ref.weights.safetensors_writer import PlannedTensor, write_file

from . import dense, families
from .packed4 import Kind, dequantized, draw, folders

SHAPE = DenseShape(
    dense.FAMILIES["llama"], n_layers=1, dim=128, ff=256, n_heads=8, n_kv_heads=2, head_dim=16, vocab=67,
    trained_ctx=128, rope_theta=1e4, rms_eps=1e-5, name="packed",
)  # fmt: skip
IDS = [1, 5, 9, 66, 3, 40]
DOWN = "model.layers.0.mlp.down_proj"
KINDS = {
    "gptq": (Kind(), "Q4_0"),
    "gptq 64": (Kind(group=64), "Q4_0"),
    "gptq 128": (Kind(group=128), "Q4_0"),
    "gptq, one group": (Kind(group=-1), "Q4_0"),
    "gptq v2": (Kind(v2=True), "Q4_0"),
    "gptq, zero points": (Kind(group=64, symmetric=False), "Q5_0"),
    "gptq v2, zero points": (Kind(symmetric=False, v2=True), "Q5_0"),
    "gptq, groups below a block": (Kind(group=16), "F32"),
    "gptq, ordered": (Kind(ordered=True), "F32"),
    "gptq 64, ordered, zero points": (Kind(group=64, symmetric=False, ordered=True), "F32"),
    "gptq, ordered in one group": (Kind(group=-1, ordered=True), "Q4_0"),
    "awq": (Kind("awq", 128, symmetric=False), "Q5_0"),
    "awq 32": (Kind("awq", 32, symmetric=False), "Q5_0"),
    "awq 64": (Kind("awq", 64, symmetric=False), "Q5_0"),
    "awq, one group": (Kind("awq", -1, symmetric=False), "Q5_0"),
    "awq, all zero points 8": (Kind("awq", 64), "Q4_0"),
}


def stored_in(path: Path) -> set[str]:
    """Formats of the matrices of layers."""
    with open_source(path) as source:
        return {info.fmt.name for name, info in source.tensors.items() if ".attn_" in name or ".ffn_" in name
                if len(info.dims) > 1}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_weight_and_the_logits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through several steps of the conversion. Weights exactly; logits exactly on float64's backend, at the bar of mode
    exact on the CPU's."""
    kind, fmt = KINDS[name]
    monkeypatch.setattr(packed4, "_STEP_WEIGHTS", 128 * 24)
    packed, plain, _ = folders(tmp_path, SHAPE, kind)
    assert stored_in(packed) == {fmt}
    with open_source(packed) as ours, open_source(plain) as wanted:
        assert ours.tensors.keys() == wanted.tensors.keys()
        for tensor, info in ours.tensors.items():
            got = info.fmt.dequantize(ours.raw(tensor))
            assert np.array_equal(got, wanted.raw(tensor).view("<f4")), tensor
    for backend, bar in (("reference", 0.0), ("cpu", 1e-5)):
        logits = []
        for folder in (packed, plain):
            with Engine.open(folder, backend=backend, numerics="exact") as engine:
                logits.append(engine.logits(IDS))
        assert logits[0].std() > 0.3 and np.abs(logits[0] - logits[1]).max() <= bar * logits[1].std()


@pytest.mark.parametrize("name", KINDS)
def test_a_matrix_beside_its_dequantization(name: str) -> None:
    """The folder's values in these tests are what its tensors mean, one weight at a time."""
    kind = KINDS[name][0]
    tensors, values = draw(3, 16, 128, kind)
    assert np.array_equal(dequantized(tensors, kind), values)
    falls = "g_idx" in tensors and bool((np.diff(tensors["g_idx"]) < 0).any())
    assert falls is (kind.ordered and kind.group > 0)


GOLDEN = Path(__file__).parents[1] / "data" / "packed4.npz"


@pytest.mark.parametrize(
    ("name", "kind", "fmt"),
    [
        ("gptq", Kind(symmetric=False), "Q5_0"),
        ("gptq 64", Kind(group=64, symmetric=False), "Q5_0"),
        ("gptq ordered", Kind(symmetric=False, ordered=True), "F32"),
        ("awq", Kind("awq", symmetric=False), "Q5_0"),
        ("awq 128", Kind("awq", 128, symmetric=False), "Q5_0"),
    ],
)
def test_auto_gptq_and_autoawq_dequantize_alike(name: str, kind: Kind, fmt: str, tmp_path: Path) -> None:
    """Their float16 products are ours, rounded. GPTQ's newer format holds the same with zero points of one more."""
    with np.load(GOLDEN) as golden:
        parts = {key.split(".")[1]: golden[key] for key in golden.files if key.split(".")[0] == name}
    wanted = parts.pop("weight").T
    kinds = [kind, kind._replace(v2=True)] if kind.method == "gptq" else [kind]
    for one in kinds:
        tensors = {**parts, "qzeros": parts["qzeros"] + np.int32(0x11111111) * one.v2}
        assert np.array_equal(dequantized(tensors, one).astype(np.float16), wanted)
        save_file({f"x.{part}": values for part, values in tensors.items()}, tmp_path / "model.safetensors")
        config = Config("config.json", {"quantization_config": one.config})
        with Checkpoint.open(tmp_path) as checkpoint:
            packing = packed4.packing_of(config)
            assert packing is not None
            layout = packed4.packed_layout(checkpoint, packing, "x")
            assert layout.fmt.name == fmt and layout.shape == wanted.shape
            values = layout.fmt.dequantize(layout.bytes().reshape(len(wanted), -1))
        assert np.array_equal(values.astype(np.float16), wanted)


FAMILIES: dict[str, tuple[DenseShape, dict[str, Any]]] = {
    "mistral": (replace(SHAPE, window=3), {"model_type": "mistral", "sliding_window": 3}),
    "qwen2": (replace(SHAPE, family=dense.FAMILIES["qwen2"]), {"model_type": "qwen2"}),
    "qwen3": (replace(SHAPE, family=dense.FAMILIES["qwen3"]), {"model_type": "qwen3"}),
    "mixtral": (
        replace(SHAPE, n_experts=3, n_used=2, expert_ff=256),
        {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None},
    ),
}
DRAWN = {"gemma3": 12, "llama3": 3, "mistral": 3, "qwen2": 3, "qwen3": 3, "qwen3moe": 2}
"""Seeds of small models whose widths are multiples of 32, with windows or stretched rope."""


@pytest.mark.parametrize(
    "kind", [Kind(group=64), Kind(symmetric=False, ordered=True), Kind("awq", 64, symmetric=False)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, kind: Kind, tmp_path: Path) -> None:
    """Biases of their own are added, those of zeros are none; experts are stacked."""
    shape, config = FAMILIES[family]
    packed, plain, _ = folders(tmp_path, shape, kind, **config)
    logits = []
    for folder in (packed, plain):
        with Engine.open(folder, backend="reference", numerics="exact") as engine:
            logits.append(engine.logits(IDS))
    assert logits[0].std() > 0.3 and np.array_equal(*logits)


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_folders(name: str, tmp_path: Path) -> None:
    model = families.draw(name, DRAWN[name], block=32)
    logits = []
    for folder in folders(tmp_path, model.shape, Kind("awq", symmetric=False), **model.config)[:2]:
        with Engine.open(folder, backend="reference", numerics="exact") as engine:
            logits.append(engine.logits(model.ids))
    assert logits[0].std() > 0.3 and np.array_equal(*logits)


def test_a_packed_head(tmp_path: Path) -> None:
    kind = Kind(symmetric=False)
    packed, plain, _ = folders(tmp_path, replace(SHAPE, vocab=72), kind)
    parts, values = draw(77, 72, 128, kind)
    for folder, some in ((packed, parts), (plain, {"weight": values})):
        tensors = load_file(folder / "model.safetensors")
        del tensors["lm_head.weight"]
        save_file({**tensors, **{f"lm_head.{k}": v for k, v in some.items()}}, folder / "model.safetensors")
    logits = []
    for folder in (packed, plain):
        with Engine.open(folder, backend="reference", numerics="exact") as engine:
            logits.append(engine.logits([1, 5, 71]))
    assert np.array_equal(*logits)


def test_scales_of_other_types(tmp_path: Path) -> None:
    """Float32 ones that float16 holds are scales of blocks; others make float32 rows, unrounded."""
    packed, _, values = folders(tmp_path, SHAPE, Kind())
    tensors = load_file(packed / "model.safetensors")
    scales = tensors[DOWN + ".scales"].astype(np.float32)
    for factor, fmt in ((1.0, "Q4_0"), (1 + 2.0**-12, "F32"), (2.0**22, "F32")):
        save_file({**tensors, DOWN + ".scales": scales * np.float32(factor)}, packed / "model.safetensors")
        with open_source(packed) as source:
            info = source.tensors["blk.0.ffn_down.weight"]
            assert info.fmt.name == fmt
            wanted = (scales * np.float32(factor)).repeat(32, axis=0).T
            codes = values[DOWN + ".weight"] / scales.repeat(32, axis=0).T
            got = info.fmt.dequantize(source.raw("blk.0.ffn_down.weight")).reshape(info.shape)
            assert np.array_equal(got, wanted * np.rint(codes))


def test_scales_in_bfloat16(tmp_path: Path) -> None:
    """Which has the wider range: below 2^-14 F16 may not hold them."""
    packed, _, values = folders(tmp_path, SHAPE, Kind())
    tensors = load_file(packed / "model.safetensors")
    scales = tensors.pop(DOWN + ".scales").astype(np.float32)
    codes = np.rint(values[DOWN + ".weight"] / scales.repeat(32, axis=0).T)
    dtypes = {"<f4": "F32", "<f2": "F16", "<i4": "I32"}
    for factor, fmt in ((1.0, "Q4_0"), (2.0**-20, "F32")):
        halves = ((scales * np.float32(factor)).view(np.uint32) >> 16).astype(np.uint16)
        plans = [
            PlannedTensor(name, dtypes[array.dtype.str], array.shape, lambda array=array: array)
            for name, array in tensors.items()
        ]
        plans.append(PlannedTensor(DOWN + ".scales", "BF16", halves.shape, lambda halves=halves: halves))
        write_file(packed / "model.safetensors", plans)
        with open_source(packed) as source:
            info = source.tensors["blk.0.ffn_down.weight"]
            got = info.fmt.dequantize(source.raw(info.name)).reshape(info.shape)
        wanted = (halves.astype(np.uint32) << 16).view(np.float32).repeat(32, axis=0).T * codes
        assert info.fmt.name == fmt and np.array_equal(got, wanted)


def test_memory_of_the_rows_is_stated(tmp_path: Path) -> None:
    """Rows of 18, 22 and 128 bytes for 32 weights; the rest of the folder is read where it lies."""
    weights = 128 * (128 + 32 + 32 + 128) + 3 * 128 * 256
    for number, (kind, nbytes) in enumerate(
        [(Kind(), 18), (Kind(symmetric=False), 22), (Kind("awq", symmetric=False), 22), (Kind(ordered=True), 128)]
    ):
        (tmp_path / str(number)).mkdir()
        packed, _, _ = folders(tmp_path / str(number), SHAPE, kind)
        with PublishedSource.open(packed) as source:
            assert source.made_bytes == weights // 32 * nbytes
            assert source.apart("blk.0.ffn_down.weight") is None


def test_a_gguf_is_made_of_such_a_folder(tmp_path: Path) -> None:
    """Without a recipe the rows are copied, so that its logits are the folder's; with one they are quantized again."""
    for kind, fmt in ((Kind(), "Q4_0"), (Kind("awq", 64, symmetric=False), "Q5_0"), (Kind(ordered=True), "F32")):
        here = tmp_path / fmt
        here.mkdir()
        packed, _, _ = folders(here, SHAPE, kind)
        assert quantize([str(packed), "-o", str(here / "m.gguf")]) == 0
        assert quantize([str(packed), "-o", str(here / "q8.gguf"), "--recipe", "q8"]) == 0
        assert stored_in(here / "m.gguf") == {fmt} and stored_in(here / "q8.gguf") == {"Q8_0"}
        logits = []
        for model in (packed, here / "m.gguf", here / "q8.gguf"):
            with Engine.open(model, backend="reference", numerics="exact") as engine:
                logits.append(engine.logits(IDS))
        assert np.array_equal(logits[0], logits[1])
        assert 0 < np.abs(logits[2] - logits[0]).max() < 0.3 * logits[0].std()


def test_inspect_accounts_for_keys_and_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, _, _ = folders(tmp_path, SHAPE, Kind())
    assert ds4(["--inspect", str(packed)]) == 0
    out = capsys.readouterr().out
    tensors, size = load_file(packed / "model.safetensors"), (packed / "model.safetensors").stat().st_size
    used = sum(values.nbytes for name, values in tensors.items() if not name.endswith(".bias"))
    assert f"computed with: {used:,} of {size:,} bytes" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if len(line.split()) == 4}
    assert rows["tensors"] == [str(len(tensors) - 7), "7", "0"] and rows["config.json"][1:] == ["4", "0"]
    assert "quantization_config.sym (the zero points say it)" in out and "(a bias of zeros)" in out


Q = "model.layers.0.self_attn.q_proj"
CONFIGS: dict[str, tuple[Kind, dict[str, Any], str]] = {
    "8 bits": (Kind(), {"bits": 8}, "quantization_config.bits is 8, wanted 4"),
    "3 bits": (Kind(), {"bits": 3}, "quantization_config.bits is 3, wanted 4"),
    "no bits": (Kind(), {"bits": None}, "quantization_config.bits is missing"),
    "no group": (Kind(), {"group_size": None}, "quantization_config.group_size is missing"),
    "an empty group": (Kind(), {"group_size": 0}, "quantization_config.group_size is 0"),
    "a negative group": (Kind(), {"group_size": -2}, "quantization_config.group_size is -2"),
    "a group of no divisor": (Kind(), {"group_size": 48}, "128 inputs, which are no multiple of groups of 48"),
    "a larger group": (Kind(), {"group_size": 256}, "128 inputs, which are no multiple of groups of 256"),
    "another group": (Kind(), {"group_size": 64}, "qzeros' is of [4, 16], wanted [2, 16]"),
    "words of 64 bits": (Kind(), {"pack_dtype": "int64"}, "pack_dtype is 'int64', wanted 'int32'"),
    "marlin": (Kind(), {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin', wanted 'gptq' or 'gptq_v2'"),
    "marlin, older": (Kind(), {"is_marlin_format": True}, "is_marlin_format is true, only false is computed"),
    "two packings": (Kind(), {"format": "gptq_v2"}, "format is 'gptq_v2', checkpoint_format is 'gptq'"),
    "other bits for some": (Kind(), {"dynamic": {"q_proj": {"bits": 8}}}, "dynamic.q_proj.bits is 8: unknown"),
    "an order that is denied": (Kind(ordered=True), {"desc_act": False}, "has an order, but desc_act is false"),
    "gemv": (Kind("awq"), {"version": "gemv"}, "version is 'gemv', wanted 'gemm'"),
    "awq of 8 bits": (Kind("awq"), {"bits": 8}, "bits is 8, wanted 4"),
    "awq without zero points": (Kind("awq"), {"zero_point": False}, "zero_point is false, wanted true"),
    "awq with an order": (Kind("awq"), {"desc_act": True}, "desc_act is true, only false is computed"),
    "awq as gptq": (Kind("awq"), Kind().config, "qzeros' is of [4, 16], wanted [32, 2]"),
    "another method": (Kind(), {"quant_method": "hqq"}, "is 'hqq', wanted 'fp8' or 'gptq' or 'awq'"),
    "fp8": (Kind(), {"quant_method": "fp8"}, "qweight' is packed, and quantization_config names none of gptq, awq"),
    "another family": (Kind(), {}, "quant_method is 'gptq', wanted 'fp8'"),
}


def refusal(path: Path) -> str:
    """The one line that a folder is refused with."""
    with pytest.raises(ModelFileError) as error:
        Engine.open(path, backend="reference")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("case", CONFIGS)
def test_configs_that_are_refused(case: str, tmp_path: Path) -> None:
    kind, changes, says = CONFIGS[case]
    packed, _, _ = folders(tmp_path, SHAPE, kind)
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] |= changes
    config["model_type"] = "deepseek_v4" if case == "another family" else "llama"
    (packed / "config.json").write_text(json.dumps(config))
    assert says in refusal(packed)


def changed(values: np.ndarray, at: Any, value: Any) -> np.ndarray:
    out = values.copy()
    out[at] = value
    return out


TENSORS: dict[str, tuple[Kind, str, Any, str]] = {
    "no zero points": (Kind(), "qzeros", None, f"'{Q}.qweight' is without '{Q}.qzeros'"),
    "no scales": (Kind("awq"), "scales", None, f"'{Q}.qweight' is without '{Q}.scales'"),
    "no codes": (Kind(), "qweight", None, "q_proj.g_idx has no place in a llama model"),
    "no order": (Kind(ordered=True), "g_idx", None, "is without 'model.layers.0.self_attn.q_proj.g_idx', and desc_act"),
    "an order of awq": (Kind("awq"), "g_idx", lambda _: np.arange(128, dtype=np.int32) // 32, "g_idx has no place"),
    "fewer zero points": (Kind(), "qzeros", lambda v: v[:-1].copy(), "qzeros' is of [3, 16], wanted [4, 16]"),
    "zero points unpacked": (Kind(), "qzeros", lambda v: v.repeat(8, 1), "qzeros' is of [4, 128], wanted [4, 16]"),
    "zero points of 16 bits": (Kind(), "qzeros", lambda v: v.astype(np.int16), "qzeros' is I16, wanted I32"),
    "more scales": (Kind(), "scales", lambda v: v.repeat(2, 0), "scales' is of [8, 128], wanted [4, 128]"),
    "scales of integers": (Kind(), "scales", lambda v: v.view(np.int16), "scales' is I16, wanted F16 or BF16 or F32"),
    "codes of bytes": (Kind(), "qweight", lambda v: v.view(np.uint8), "qweight' is U8, wanted I32"),
    "codes of one axis": (Kind(), "qweight", lambda v: v.reshape(-1), "qweight' is of [2048], wanted a matrix"),
    "codes of no rows": (Kind(), "qweight", lambda v: v[:0].copy(), "qweight' is of [0, 128], wanted a matrix"),
    "fewer inputs": (Kind(), "qweight", lambda v: v[:-4].copy(), "qzeros' is of [4, 16], wanted [3, 16]"),
    "fewer outputs": (Kind(), "qweight", lambda v: v[:, 4:].copy(), "qweight' has 124 outputs, no multiple of 8"),
    "an order too short": (Kind(), "g_idx", lambda v: v[:-1].copy(), "g_idx' is of [127], wanted [128]"),
    "an order of 64 bits": (Kind(), "g_idx", lambda v: v.astype(np.int64), "g_idx' is I64, wanted I32"),
    "a negative group": (Kind(ordered=True), "g_idx", lambda v: changed(v, 5, -1), "input 5 into group -1 of 4"),
    "a group too many": (Kind(ordered=True), "g_idx", lambda v: changed(v, 127, 4), "input 127 into group 4 of 4"),
    "a weight as well": (Kind(), "weight", lambda _: np.zeros((128, 128), np.float32), "one of them is too many"),
    "a bias that counts": (Kind(), "bias", lambda v: changed(v, 127, 1), "q_proj.bias has no place in a llama model"),
    "a stored zero point of 15": (Kind(), "qzeros", lambda v: changed(v, (3, 15), 0x7777F777), "zero point of 15 + 1"),
    "an infinite scale": (Kind(), "scales", lambda v: changed(v, (3, 127), np.inf), "NaN or infinite scale"),
    "a NaN scale": (Kind(ordered=True), "scales", lambda v: changed(v, (0, 0), np.nan), "NaN or infinite value"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_refused(case: str, tmp_path: Path) -> None:
    kind, part, change, says = TENSORS[case]
    packed, _, _ = folders(tmp_path, SHAPE, kind)
    tensors = load_file(packed / "model.safetensors")
    values = tensors.pop(f"{Q}.{part}", None)
    if change is not None:
        tensors[f"{Q}.{part}"] = change(values)
    save_file(tensors, packed / "model.safetensors")
    assert says in refusal(packed)
    if "NaN" not in says:
        assert ds4(["-m", str(packed), "-p", "x"]) == 1


@pytest.mark.parametrize("kind", [Kind(), Kind("awq")])
def test_one_zero_point_of_another_value(kind: Kind, tmp_path: Path) -> None:
    """The last of the last group makes five bits of the whole matrix, not of others."""
    packed, _, _ = folders(tmp_path, SHAPE, kind)
    tensors = load_file(packed / "model.safetensors")
    tensors[DOWN + ".qzeros"][-1, -1] += 1 << 20
    save_file(tensors, packed / "model.safetensors")
    parts = {part: tensors[f"{DOWN}.{part}"] for part in ("qweight", "qzeros", "scales")}
    with open_source(packed) as source:
        info = source.tensors["blk.0.ffn_down.weight"]
        got = info.fmt.dequantize(source.raw(info.name)).reshape(info.shape)
        assert info.fmt.name == "Q5_0" and source.tensors["blk.0.ffn_up.weight"].fmt.name == "Q4_0"
    assert np.array_equal(got, dequantized(parts, kind))


def test_zero_points_at_the_edges(tmp_path: Path) -> None:
    """Stored 0 and 14 of "gptq" are 1 and 15; 15 of "gptq_v2" is 15; without g_idx inputs are in their own order."""
    for number, (v2, word, zero) in enumerate(
        [(False, 0, 1), (False, 0x6EEEEEEE, (15, 7)), (True, -1, 15), (True, 0, 0)]
    ):
        (tmp_path / str(number)).mkdir()
        packed, _, _ = folders(tmp_path / str(number), SHAPE, Kind(v2=v2))
        tensors = load_file(packed / "model.safetensors")
        del tensors[DOWN + ".g_idx"]
        tensors[DOWN + ".qzeros"][:] = word
        save_file(tensors, packed / "model.safetensors")
        zeros = np.resize([zero] * 8 if isinstance(zero, int) else [zero[0]] * 7 + [zero[1]], 128)
        codes = np.array([[int(w) >> 4 * i & 15 for w in row] for row in tensors[DOWN + ".qweight"] for i in range(8)])
        wanted = tensors[DOWN + ".scales"].astype(np.float32).repeat(32, axis=0) * (codes - zeros)
        with open_source(packed) as source:
            info = source.tensors["blk.0.ffn_down.weight"]
            got = info.fmt.dequantize(source.raw(info.name)).reshape(info.shape)
        assert info.fmt.name == "Q5_0" and np.array_equal(got, wanted.T)
