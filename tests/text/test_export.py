"""The vocabulary of a published model in a GGUF: the same tokens, chats and ends; what cannot be expressed is said."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ds4ref.cli.quantize import main
from ds4ref.engine import Engine
from ds4ref.text.export import vocabulary_entries
from ds4ref.text.library import of_checkpoint, of_gguf
from ds4ref.text.pieces import SPACE, from_source, read_tokenizer_bin
from ds4ref.text.vocabulary import open_tokenizer
from ds4ref.weights import open_source
from tests.archs import dense
from tests.text.test_library import TEXTS, definition, folder_of  # noqa: F401
from tests.text.test_template import CHATML
from tests.weights import llama2c
from tests.weights.modelfile import open_metadata

ROWS = 450
SETTINGS = {"chat_template": CHATML, "eos_token": "<|im_end|>", "add_bos_token": False}
GENERATION = {"eos_token_id": [3, 7, 300]}


def published(folder: Path, definition: dict, rows: int = ROWS, **files: Any) -> Any:  # noqa: F811
    """A source of which only the vocabulary matters."""
    checkpoint = folder_of(folder, definition, config__json={}, **files)
    embedding = SimpleNamespace(dims=(8, rows))
    return SimpleNamespace(path=folder, checkpoint=checkpoint, metadata={}, tensors={"token_embd.weight": embedding})


def written(tmp_path: Path, source: Any) -> Any:
    found, why = vocabulary_entries(source)
    assert not why
    (tmp_path / "gguf").mkdir()
    return open_metadata(tmp_path / "gguf", found)


@pytest.mark.parametrize("pattern", ["gpt-2", "qwen2", "llama-bpe"])
def test_a_byte_level_vocabulary(tmp_path, definition, pattern):  # noqa: F811
    from ds4ref.text.library import RULES

    if pattern != "gpt-2":
        (regex,) = RULES[pattern].patterns
        cut = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        bytes_first = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        definition = {**definition, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, bytes_first]},
                      "normalizer": {"type": "NFC"} if pattern == "qwen2" else None,
                      "model": {**definition["model"], "ignore_merges": pattern == "llama-bpe"}}  # fmt: skip
    files = {"tokenizer_config__json": SETTINGS, "generation_config__json": GENERATION}
    source = published(tmp_path / "m", definition, **files)
    with written(tmp_path, source) as gguf:
        assert gguf.metadata["tokenizer.ggml.pre"] == pattern and gguf.metadata["tokenizer.ggml.add_bos_token"] is False
        assert gguf.metadata.count("tokenizer.ggml.tokens") == ROWS
        kinds = gguf.metadata["tokenizer.ggml.token_type"]
        assert kinds[-1] == 5 and kinds.count(3) == 2 and kinds.count(4) == 2
        names = gguf.metadata["tokenizer.ggml.tokens"]
        special = {token["content"] for token in definition["added_tokens"] if token["special"]}
        assert {name for name, kind in zip(names, kinds, strict=True) if kind == 3} == special
        ours, theirs = of_gguf(gguf), of_checkpoint(source.checkpoint)
        assert (ours.bos, ours.eos) == (theirs.bos, theirs.eos)
        assert ours.ends == theirs.ends == {theirs.eos, 3, 7, 300}
        talk = [{"role": "user", "content": "the cat<|im_end|>"}]
        assert ours.chat(talk) == theirs.chat(talk)
        for text in (*TEXTS, "It's 12345 naïve e\u0301 I'LL\n\n x"):
            assert ours.encode(text) == theirs.encode(text)
            assert ours.encode_rendered(text) == theirs.encode_rendered(text)


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "NFC"}},
        {"normalizer": {"type": "Lowercase"}},
        "rows",
    ],
)
def test_what_a_gguf_cannot_say_is_left_out_and_said(tmp_path, definition, change):  # noqa: F811
    rows = 100 if change == "rows" else ROWS
    source = published(tmp_path / "m", definition if change == "rows" else {**definition, **change}, rows)
    found, why = vocabulary_entries(source)
    assert found == [] and why.startswith("the tokenizer is left out: ") and "\n" not in why


def test_scored_pieces(tmp_path):
    c = llama2c.Config(vocab=340)
    path = llama2c.write(tmp_path, llama2c.legacy(c, llama2c.draw(c)), llama2c.vocabulary(c))
    with open_source(path) as source, written(tmp_path, source) as gguf:
        ours, theirs = from_source(gguf), read_tokenizer_bin(path.parent / "tokenizer.bin", c.vocab)
        assert (ours.bos, ours.eos, ours.unknown) == (theirs.bos, theirs.eos, theirs.unknown) == (1, 1, 0)
        for text in ("Once upon a time é€\n", "the stone, s<s>/", " a  b"):
            ids = theirs.encode(text)
            assert ours.encode(text) == ids and ours.decode([1, *ids]) == theirs.decode([1, *ids])


def sentences(first: bool = True) -> dict:
    """A tokenizer.json as Llama 2 has: pieces in the order of their scores, every pair that makes one a merge."""
    words = ["the", "cat", "sat", "on", "mat", "theory", "these", "naïve", "and", "中文"]
    rng = random.Random(5)
    alphabet = sorted({*"abcdefghijklmnopqrstuvwxyz.,ïé中", SPACE})
    made = [word[:n] for word in (*words, *(SPACE + w for w in words)) for n in range(2, len(word) + 2)]
    made += [word[n:] for word in words for n in range(len(word) - 1)] + [SPACE * 2, SPACE * 3, SPACE * 4, "aaaa", "aa"]
    made = [piece for piece in dict.fromkeys(made) if len(piece) > 1 and set(piece) <= {*alphabet}]
    rng.shuffle(made)
    pieces, merges = [*alphabet], []
    while made:  # a piece can be made of those before it
        ready = [p for p in made if any(p[:n] in pieces and p[n:] in pieces for n in range(1, len(p)))]
        if not ready:
            break
        pieces.append(ready[0])
        made.remove(ready[0])
    for place, piece in enumerate(pieces):
        for n in range(1, len(piece)):
            if piece[:n] in pieces and piece[n:] in pieces:
                merges.append((place, f"{piece[:n]} {piece[n:]}"))
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    added = [{"id": i, "content": name, "special": True, "normalized": False, "single_word": False, "lstrip": False,
              "rstrip": False} for i, name in enumerate(names[:3])]  # fmt: skip
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}, replaced] if first else [replaced]
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {name: i for i, name in enumerate(names)}, "merges": [merge for _, merge in merges]},
    }  # fmt: skip


LLAMA2 = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}


def test_a_folder_of_llama_2_keeps_its_vocabulary(tmp_path):
    shape = dense.draw_shape(3, dense.FAMILIES["llama"])
    shape = shape.__class__(**{**vars(shape), "vocab": ROWS})
    folder = dense.published(tmp_path / "m", shape, dense.draw_tensors(shape, 3, tied=False))
    (folder / "tokenizer.json").write_text(json.dumps(sentences()))
    (folder / "tokenizer_config.json").write_text(json.dumps(LLAMA2))
    assert main([str(folder), "-o", str(tmp_path / "q.gguf"), "--recipe", "q8"]) == 0
    with open_source(folder) as before, open_source(tmp_path / "q.gguf") as after:
        ours, theirs = open_tokenizer(after), open_tokenizer(before)
        assert len(ours) == ROWS and ours.encode("the cat 😀") == theirs.encode("the cat 😀") != []


@pytest.mark.parametrize("first", [True, False])
def test_pieces_of_sentencepiece(tmp_path, first):
    source = published(tmp_path / "m", sentences(first), tokenizer_config__json=LLAMA2)
    rng = random.Random(1)
    drawn = [
        "".join(rng.choices(["the ", "cat", "a", " ", "mat", "naïve", "😀", "Z", "中", "\n", "y"], k=12))
        for _ in range(200)
    ]
    with written(tmp_path, source) as gguf:
        names, kinds = gguf.metadata["tokenizer.ggml.tokens"], gguf.metadata["tokenizer.ggml.token_type"]
        assert gguf.metadata["tokenizer.ggml.model"] == "llama" and len(names) == ROWS
        assert kinds[:3] == [2, 3, 3] and kinds[3:259] == [6] * 256 and kinds[259] == 1 and kinds[-1] == 5
        assert gguf.metadata["tokenizer.ggml.add_space_prefix"] is first
        assert gguf.metadata["tokenizer.ggml.add_bos_token"] is True
        ours, theirs = open_tokenizer(gguf), of_checkpoint(source.checkpoint)
        assert (ours.bos, ours.eos, ours.unknown, ours.ends) == (1, 2, 0, {2})
        for text in (*TEXTS, "the theory of these", " the", "   mat", "<s>the</s>", "<0x41>", "aaaaaaa", *drawn):
            ids = theirs.encode(text)
            assert ours.encode(text) == ids, text
            assert ours.decode([1, *ids]).decode() == text
        assert len(ours.encode("the theory of these")) < 10


def without(table: dict, *path: str, **change: Any) -> dict:
    return {**table, path[0]: without(table[path[0]], *path[1:], **change)} if path else {**table, **change}


@pytest.mark.parametrize(
    ("path", "change", "says"),
    [
        ((), {"normalizer": None}, "treats spaces"),
        ((), {"pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}},
         "treats spaces"),
        (("model",), {"ignore_merges": True}, "how it merges"),
        (("model",), {"merges": sentences()["model"]["merges"][1:]}, "are not merged"),
        (("model",), {"merges": sentences()["model"]["merges"][::-1] + ["t h"]}, "in the order of scores"),
        (("model",), {"vocab": {"a": 0, "<unk>": 1}, "merges": []}, "every byte"),
    ],
)  # fmt: skip
def test_pieces_that_scores_cannot_express_are_left_out_and_said(tmp_path, path, change, says):
    found, why = vocabulary_entries(published(tmp_path / "m", without(sentences(), *path, **change)))
    assert found == [] and why.startswith("the tokenizer is left out: ") and says in why and "\n" not in why


def test_a_quantized_folder_can_be_talked_to(tmp_path, definition, capsys):  # noqa: F811
    shape = dense.draw_shape(3, dense.FAMILIES["qwen3"])
    shape = shape.__class__(**{**vars(shape), "vocab": ROWS})
    files = {"tokenizer.json": definition, "tokenizer_config.json": SETTINGS}
    folder = dense.published(tmp_path / "m", shape, dense.draw_tensors(shape, 3, tied=False))
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    out = tmp_path / "q.gguf"
    assert main([str(folder), "-o", str(out), "--recipe", "f32"]) == 0
    with Engine.open(folder, numerics="exact") as before, Engine.open(out, numerics="exact") as after:
        ids = before.prompt("the cat")
        assert after.prompt("the cat") == ids
        assert (before.logits(ids) == after.logits(ids)).all()
    (folder / "tokenizer.json").write_text(json.dumps({**definition, "normalizer": {"type": "Lowercase"}}))
    assert main([str(folder), "--recipe", "f32", "--dry-run"]) == 0
    assert "note: the tokenizer is left out" in capsys.readouterr().out
