#!/usr/bin/env bash
# llama.cpp's pre-tokenizers gpt-4o and tekken cut Hindi, Thai and decomposed words at every combining mark.
#
# Guess before the run: for one vocabulary, llama.cpp with tokenizer.ggml.pre = gpt-4o and the tokenizers library with the
# pattern that these models publish in tokenizer.json give the same tokens for any text.
# Seen (xllamacpp 2026.10.11549, tokenizers 0.23.1): the published patterns count marks (\p{M}) among the letters of a
# word; llama.cpp's do not. A Hindi word that is one token of the vocabulary, " हिन्दी", is one token in the library and
# 16 in llama.cpp, as the word is cut at its vowel signs before it is merged. The same for Thai, and for "café" written
# with U+0301. English, Russian and Chinese are equal.
# Models with these pre-tokenizers (gpt-oss, Llama 4, Mistral Nemo and later) see other tokens for such languages there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install xllamacpp==2026.10.11549 gguf==0.19.0 tokenizers==0.23.1 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import json
import os
import urllib.request

import gguf
import numpy
import tokenizers
import xllamacpp

WORDS = [" हिन्दी", " ที่นี่", " cafe\u0301", " coffee", " кофе", "咖啡"]
MARKED = WORDS[:3]
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE, REST = r"[^\r\n\p{L}\p{N}]?", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PUBLISHED = {
    "gpt-4o": f"{BEFORE}{UPPER}*{LOWER}+{SHORT}|{BEFORE}{UPPER}+{LOWER}*{SHORT}|\\p{{N}}{{1,3}}{REST}",
    "tekken": f"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\\p{{N}}{REST}",
}
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = {byte: chr(byte) for byte in plain}
letters |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in plain)}
tokens, merges = [letters[byte] for byte in range(256)], []
for word in WORDS:
    whole = ""
    for byte in word.encode():
        if whole and whole + letters[byte] not in tokens:
            merges.append(f"{whole} {letters[byte]}")
            tokens.append(whole + letters[byte])
        whole += letters[byte]


def by_library(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    table = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "decoder": level, "model": model}
    encoder = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], **table}))
    return [encoder.encode(word).ids for word in WORDS]


def by_llama(name):
    writer = gguf.GGUFWriter(f"{name}.gguf", "llama")
    for add, value in (("block_count", 1), ("context_length", 512), ("embedding_length", 32), ("head_count", 2),
                       ("head_count_kv", 2), ("feed_forward_length", 64), ("rope_dimension_count", 16),
                       ("layer_norm_rms_eps", 1e-5), ("vocab_size", len(tokens)), ("tokenizer_model", "gpt2"),
                       ("tokenizer_pre", name), ("token_list", tokens), ("token_types", [1] * len(tokens)),
                       ("token_merges", merges), ("bos_token_id", 0), ("eos_token_id", 1)):
        getattr(writer, f"add_{add}")(value)
    for tensor, shape in {"token_embd": (len(tokens), 32), "output": (len(tokens), 32), "output_norm": (32,),
                          "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,), "blk.0.attn_q": (32, 32),
                          "blk.0.attn_k": (32, 32), "blk.0.attn_v": (32, 32), "blk.0.attn_output": (32, 32),
                          "blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}.items():
        writer.add_tensor(f"{tensor}.weight", numpy.ones(shape, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = f"{name}.gguf", 256, 1, 1
    server = xllamacpp.Server(params)
    answers = []
    for word in WORDS:
        body = json.dumps({"content": word, "add_special": False}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            answers.append(json.load(reply)["tokens"])
    return answers


for name, pattern in PUBLISHED.items():
    library, llama = by_library(pattern), by_llama(name)
    for word, theirs, here in zip(WORDS, llama, library):
        print(f"{name:8} {word!r:12} tokenizers {len(here)}, llama.cpp {len(theirs)}")
        assert len(here) == 1, "the behaviour has changed: the library cuts the word"
        assert (theirs == here) == (word not in MARKED), f"the behaviour has changed: llama.cpp, {word!r}"
print("as described", flush=True)
os._exit(0)
PY
