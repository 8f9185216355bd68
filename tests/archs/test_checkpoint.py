"""Which checkpoint a folder or file is: by what is in it, by its name as the last resort."""

from __future__ import annotations

import pytest

from ds4ref.archs.deepseek4.checkpoint import identify, identify_gguf
from ds4ref.text.chat import MAX_PREFIX
from ds4ref.text.official import BEYOND_PREFIX, PROFILES

FLASH = {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 4096}
PRO = FLASH | {"hidden_size": 7168}
SPARK = {"dspark_block_size": 5, "dspark_noise_token_id": 128799, "num_nextn_predict_layers": 1}
MTP, STAGES = ["mtp.0.enorm.weight", "mtp.0.e_proj.weight"], ["mtp.0.attn.wq_a.weight", "mtp.2.norm.weight"]
MAY, JULY = MAX_PREFIX, MAX_PREFIX + BEYOND_PREFIX


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


def test_inspect_names_it(tmp_path, capsys):
    from ds4ref.cli.ds4 import main
    from tests.weights.modelfile import SMALL, TOKENS, write_model

    metadata = [*SMALL.metadata(), *TOKENS, ("tokenizer.chat_template", "string", JULY)]
    assert main(["--inspect", str(write_model(tmp_path / "m.gguf", metadata=metadata))]) == 0
    assert "checkpoint  DeepSeek V4 0731 (by chat template); prompts of 0731" in capsys.readouterr().out
