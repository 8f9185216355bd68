"""Metadata to dimensions: every key, every type rule, every consistency rule, and the arithmetic of caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ds4ref.archs.deepseek4.shape import (
    FLASH,
    PREFIX,
    PRO,
    PUBLISHED,
    ModelShape,
    check_published,
    nearest,
    unlike_published,
)
from ds4ref.archs.deepseek4.tensors import expected_tensors
from ds4ref.errors import ShapeError
from tests.weights.modelfile import SMALL, open_metadata, with_metadata

WORDS = [("tokenizer.ggml.tokens", "string[]", ["a", "b"]), ("tokenizer.ggml.merges", "string[]", ["a b"])]
META = FLASH.metadata() + WORDS

# Everything that ds4 reads and demands (docs/explanation/model.md 2.1).
UINTS = """block_count embedding_length vocab_size attention.head_count attention.head_count_kv attention.key_length
    attention.value_length rope.dimension_count attention.q_lora_rank attention.output_lora_rank
    attention.output_group_count expert_count expert_used_count expert_feed_forward_length expert_shared_count
    hash_layer_count attention.sliding_window attention.indexer.head_count attention.indexer.key_length
    attention.indexer.top_k hyper_connection.count hyper_connection.sinkhorn_iterations""".split()
FLOATS = """rope.freq_base rope.scaling.factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow
    attention.compress_rope_freq_base expert_weights_scale attention.layer_norm_rms_epsilon
    hyper_connection.epsilon""".split()
OTHERS = """attention.compress_ratios swiglu_clamp_exp rope.scaling.original_context_length
    expert_weights_norm""".split()
VALUES = {key: value for key, _, value in META}


def change(tmp_path, key, kind=None, value=None, read=check_published, base=META):
    """Reads Flash metadata with one key replaced, or dropped."""
    return read(open_metadata(tmp_path, with_metadata(base, {key: (kind, value) if kind else None})))


def test_metadata_round_trip(tmp_path):
    assert check_published(open_metadata(tmp_path, META)) == FLASH
    assert ModelShape.from_metadata(open_metadata(tmp_path, META)) == FLASH
    odd = replace(SMALL, swiglu_limit=(7.0, 0.1, 1e-3, 12.5), rms_eps=3e-7, rope_theta=12345.678)
    assert ModelShape.from_metadata(open_metadata(tmp_path, odd.metadata())) == odd


EITHER = pytest.mark.parametrize("read", [check_published, ModelShape.from_metadata])


@EITHER
def test_a_missing_key_is_named(tmp_path, read):
    for key in UINTS + FLOATS + OTHERS:
        with pytest.raises(ShapeError, match=f"{PREFIX}{key} is missing"):
            change(tmp_path, PREFIX + key, read=read)


def test_strict_names_key_got_and_wanted(tmp_path):
    for key in UINTS:
        want = VALUES[PREFIX + key]
        with pytest.raises(ShapeError) as caught:
            change(tmp_path, PREFIX + key, "u32", want + 1)
        text = str(caught.value)
        assert f"{PREFIX}{key} is {want + 1}, wanted {want}" in text and "\n" not in text


@pytest.mark.parametrize("key", FLOATS)
def test_strict_floats_match_to_a_millionth_of_their_own_size(tmp_path, key):
    """ds4 compares 1e-6 keys with an absolute 1e-6, so that it takes any epsilon up to 2e-6: we do not."""
    want = VALUES[PREFIX + key]
    for factor in (1 + 1e-5, 1 - 1e-5, 2, 0.5):
        with pytest.raises(ShapeError, match=f"{PREFIX}{key} is .*, wanted {want:.10g}"):
            change(tmp_path, PREFIX + key, "f64", want * factor)
    for factor in (1, 1 + 5e-7, 1 - 5e-7):
        change(tmp_path, PREFIX + key, "f64", want * factor)


@EITHER
def test_floats_are_finite(tmp_path, read):
    for key in FLOATS:
        for value in (float("nan"), float("inf"), -float("inf")):
            with pytest.raises(ShapeError, match=f"{PREFIX}{key} is -?(nan|inf)"):
                change(tmp_path, PREFIX + key, "f32", value, read)


def test_array_types_and_lengths(tmp_path):
    ratios, limits = PREFIX + "attention.compress_ratios", PREFIX + "swiglu_clamp_exp"
    longer = [*FLASH.ratios, 99]  # entries beyond the layers are ignored
    assert change(tmp_path, ratios, "u32[]", longer) == change(tmp_path, ratios, "i32[]", longer) == FLASH
    assert change(tmp_path, limits, "f64[]", [10.0] * 44 + [float("nan")]) == FLASH
    for key, kind, value in (
        (ratios, "i32[]", FLASH.ratios[:42]),
        (ratios, "i64[]", FLASH.ratios),
        (ratios, "i32[]", [-4, *FLASH.ratios[1:]]),
        (ratios, "i32[]", [4, *FLASH.ratios[1:]]),
        (ratios, "i32", 4),
        (limits, "f32[]", [10.0] * 42),
        (limits, "i32[]", [10] * 43),
        (limits, "f32[]", [10.0] * 42 + [9.0]),
    ):
        with pytest.raises(ShapeError, match=key):
            change(tmp_path, key, kind, value)


def test_stored_f32_reads_as_the_decimal_it_stands_for(tmp_path):
    assert ModelShape.from_metadata(open_metadata(tmp_path, META)).rms_eps == 1e-6


RULES = {
    "dim": 4000,
    "expert_ff": 300,
    "rope_dim": 63,
    "head_dim": 64,
    "q_rank": 48,
    "o_groups": 3,
    "o_rank": 1,
    "n_used": 257,
    "n_hash_layers": 44,
    "index_dim": 96,
    "ratios": (0, 0, 8) + (0,) * 40,
    "swiglu_limit": (0.0,) * 43,
    "yarn_beta_slow": 33.0,
    "yarn_orig_ctx": 0,
    "rms_eps": 0.0,
    "rope_theta": 1.0,
    "hc": 17,
    "sinkhorn_iters": 0,
    "window": 0,
    "vocab": 0,
}


@pytest.mark.parametrize("field", RULES)
def test_inconsistent_shapes_are_refused(tmp_path, field):
    shape = replace(FLASH, **{field: RULES[field]})
    assert shape.problems()
    with pytest.raises(ShapeError):
        ModelShape.from_metadata(open_metadata(tmp_path, shape.metadata()))


@pytest.mark.parametrize(
    ("tokens", "size"), [(2048, 52_184_460), (4096, 80_373_132), (65536, 926_033_292), (1 << 20, 14_456_595_852)]
)
def test_payload_sizes_at_flash_dimensions(tokens, size):
    """Golden values, and the closed form of docs/explanation/model.md 12: 23,995,788 + 13,764 n."""
    assert FLASH.payload_bytes(tokens) == size == 23_995_788 + 13_764 * tokens


def test_keys_of_converters_have_no_effect_and_others_are_refused(tmp_path):
    """What ds4's and llama.cpp's converters write around the shape."""
    limits = (f"{PREFIX}swiglu_clamp_shexp", "f32[]", list(FLASH.swiglu_limit))
    more = [
        (f"{PREFIX}context_length", "u32", 1 << 20), (f"{PREFIX}nextn_predict_layers", "u32", 1),
        (f"{PREFIX}expert_gating_func", "u32", 4), (f"{PREFIX}leading_dense_block_count", "u32", 0), limits,
        ("general.file_type", "u32", 19), ("quantize.imatrix.file", "string", "x"),
        ("tokenizer.ggml.pre", "string", "x"),
    ]  # fmt: skip
    assert ModelShape.from_metadata(open_metadata(tmp_path, [*FLASH.metadata(), *more])) == FLASH
    for key, kind, value, says in (
        (f"{PREFIX}expert_gating_func", "u32", 2, "expert_gating_func is 2, only 4 is computed here"),
        (f"{PREFIX}attention.scale", "f32", 0.5, "attention.scale is 0.5: unknown here, it may change the model"),
        (f"{PREFIX}rope.scaling.attn_factor", "f32", 1.2, "attn_factor is 1.2"),
        (f"{PREFIX}swiglu_clamp_shexp", "f32[]", [9.0] * 43, "swiglu_clamp_shexp differs from swiglu_clamp_exp"),
        ("llama.block_count", "u32", 1, "llama.block_count is 1: unknown here"),
    ):
        with pytest.raises(ShapeError, match=says):
            ModelShape.from_metadata(open_metadata(tmp_path, [*FLASH.metadata(), (key, kind, value)]))
    linear = [entry for entry in FLASH.metadata() if entry[0] != f"{PREFIX}rope.scaling.type"]
    with pytest.raises(ShapeError, match="rope.scaling.type is 'linear', only \"yarn\" is computed here"):
        ModelShape.from_metadata(open_metadata(tmp_path, [*linear, (f"{PREFIX}rope.scaling.type", "string", "linear")]))


def test_pro_is_accepted_strictly_and_told_from_flash(tmp_path):
    assert check_published(open_metadata(tmp_path, PRO.metadata() + WORDS)) == PRO
    assert not PRO.problems() and not unlike_published(PRO)
    with pytest.raises(ShapeError, match="not DeepSeek V4 Pro: .*block_count is 60, wanted 61"):
        shape = replace(PRO, n_layers=60, ratios=PRO.ratios[:60], swiglu_limit=PRO.swiglu_limit[:60])
        check_published(open_metadata(tmp_path, shape.metadata() + WORDS))
    key = "deepseek4.attention.indexer.top_k"
    assert unlike_published(replace(PRO, index_topk=512)) == {key: ("512", "1024")}
    assert unlike_published(replace(FLASH, index_topk=1024)) == {key: ("1024", "512")}
    assert [nearest(replace(SMALL, dim=dim)) for dim in (4096, 7168, 256, 5120)] == [FLASH, PRO, FLASH, FLASH]


def test_pro_has_the_published_sizes():
    """1.6 T parameters, 49 B of them active, files of 426 and 412 GiB; the first layers are not those of Flash."""
    specs = [spec for spec in expected_tensors(PRO, "q4") if spec.fmt != "I32"]
    active = [s.elements * (6 / 384 if "_exps" in s.name else 1) for s in specs if s.name != "token_embd.weight"]
    assert round(sum(s.elements for s in specs) / 1e12, 1) == 1.6 and round(sum(active) / 1e9) == 49
    second = [s.name.startswith("output") or (s.name[:4] == "blk." and int(s.name.split(".")[1]) > 30) for s in specs]
    sizes = [s.nbytes / 2**30 for s in specs]
    halves = [sum(size for size, late in zip(sizes, second, strict=True) if late == half) for half in (False, True)]
    assert [round(half) for half in halves] == [426, 412], "ds4's two files of Q4_K: layers 0 to 30, 31 to the output"
    assert PRO.ratios[:5] == (128, 128, 4, 128, 4) and PRO.ratios[-1] == 4
    assert (PRO.ratios.count(4), PRO.ratios.count(128)) == (30, 31)
    assert PUBLISHED == {"flash": FLASH, "pro": PRO}
