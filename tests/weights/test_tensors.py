"""The binder: the right views of the right tensors, and every way a tensor list can be wrong."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.tensors import slots
from ds4ref.archs.deepseek4.weights import LayerWeights, bind, check_tensors, expected_tensors
from ds4ref.errors import ModelFileError, ShapeError
from ds4ref.kernels.formats import Matrix
from ds4ref.weights.gguf import GGUFFile

from .modelfile import SMALL, golden, write_model

SPECS = expected_tensors(SMALL)


def open_model(path, **options):
    file = GGUFFile.open(path)
    return bind(file, ModelShape.from_metadata(file), **options)


def same_values(got: Matrix | np.ndarray, t) -> None:
    gguf_quants = pytest.importorskip("gguf.quants")
    if t.tensor_type.name == "I32":
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, t.data)
        return
    want = gguf_quants.dequantize(t.data, t.tensor_type).reshape(t.shape.tolist()[::-1])
    if isinstance(got, Matrix):
        assert got.fmt == t.tensor_type.name
        assert (got.cols, got.rows, got.experts) == (*t.shape.tolist(), 0)[:3]
        got = got.dequantize()
    assert got.dtype == np.float32 and got.shape == want.shape
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["small", "tiny"])
def test_every_weight_is_the_tensor_gguf_py_reads(tmp_path, name):
    gguf = pytest.importorskip("gguf")
    path = golden(name) if name == "tiny" else write_model(tmp_path / "m.gguf")
    weights = open_model(path)
    bound = 0
    for t in gguf.GGUFReader(path).tensors:
        if t.name.startswith("blk."):
            _, layer, suffix = t.name.split(".", 2)
            owner, attr = weights.layers[int(layer)], suffix.rpartition(".")[0].replace(".", "_")
        else:
            owner, attr = weights, t.name.rpartition(".")[0]
        same_values(getattr(owner, attr), t)
        bound += 1
    held = [getattr(layer, field.name) for layer in weights.layers for field in fields(LayerWeights)]
    assert bound == sum(item is not None for item in held) + 6


def test_nothing_large_is_copied(tmp_path):
    path = write_model(tmp_path / "m.gguf")
    with GGUFFile.open(path) as file:
        weights = bind(file, SMALL)
        start = file.raw("token_embd.weight").__array_interface__["data"][0] - file.tensors["token_embd.weight"].offset
        for slot in slots(SMALL):
            if slot.name not in file.tensors or slot.attr.endswith("_ape"):
                continue
            held = getattr(weights if slot.layer is None else weights.layers[slot.layer], slot.attr)
            array = held.data if isinstance(held, Matrix) else held
            assert array.__array_interface__["data"][0] - start == file.tensors[slot.name].offset
            assert not array.flags.writeable


def test_several_shared_experts_are_stored_as_one_wide_one(tmp_path):
    shape = replace(SMALL, n_shared=3)
    layer = bind(GGUFFile.open(write_model(tmp_path / "m.gguf", shape)), shape).layers[1]
    for matrix in (layer.ffn_gate_shexp, layer.ffn_up_shexp):
        assert (matrix.rows, matrix.cols) == (3 * SMALL.expert_ff, SMALL.dim)
    assert (layer.ffn_down_shexp.rows, layer.ffn_down_shexp.cols) == (SMALL.dim, 3 * SMALL.expert_ff)
    changed = {new.name for old, new in zip(SPECS, expected_tensors(shape), strict=True) if old != new}
    assert changed == {f"blk.{i}.ffn_{part}_shexp.weight" for i in range(4) for part in ("gate", "up", "down")}


# Of SMALL, by hand (docs/explanation/model.md 2.2): dims with rows first to last in memory, format of the recipe q2.
EVERY_LAYER = """
    hc_attn_fn 1024,24 F16           hc_attn_scale 3 F32              hc_attn_base 24 F32
    attn_norm 256 F32                attn_q_a 256,64 Q8_0             attn_q_a_norm 64 F32
    attn_q_b 64,384 Q8_0             attn_kv 256,192 Q8_0             attn_kv_a_norm 192 F32
    attn_sinks 2 F32                 attn_output_a 192,96 Q8_0        attn_output_b 96,256 Q8_0
    hc_ffn_fn 1024,24 F16            hc_ffn_scale 3 F32               hc_ffn_base 24 F32
    ffn_norm 256 F32                 ffn_gate_inp 256,5 F16
    ffn_gate_exps 256,512,5 IQ2_XXS  ffn_up_exps 256,512,5 IQ2_XXS    ffn_down_exps 512,256,5 Q2_K
    ffn_gate_shexp 256,512 Q8_0      ffn_up_shexp 256,512 Q8_0        ffn_down_shexp 512,256 Q8_0"""
SOME_LAYERS = {
    0: "ffn_gate_tid2eid 3,67 I32",
    2: """attn_compressor_kv 256,384 F16       attn_compressor_gate 256,384 F16     attn_compressor_ape 384,4 F16
          attn_compressor_norm 192 F32         indexer.attn_q_b 64,384 F16          indexer.proj 256,3 F16
          indexer_compressor_kv 256,256 F16    indexer_compressor_gate 256,256 F16  indexer_compressor_ape 256,4 F16
          indexer_compressor_norm 128 F32""",
    3: """attn_compressor_kv 256,192 F16       attn_compressor_gate 256,192 F16     attn_compressor_ape 192,128 F16
          attn_compressor_norm 192 F32""",
}
MODEL = """token_embd 256,67 F16   output_hc_base 4 F32  output_hc_fn 1024,4 F16  output_hc_scale 1 F32
           output_norm 256 F32     output 256,67 Q8_0"""


def test_the_tensors_of_a_model_are_those_of_its_description():
    """A wrong dimension here and in the file that a quantizer writes would agree with each other."""

    def read(text, prefix):
        words = text.split()
        return {
            f"{prefix}{name}.weight": (tuple(map(int, dims.split(","))), fmt)
            for name, dims, fmt in zip(words[::3], words[1::3], words[2::3], strict=True)
        }

    wanted = read(MODEL, "")
    for layer in range(4):
        wanted |= read(EVERY_LAYER + "\n" + SOME_LAYERS.get(layer, ""), f"blk.{layer}.")
        wanted |= {f"blk.{layer}.exp_probs_b.bias": ((5,), "F32")} if layer else {}
    assert {spec.name: (spec.dims, spec.fmt) for spec in SPECS} == wanted


def test_each_kind_of_tensor_is_needed_with_its_dims_and_format(tmp_path):
    """One of every name; a layer's number makes no difference."""
    others = {"F32": "I32", "F16": "I16", "Q8_0": "Q8_1", "I32": "F32", "IQ2_XXS": "Q5_1", "Q2_K": "Q8_K"}
    kinds = {re.sub(r"blk\.\d\.", "", spec.name): spec for spec in SPECS if not spec.name.endswith("bias")}
    assert len(kinds) == 23 + 10 + 1 + 6
    for spec in kinds.values():
        spoiled = [
            None,
            replace(spec, dims=(spec.dims[0] * 2, *spec.dims[1:])),
            replace(spec, dims=(*spec.dims[:-1], spec.dims[-1] + (32 if len(spec.dims) == 1 else 1))),
            replace(spec, dims=(*spec.dims, 1)),
            replace(spec, fmt=others[spec.fmt]),
        ]
        for wrong in spoiled:
            specs = [wrong if s is spec else s for s in SPECS if s is not spec or wrong]
            path = write_model(tmp_path / "m.gguf", specs=specs, data=True)
            with GGUFFile.open(path) as file, pytest.raises(ShapeError) as caught:
                check_tensors(file, SMALL)
            assert spec.name in caught.value.reason
            assert ("missing" in caught.value.reason) == (wrong is None)


def test_the_selection_bias_is_optional_and_only_the_mtp_block_is_left_out(tmp_path):
    specs = [s for s in SPECS if not s.name.endswith("bias")]
    specs.append(replace(SPECS[0], name="mtp.0.e_proj.weight", dims=(8, 8)))
    path = write_model(tmp_path / "m.gguf", specs=specs)
    assert all(layer.exp_probs_b is None for layer in open_model(path).layers)
    for foreign in ("blk.4.attn_kv.weight", "blk.0.attn_kv.bias", "blk.3.nextn.eh_proj.weight", "output.bias",
                    "blk.4.exp_probs_b.bias", "blk.0.attn_compressor_kv.weight"):  # fmt: skip
        path = write_model(tmp_path / "m.gguf", specs=[*specs, replace(SPECS[0], name=foreign, dims=(8, 8))])
        with pytest.raises(ShapeError, match=f"{foreign} has no place in a deepseek4 model here"):
            open_model(path)


def test_scales_of_large_files_are_verified_on_request_only(tmp_path, monkeypatch):
    """Above the size limit a NaN block scale passes binding, unless verify=True; a NaN in a vector never does."""
    monkeypatch.setattr("ds4ref.archs.binding.VERIFY_BYTES", 0)
    spec = next(s for s in SPECS if s.name == "blk.1.attn_kv.weight")
    raw = np.zeros(spec.nbytes, np.uint8)
    raw[68:70] = 0xFF  # the scale of block 2
    path = write_model(tmp_path / "m.gguf", data={spec.name: raw})
    open_model(path)
    with GGUFFile.open(path) as file, pytest.raises(ModelFileError, match="attn_kv.weight' holds a NaN") as caught:
        bind(file, SMALL, verify=True)
    assert caught.value.offset == file.tensors[spec.name].offset + 68
    path = write_model(tmp_path / "m.gguf", data={"output_norm.weight": np.full(256, np.nan, np.float32)})
    with pytest.raises(ModelFileError, match="output_norm"):
        open_model(path)
