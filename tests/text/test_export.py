"""The vocabulary of a published model in a GGUF: the same tokens, chats and ends; what cannot be expressed is said."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ds4ref.cli.quantize import main
from ds4ref.engine import Engine
from ds4ref.text.export import vocabulary_entries
from ds4ref.text.library import of_checkpoint, of_gguf
from ds4ref.text.pieces import from_source, read_tokenizer_bin
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
    from ds4ref.text.pretokenizers import RULES

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
        {"normalizer": {"type": "Prepend", "prepend": "\u2581"}, "pre_tokenizer": None},
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
