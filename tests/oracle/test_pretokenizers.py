"""Tokens by name of the pre-tokenizer against llama.cpp: one small vocabulary, 300 drawn texts for each name.

A name is one server of llama.cpp with a model of one layer, in a process of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ds4ref.text.library import of_gguf
from ds4ref.text.pretokenizers import RULES
from ds4ref.weights.gguf import GGUFFile

gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.peers

NAMES = [
    "afmoe", "bailingmoe", "bloom", "chatglm-bpe", "dbrx", "deepseek-coder", "deepseek-llm", "deepseek-v3", "default",
    "exaone-moe", "falcon", "glm4", "gpt-2", "gpt-4o", "grok-2", "jais-2", "joyai-llm", "kimi-k2", "laguna",
    "llama-bpe", "minicpm5", "qwen35", "seed-coder", "smollm", "spark2_5", "stablelm2", "superbpe", "tekken",
    "tiny_aya", "ufakzeka", "viking", "youtu",
]  # fmt: skip
"""One name, at least, of every rule; llama.cpp normalizes nothing, so not those that do."""
WORDS = (
    " the| The|don|ing|'t|'ll| 12|123|1234| 1|\n\n|  |   | \n|\t\t|...| (\"|);|//|café|é|ß| für|中文|日本| 한국|ไทย"
    "|мир| мир|abc|ABC|aB|HTTP|http|Server|_x|__|==|-->|١٢|\u0301|😀| !|!?|<p>|foo|Bar|1st|x1|I'm|LL|'LL|ﬁ|ー|ं"
    "|हि|\r\n|\u3000|\u00a0"
).split("|")
PIECES = [
    *WORDS, *" aZ9.,;:'\"-_/\\()[]{}<>~`$^+=*&%#@!?\n\t\r", "Ç", "Ⅷ", "½", "\u0308", "가", "ⁿ", "٣", "𝒳", "\u2028",
    "22", "333", "4444",
]  # fmt: skip
SERVE = """
import json, os, sys, urllib.request, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = sys.argv[1], 256, 1, 1
server, answers = xllamacpp.Server(params), []
for text in json.load(open(sys.argv[2])):
    body = json.dumps({"content": text, "add_special": False, "parse_special": False}).encode()
    request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    answers.append(json.load(urllib.request.urlopen(request))["tokens"])
json.dump(answers, open(sys.argv[3], "w"))
os._exit(0)
"""


def write_model(path: Path, name: str) -> None:
    """Write a model of one layer, whose vocabulary holds ``WORDS`` and all that leads to them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in plain)}
    tokens, merges = [letters[byte] for byte in range(256)], []
    for word in WORDS:
        whole = ""
        for letter in (letters[byte] for byte in word.encode()):
            if whole and whole + letter not in tokens:
                merges.append(f"{whole} {letter}")
                tokens.append(whole + letter)
            whole += letter
    tokens += ["<s>", "</s>"]
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in {
        "block_count": 1, "context_length": 512, "embedding_length": 32, "head_count": 2, "head_count_kv": 2,
        "feed_forward_length": 64, "rope_dimension_count": 16, "layer_norm_rms_eps": 1e-5, "vocab_size": len(tokens),
        "tokenizer_model": "gpt2", "tokenizer_pre": name, "token_list": tokens, "token_merges": merges,
        "token_types": [1] * (len(tokens) - 2) + [3, 3], "bos_token_id": len(tokens) - 2,
        "eos_token_id": len(tokens) - 1,
    }.items():  # fmt: skip
        getattr(writer, f"add_{key}")(value)
    attention = {f"blk.0.attn_{part}": (32, 32) for part in ("q", "k", "v", "output")}
    norms = dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), (32,))
    shapes = {"token_embd": (len(tokens), 32), "output": (len(tokens), 32), "blk.0.ffn_down": (32, 64)}
    shapes |= dict.fromkeys(("blk.0.ffn_gate", "blk.0.ffn_up"), (64, 32))
    for tensor, shape in {**shapes, **attention, **norms}.items():
        writer.add_tensor(f"{tensor}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_every_rule_has_a_name_here() -> None:
    assert {RULES[name] for name in NAMES} >= {rule._replace(nfc=False) for rule in RULES.values()}


@pytest.mark.parametrize("name", NAMES)
def test_tokens(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)
    texts = ["".join(draw.choices(PIECES, k=draw.randint(1, 18))) for _ in range(300)]
    write_model(tmp_path / "m.gguf", name)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    command = [sys.executable, "-c", SERVE, *(str(tmp_path / file) for file in ("m.gguf", "texts.json", "ids.json"))]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    theirs = json.loads((tmp_path / "ids.json").read_text())
    with GGUFFile.open(tmp_path / "m.gguf") as source:
        ours = of_gguf(source)
        for text, ids in zip(texts, theirs, strict=True):
            assert ours.encode(text) == ids, text
