"""Inspection: the accounting of docs/explanation/model.md 13 to the byte, from the directory alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ds4ref.archs.deepseek4.shape import CONSTANTS, FLASH, KEYS
from ds4ref.archs.deepseek4.weights import expected_tensors
from ds4ref.archs.report import describe, inspect_text
from ds4ref.cli.ds4 import main as ds4
from ds4ref.errors import ModelFileError
from ds4ref.weights.writer import TensorSpec

from .modelfile import SMALL, write_model

SHARED = {
    "attn_out": 3_066_036_224,
    "attn_in": 1_820_723_200,
    "shared": 1_149_763_584,
    "compressor": 611_105_280,
    "lm_head": 562_626_560,
    "indexer": 363_331_584,
    "router": 90_218_496,
    "hc": 67_642_440,
}
EXPERTS = {"q2": 1_826_095_104, "q4": 3_652_190_208}
TOTALS = {"q2": 9_559_118_244, "q4": 11_385_213_348}


@pytest.mark.parametrize("recipe", ["q2", "q4"])
def test_bytes_read_per_token_at_flash_dimensions(tmp_path, recipe):
    path = write_model(tmp_path / "m.gguf", FLASH, recipe=recipe, metadata=FLASH.metadata(), data=True)
    read = describe(path)["decode_read"]
    assert {part: read[part] for part in SHARED} == SHARED
    assert read["experts"] == EXPERTS[recipe]
    assert sum(read.values()) == TOTALS[recipe]
    text = inspect_text(path)
    assert f"{TOTALS[recipe]:,}" in text
    assert "13,760 bytes in f32, 6,880 in f16" in text
    below = next(line for line in text.splitlines() if "total below 2052 tokens (no indexer)" in line)
    assert below.endswith(f" {TOTALS[recipe] - SHARED['indexer']:,}")
    assert "284,334,567,511" in text


def test_the_cache_at_flash_dimensions(tmp_path):
    """The figures of model.md 13 for a million tokens, and that the table is the shape's own accounting."""
    path = write_model(tmp_path / "m.gguf", FLASH, recipe="q2", metadata=FLASH.metadata(), data=True)
    facts = describe(path)
    assert [row["context"] for row in facts["kv"]] == [4096, 32768, 131072, 1048576]
    for row in facts["kv"]:
        n = row.pop("context")
        assert row == {
            "f32": FLASH.kv_bytes(n),
            "f16": FLASH.kv_bytes(n, 2),
            "read_f32": FLASH.kv_read_bytes(n),
            "read_f16": FLASH.kv_read_bytes(n, 2),
        }
        assert row["f16"] < row["f32"] <= 2 * row["f16"] and row["read_f16"] < row["read_f32"]
        line = next(line for line in inspect_text(path).splitlines() if line.split()[:1] == [str(n)])
        assert line.split()[1:] == [f"{row[key]:,}" for key in ("f32", "f16", "read_f32", "read_f16")]
    assert facts["kv_bytes_per_token"] == {"f32": 13_760, "f16": 6_880}
    assert facts["indexer_from_tokens"] == 4 * 513


def test_experts_and_tensors_without_effect_are_listed(tmp_path):
    shape = replace(SMALL, n_layers=8, ratios=(0, 0, 4, 128, 4, 128, 4, 128), swiglu_limit=(5.0,) * 4 + (7.0,) * 4)
    specs = [*expected_tensors(shape, "mixed"), TensorSpec("mtp.0.enorm.weight", "IQ3_S", (256, 2))]
    path = write_model(tmp_path / "m.gguf", shape, metadata=shape.metadata(), specs=specs, data=True)
    facts = describe(path)
    assert facts["experts"] == [
        "layers 0 to 1: gate and up IQ2_XXS, down Q2_K",
        "layers 2 to 7: gate and up Q4_K, down Q4_K",
    ]
    reason = "the drafter is a model of its own"
    assert facts["accounts"]["tensors"]["inert"] == {"mtp.0.enorm.weight": reason}
    assert len(facts["accounts"]["tensors"]["computed"]) == len(specs) - 1
    text = inspect_text(path)
    used, size = sum(row["bytes"] for row in facts["tensors"]), path.stat().st_size
    assert used == sum(spec.nbytes for spec in specs[:-1]) < size
    assert f"computed with: {used:,} of {size:,} bytes ({used / size:.1%})" in text
    assert f"no effect, tensors: mtp.0.enorm.weight ({reason})" in text
    assert "SwiGLU limit 5 to 7" in text and "vocabulary  none" in text


def test_what_is_refused_is_listed_and_then_an_error(tmp_path, capsys):
    """The three groups, also of a file that no engine opens: exit code 1 and one line."""
    specs = [*expected_tensors(SMALL), TensorSpec("blk.9.attn_norm.weight", "F32", (256,))]
    odd = [("deepseek4.attention.scale", "f32", 0.5), ("general.author", "string", "x")]
    path = write_model(tmp_path / "m.gguf", metadata=[*SMALL.metadata(), *odd], specs=specs, data=True)
    with pytest.raises(ModelFileError):
        describe(path)
    assert ds4(["--inspect", str(path)]) == 1
    out, error = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if len(line.split()) == 4}
    assert rows["tensors"] == [str(len(specs) - 1), "0", "1"] and rows["metadata"][2] == "1"
    assert "no effect, metadata: general.author (describes the file)" in out
    assert "refused, metadata: deepseek4.attention.scale is 0.5: unknown here, it may change the model" in out
    assert "refused, tensors: blk.9.attn_norm.weight has no place in a deepseek4 model here" in out
    assert error.count("\n") == 1 and "attention.scale is 0.5" in error and "blk.9.attn_norm" in error


@pytest.mark.parametrize("field", CONSTANTS)
def test_a_constant_that_no_flash_file_has_is_named(tmp_path, field):
    """Also in a small model, which differs from Flash in every size."""
    alike = {name: getattr(FLASH, name) for name in CONSTANTS} | {"swiglu_limit": (10.0,) * SMALL.n_layers}
    value = 2 * alike[field] if field != "swiglu_limit" else (10.0, 10.0, 10.0, 7.0)
    path = write_model(tmp_path / "m.gguf", replace(SMALL, **alike | {field: value}), data=True)
    got, want = ("7,10", "10") if field == "swiglu_limit" else (f"{value:.10g}", f"{alike[field]:.10g}")
    assert describe(path)["constants"] == {KEYS[field]: {"value": got, "published": want}}
    said = f"{KEYS[field]} {got}, where DeepSeek V4 Flash has {want}"
    assert [line for line in inspect_text(path).splitlines() if "where DeepSeek" in line] == [f"constants   {said}"]
