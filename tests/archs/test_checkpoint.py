"""Which checkpoint a folder or file is: by what is in it, by its name as the last resort."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.checkpoint import checkpoint_of, identify, identify_gguf
from ds4ref.archs.deepseek4.dspark import Settings, drafter_slots
from ds4ref.archs.deepseek4.mtp import bind_block
from ds4ref.archs.deepseek4.shape import FLASH as FLASH_SHAPE
from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.tensors import expected_tensors
from ds4ref.archs.deepseek4.weights import check_tensors
from ds4ref.cli.ds4 import main
from ds4ref.engine import Engine
from ds4ref.errors import DataError, ModelFileError, ShapeError
from ds4ref.nano import random_path
from ds4ref.text.official import PROFILES
from ds4ref.weights import open_source
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.mapped import MappedFile
from ds4ref.weights.published import PublishedSource
from ds4ref.weights.safetensors import INDEX, SINGLE, read_header
from ds4ref.weights.safetensors_writer import write_file, write_json
from ds4ref.weights.writer import write_gguf
from tests.marking import sampled
from tests.system import peak_memory
from tests.weights.checkpointfile import write_small
from tests.weights.modelfile import SMALL, TOKENS, with_metadata, write_model
from tests.weights.test_split import llama_cpp

from .releases import JULY, MAY, RELEASES, SPARK, Release, tensors_of, write_release

FLASH = {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 4096}
PRO = FLASH | {"hidden_size": 7168}
MTP, STAGES = ["mtp.0.enorm.weight", "mtp.0.e_proj.weight"], ["mtp.0.attn.wq_a.weight", "mtp.2.norm.weight"]


@pytest.mark.parametrize(
    ("config", "tensors", "encoding", "name", "release", "size", "profile", "drafter", "sure"),
    [
        (FLASH, MTP, MAY, "DeepSeek-V4-Flash", "preview", "Flash", "may", "mtp", True),
        (FLASH, MTP, "", "x", "preview", "Flash", "may", "mtp", True),
        (FLASH | SPARK, STAGES, MAY, "DeepSeek-V4-Flash-DSpark", "dspark", "Flash", "may", "dspark", True),
        (FLASH | SPARK, STAGES, JULY, "renamed", "0731", "Flash", "0731", "dspark", True),
        (PRO | SPARK, STAGES, JULY, "DeepSeek-V4-Pro-0813", "0813", "Pro", "0731", "dspark", True),
        (FLASH | SPARK, STAGES, "", "DeepSeek-V4-Flash-0731", "0731", "Flash", "0731", "dspark", False),
        (FLASH | SPARK, STAGES, "", "model", "", "Flash", "may", "dspark", False),
        (FLASH | SPARK | {"vision_n_layers": 32}, STAGES, JULY, "m", "vision-exp", "Flash", "0731", "dspark", True),
        (FLASH, ["layers.3.ffn.gate.bias_vl"], "", "m", "vision-exp", "Flash", "0731", "", True),
        ({"model_type": "deepseek_v41", "text_config": {"hidden_size": 4096} | SPARK}, STAGES, "", "m", "v4.1", "Flash",
         "v4.1", "dspark", True),
        (FLASH | {"hidden_size": 256}, [], "", "tiny", "", "", "may", "", False),
    ],
)  # fmt: skip
def test_folders(config, tensors, encoding, name, release, size, profile, drafter, sure):
    found = identify(config, tensors, encoding, name)
    assert (found.release, found.size, found.profile, found.drafter, found.sure) == (
        release, size, profile, drafter, sure
    )  # fmt: skip
    assert bool(found.how) == bool(release)


def test_base_models():
    assert identify(FLASH, MTP, "", "DeepSeek-V4-Flash-Base").base
    assert not identify(FLASH, MTP, "", "DeepSeek-V4-Flash").base


@pytest.mark.parametrize(
    ("metadata", "tensors", "name", "release", "profile", "sure"),
    [
        ({"tokenizer.chat_template": JULY}, [], "m.gguf", "0731", "0731", True),
        ({"tokenizer.chat_template": MAY}, [], "m.gguf", "preview", "may", True),
        ({"general.base_model.0.version": "0731"}, [], "m.gguf", "0731", "0731", True),
        ({"deepseek4.checkpoint_variant": "vision-exp"}, [], "m.gguf", "vision-exp", "0731", True),
        ({"deepseek4.vision.sidecar_required": True}, [], "m.gguf", "vision-exp", "0731", True),
        ({}, ["blk.0.exp_probs_b_vl.bias"], "m.gguf", "vision-exp", "0731", True),
        ({}, ["blk.43.nextn.eh_proj.weight"], "m.gguf", "preview", "may", True),
        ({}, [], "DeepSeek-V4-Flash-IQ2XXS-chat-v2-imatrix-0731.gguf", "0731", "0731", False),
        ({"general.name": "DeepSeek V4 Pro 0813"}, [], "m.gguf", "0813", "0731", False),
        ({"tokenizer.chat_template": PROFILES["v4.1"].efforts["high"]}, [], "m.gguf", "v4.1", "v4.1", True),
        ({"deepseek4.checkpoint_variant": "of tomorrow"}, [], "m.gguf", "", "may", False),
        ({}, [], "model.gguf", "", "may", False),
    ],
)
def test_files(metadata, tensors, name, release, profile, sure):
    found = identify_gguf({"general.architecture": "deepseek4"} | metadata, tensors, name)
    assert (found.release, found.profile, found.sure) == (release, profile, sure)


# --- whole folders


DRAFTERS = {"mtp": 1575, "dspark": 4705}
"""Tensors of Flash's drafters, as others count them; Vision-Exp's has three more."""


@pytest.mark.parametrize("name", sampled(RELEASES, ["DeepSeek-V4-Flash-0731"]))
def test_published_folders_open_and_are_named(tmp_path, capsys, name):
    """Of 160 to 1,600 GB, in holes: 500 MB."""
    release, folder = RELEASES[name], tmp_path / name
    try:
        tensors = write_release(folder, release)
    except DataError as error:
        pytest.skip(f"this file system takes no sparse files of many GiB: {error}")
    kind = "dspark" if "dspark_block_size" in release.keys else "mtp"
    if release.shape.dim == FLASH_SHAPE.dim:
        vision = [sum(t.name.startswith(part) for t in tensors) for part in ("vision.", "aligner.", "image_")]
        assert vision == ([259, 4, 4] if "vision_dim" in release.keys else [0, 0, 0])
        assert sum(t.name.startswith("mtp.") for t in tensors) == DRAFTERS[kind] + 3 * bool(vision[0])
    if sys.platform == "linux":
        code = "from ds4ref.weights import open_source; open_source(sys.argv[1]).close()"
        assert peak_memory(code, folder) < 500e6
    assert main(["--inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"checkpoint  {release.name} (told by " in shown
    assert {"mtp": "a block for multi-token", "dspark": "DSpark, beside"}[kind] in shown
    assert "(the drafter is a model of its own)" in shown and "refused, " not in shown
    assert f"constants   same as {release.shape.name}" in shown


SMALL_VISION = Release(
    replace(SMALL, rms_eps=1e-20), RELEASES["DeepSeek-V4-Flash-Vision-Exp"].keys, JULY, False, "Vision-Exp"
)


def test_what_a_checkpoint_adds_changes_no_logits(tmp_path):
    """Tensors and keys of DSpark and of images; but its epsilon does."""
    folder, logits = write_small(tmp_path / "model"), []
    config = json.loads((folder / "config.json").read_text())
    own = read_header(MappedFile(folder / SINGLE))
    ratios = {"compress_ratios": [*SMALL.ratios, 0, 0, 0]}
    for keys in ({}, SMALL_VISION.keys | ratios, SMALL_VISION.keys | ratios | {"rms_norm_eps": 1e-3}):
        write_json(folder / "config.json", config | keys)
        if keys:
            more = [tensor for tensor in tensors_of(SMALL_VISION) if tensor.name not in own]
            write_file(folder / "more.safetensors", more)
            places = dict.fromkeys(own, SINGLE) | {tensor.name: "more.safetensors" for tensor in more}
            write_json(folder / INDEX, {"weight_map": places})
        with Engine.open(folder, backend="reference", numerics="exact") as engine:
            logits.append(engine.session(20).extend(list(range(12))))
    assert np.array_equal(logits[0], logits[1]) and not np.array_equal(logits[0], logits[2])


SPOILED = [
    ({"model_type": None}, "model_type is missing"),
    ({"model_type": "deepseek_v3"}, "model_type is 'deepseek_v3', not one of deepseek_v4"),
    ({"model_type": "deepseek_v41"}, r"weight_block_size is [128, 128], wanted [32, 32]"),
    ({"architectures": ["DeepseekV41ForCausalLM"]}, "architectures are those of DeepSeek V4.1"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_hidden_layers": "4"}, "num_hidden_layers is '4', wanted a whole number"),
    ({"num_hidden_layers": 10}, "compress_ratios has 7 entries for 10 layers"),
    ({"compress_ratios": [0, 0, 4]}, "compress_ratios has 3 entries for 4 layers"),
    ({"compress_ratios": [0, 0, 8, 128, 0, 0, 0]}, "compress_ratios holds 8, wanted 0, 4 or 128"),
    ({"compress_ratios": "0,0,4,128"}, "compress_ratios is '0,0,4,128', wanted a list"),
    ({"rms_norm_eps": 0}, "layer_norm_rms_epsilon is 0.0, wanted between 0 and 1"),
    ({"rms_norm_eps": "1e-20"}, "rms_norm_eps is '1e-20', wanted a number"),
    ({"hc_eps": None}, "hc_eps is missing"),
    ({"hc_mult": 17}, "hyper_connection.count is 17, wanted 1 to 16"),
    ({"hc_sinkhorn_iters": 0}, "sinkhorn_iterations is 0"),
    ({"swiglu_limit": None}, "swiglu_limit is missing"),
    ({"swiglu_limit": -1}, "swiglu_clamp_exp holds -1.0, wanted a positive number"),
    ({"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid', wanted 'sqrtsoftplus'"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu', wanted 'silu'"),
    ({"topk_method": "greedy"}, "topk_method is 'greedy', only \"noaux_tc\" is computed here"),
    ({"num_hash_layers": 9}, "9 hash layers of only 4"),
    ({"n_group": 8}, "n_group is 8, only 1 is computed here"),
    ({"first_k_dense_replace": 3}, "first_k_dense_replace is 3, only 0 is computed here"),
    ({"attention_bias": True}, "attention_bias is true, only false is computed here"),
    ({"norm_topk_prob": False}, "expert_weights_norm is false"),
    ({"rope_scaling": {"type": "linear", "factor": 4}}, "rope_type is 'linear', wanted yarn or default"),
    ({"qk_rope_head_dim": None}, "qk_rope_head_dim is missing"),
    ({"qk_rope_head_dim": 63}, "rope.dimension_count 63 is odd"),
    ({"n_routed_experts": 6}, "tensor 'layers.0.ffn.experts.5.w1.weight' is missing"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quant_method is 'gptq', wanted 'fp8'"),
    ({"quantization_config": {"weight_block_size": [32, 32]}}, "weight_block_size is [32, 32], wanted [128, 128]"),
    ({"engram_layer_ids": [1, 14]}, "engram_layer_ids is a list of 2: unknown here, it may change the model"),
    ({"kv_source_layer_ids": [2, 8]}, "kv_source_layer_ids is a list of 2: unknown here"),
    ({"num_key_value_heads": 8}, "head_count_kv is 8, wanted 1"),
    ({"sliding_window": 0}, "sliding_window is 0, wanted 1 to"),
    ({"q_lora_rank": 1.5}, "q_lora_rank is 1.5, wanted a whole number"),
]


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "model"
    write_release(folder, SMALL_VISION)
    return folder, json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(("changes", "says"), SPOILED)
def test_a_spoiled_config_is_refused_by_name(small_folder, changes, says):
    folder, config = small_folder
    values = {key: value for key, value in (config | changes).items() if value is not None}
    write_json(folder / "config.json", values)
    with pytest.raises((ModelFileError, ShapeError)) as caught, open_source(folder) as source:
        ModelShape.from_metadata(source)
    assert says in str(caught.value) and "\n" not in str(caught.value)


# --- files of llama.cpp and of ds4's converters


def spec(name, *dims):
    return TensorSpec(name, "F32", dims or (256,))


BLOCK = [spec(f"blk.4.{name}.weight") for name in ("nextn.eh_proj", "nextn.enorm", "attn_norm", "ffn_norm")]
RATIOS, LIMITS = "deepseek4.attention.compress_ratios", "deepseek4.swiglu_clamp_exp"
SHARED, NEXTN = "deepseek4.swiglu_clamp_shexp", "deepseek4.nextn_predict_layers"


@pytest.mark.parametrize(
    ("changes", "tensors", "drafter"),
    [
        ({"deepseek4.vocab_size": None}, [], ""),
        ({RATIOS: ("i32[]", [*SMALL.ratios, 0]), NEXTN: ("u32", 1)}, [], ""),
        ({RATIOS: ("i32[]", [*SMALL.ratios, 0, 0, 0]), NEXTN: ("u32", 3)}, [], ""),
        ({LIMITS: ("f32", 10.0), SHARED: ("f32", 10.0)}, [], ""),
        ({SHARED: ("f32[]", [10.0] * 4)}, [], ""),
        ({"deepseek4.block_count": ("u32", 5), RATIOS: ("i32[]", [*SMALL.ratios, 0]), LIMITS: ("f32[]", [10.0] * 5),
          NEXTN: ("u32", 1), "deepseek4.vocab_size": None}, BLOCK, "mtp"),
        ({"deepseek4.checkpoint_variant": ("string", "vision-exp"), "deepseek4.vision.block_count": ("u32", 32)},
         [spec("blk.1.exp_probs_b_vl.bias", 5)], ""),
        ({"deepseek4.dspark.block_size": ("u32", 5)}, [spec("mtp.0.main_proj.weight"), spec("mtp.2.norm.weight")],
         "dspark"),
    ],
)  # fmt: skip
def test_dialects_are_read_as_the_same_model(tmp_path, changes, tensors, drafter):
    metadata = with_metadata(SMALL.metadata() + TOKENS, changes)
    path = write_model(tmp_path / "m.gguf", metadata=metadata, specs=[*expected_tensors(SMALL), *tensors], data=True)
    with open_source(path) as source:
        assert ModelShape.from_metadata(source) == SMALL
        assert len(check_tensors(source, SMALL)) == len(expected_tensors(SMALL))
        assert checkpoint_of(source).drafter == drafter
    if tensors and drafter:
        with (
            open_source(path) as source,
            pytest.raises(ModelFileError, match="DSpark|nextn.*--mtp-block"),
        ):
            bind_block(source, SMALL, None, None)


@pytest.mark.peers
def test_llama_cpp_reads_a_block_after_the_layers_as_we_do(tmp_path):
    """The random model with a seventh block and without the size of its vocabulary: as without, theirs and ours."""
    with open_source(random_path()) as source:
        metadata = {key: (source.metadata.type_of(key), source.metadata[key]) for key in source.metadata}
        layers = metadata["deepseek4.block_count"][1]
        metadata |= {"deepseek4.block_count": ("u32", layers + 1), NEXTN: ("u32", 1)}
        metadata |= {RATIOS: ("i32[]", [*metadata[RATIOS][1], 0]), LIMITS: ("f32[]", [10.0] * (layers + 1))}
        del metadata["deepseek4.vocab_size"]
        tensors = {name: (i.fmt.name, i.dims, source.raw(name)) for name, i in source.tensors.items()}
        of_block = {name.split(".", 2)[2]: tensor for name, tensor in tensors.items() if name[:6] == "blk.0."}
        of_block |= {"exp_probs_b.bias": tensors[f"blk.{layers - 1}.exp_probs_b.bias"]}
        del of_block["ffn_gate_tid2eid.weight"]
        dim = metadata["deepseek4.embedding_length"][1]
        for name, dims in {"eh_proj": (2 * dim, dim), "enorm": (dim,), "hnorm": (dim,)}.items():
            of_block[f"nextn.{name}.weight"] = "F32", dims, np.ones(dims, np.float32)
        tensors |= {f"blk.{layers}.{name}": tensor for name, tensor in of_block.items()}
        specs = [TensorSpec(name, fmt, dims) for name, (fmt, dims, _) in tensors.items()]
        with write_gguf(tmp_path / "m.gguf", [(key, *entry) for key, entry in metadata.items()], specs) as out:
            for name, (*_, data) in tensors.items():
                out.write(name, data)
    paths, logits = (Path(random_path()), tmp_path / "m.gguf"), []
    for path in paths:
        with Engine.open(path, backend="reference") as engine:
            logits.append(engine.session(20).extend(list(range(9))))
    assert np.array_equal(*logits)
    theirs = [llama_cpp(path) for path in paths]
    assert theirs[0] and theirs[0] == theirs[1]


def test_blocks_that_no_drafter_has_are_refused(tmp_path):
    """A layer too many; a clamp of the shared expert that differs."""
    more = [spec("blk.4.attn_norm.weight")]
    path = write_model(tmp_path / "m.gguf", specs=[*expected_tensors(SMALL), *more], data=True)
    with open_source(path) as source, pytest.raises(ShapeError, match="blk.4.attn_norm.weight has no place"):
        check_tensors(source, SMALL)
    path = write_model(tmp_path / "n.gguf", metadata=with_metadata(SMALL.metadata(), {SHARED: ("f32", 9.0)}), data=True)
    with open_source(path) as source, pytest.raises(ShapeError, match="clamp_shexp differs"):
        ModelShape.from_metadata(source)


@pytest.mark.parametrize(
    ("architecture", "tensor", "as_model", "as_drafter"),
    [
        ("dflash", "markov_w1.weight", "is a DSpark drafter, no model by itself", "--draft dspark"),
        ("deepseek4-dspark", "mtp.0.main_proj.weight", "is a DSpark drafter", "--draft dspark"),
        ("deepseek4_mtp_support", "mtp.0.enorm.weight", "is a block for multi-token prediction", "is missing"),
        ("deepseek4", "blk.43.nextn.eh_proj.weight", "block_count is missing", "ds4-quantize FOLDER --mtp-block"),
        ("deepseek41", "token_embd.weight", "deepseek41.block_count is missing", "it is a whole model"),
        (
            "clip",
            "v.blk.0.attn_q.weight",
            "is an encoder of images, which are not read",
            "has no block for multi-token",
        ),
    ],
)
def test_files_beside_a_model_say_what_they_are(tmp_path, capsys, architecture, tensor, as_model, as_drafter):
    metadata = [("general.architecture", "string", architecture)]
    path = write_model(tmp_path / "m.gguf", metadata=metadata, specs=[spec(tensor)], data=True)
    assert main(["--inspect", str(path)]) == 1
    assert as_model in capsys.readouterr().err
    with open_source(path) as source, pytest.raises((ModelFileError, ShapeError), match=as_drafter) as caught:
        bind_block(source, SMALL, None, None)
    assert "\n" not in str(caught.value)


def test_dspark_of_a_folder_has_the_tensors_of_ds4s_file(small_folder):
    """Names, dimensions and settings, as its config.json and ds4's layout have them."""
    folder, config = small_folder
    write_json(folder / "config.json", config | {"dspark_noise_token_id": 3, "dspark_target_layer_ids": [0, 1, 3]})
    with closing(PublishedSource.open(folder, mtp=True)) as source:
        table = source.tensors["mtp.2.markov_head.markov_w1.weight"]
        slots = drafter_slots(SMALL, 3, 3, table.dims[0])
        assert {name: info.dims for name, info in source.tensors.items()} == {slot.name: slot.dims for slot in slots}
        assert Settings.read(source, SMALL) == Settings(5, 3, (0, 1, 3))
