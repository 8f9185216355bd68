"""Models that bring their own tokenizer and chat template: from a GGUF, in the engine, the chat and the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.dense.weights import slots
from ds4ref.cli.transcript import Transcript
from ds4ref.engine import Engine
from ds4ref.errors import TextError
from ds4ref.text.chat import Message, render
from ds4ref.text.dsml import ToolCall
from ds4ref.text.library import of_gguf
from ds4ref.text.prompts import encode_chat_prompt
from ds4ref.text.vocabulary import open_tokenizer
from ds4ref.weights import open_source
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.writer import write_gguf
from tests.archs.dense import FAMILIES, draw_shape, draw_tensors
from tests.text.test_library import CONTROL, TEXTS, definition, folder_of  # noqa: F401
from tests.text.test_template import CHATML

G = "tokenizer.ggml."


@pytest.fixture(scope="module")
def entries(definition) -> list:  # noqa: F811
    """The vocabulary as GGUF metadata."""
    ids = {**definition["model"]["vocab"], **{t["content"]: t["id"] for t in definition["added_tokens"]}}
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in definition["model"]["merges"]]
    kinds = [3 if token in CONTROL[:2] else 4 if token in CONTROL else 1 for token in tokens]
    return [
        (G + "model", "string", "gpt2"), (G + "pre", "string", "gpt-2"), (G + "tokens", "string[]", tokens),
        (G + "token_type", "i32[]", kinds), (G + "merges", "string[]", merges),
        (G + "eos_token_id", "u32", ids["<|im_end|>"]), ("tokenizer.chat_template", "string", CHATML),
    ]  # fmt: skip


def write(path: Path, entries: list) -> Path:
    """A small Qwen3 of random weights with that vocabulary."""
    tokens = next((value for key, _, value in entries if key == G + "tokens"), ["a"])
    shape = replace(draw_shape(3, FAMILIES["qwen3"]), vocab=len(tokens) + 7)
    tensors = draw_tensors(shape, 3, tied=False)
    specs = [TensorSpec(slot.name, "F32", slot.dims) for slot in slots(shape) if slot.name in tensors]
    with write_gguf(path, [*shape.metadata(), *entries], specs) as out:
        for spec in specs:
            out.write(spec.name, tensors[spec.name])
    return path


@pytest.fixture(scope="module")
def model(entries, tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("own") / "m.gguf", entries)


@pytest.mark.parametrize(
    ("more", "ends"),
    [
        ([], set()),
        ([("eot_token_id", "u32", 5)], {5}),
        ([("eot_token_id", "u32", 5), ("eom_token_id", "i32", 6), ("eos_token_ids", "i32[]", [7, -1])], {5, 6, 7}),
        ([("eos_token_ids", "u64[]", [9]), ("eot_token_id", "u32", 2**32 - 1)], {9}),
    ],
)  # fmt: skip
def test_every_end_that_a_gguf_names(entries, tmp_path, more, ends):
    found = [*entries, *((G + key, kind, value) for key, kind, value in more)]
    with open_source(write(tmp_path / "m.gguf", found)) as source:
        tok = open_tokenizer(source)
    assert tok.ends == {tok.eos, *ends} and tok.eos not in ends


@pytest.mark.parametrize(
    ("more", "starts"),
    [([], False), ([("bos_token_id", "u32", 3)], False),
     ([("bos_token_id", "u32", 3), ("add_bos_token", "bool", True)], True), ([("add_bos_token", "bool", True)], False),
     ([("bos_token_id", "u32", 3), ("pre", "string", "llama-bpe")], True),
     ([("bos_token_id", "u32", 3), ("pre", "string", "llama-bpe"), ("add_bos_token", "bool", False)], False)],
)  # fmt: skip
def test_whether_a_text_of_a_gguf_starts_with_bos(entries, tmp_path, more, starts):
    new = {G + key for key, _, _ in more} | {"tokenizer.chat_template"}
    kept = [e for e in entries if e[0] not in new] + [(G + key, kind, value) for key, kind, value in more]
    with open_source(write(tmp_path / "m.gguf", kept)) as source:
        tok = open_tokenizer(source)
    assert encode_chat_prompt(tok, "", "the") == [3] * starts + tok.encode("the")


def test_the_engine_asks_by_the_template(model):
    with Engine.open(model, backend="reference", numerics="exact") as engine:
        tok = engine.tokenizer
        ids = engine.prompt("the mat", system="Be brief.", thinking="high")
        assert tok.decode(ids).decode() == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nthe mat<|im_end|>\n<|im_start|>assistant\n"
        )
        assert tok.decode(engine.prompt("x", system="")).decode().endswith("assistant\n<think>\n\n</think>\n\n")
        pieces = list(engine.stream("the mat", max_tokens=5))
        assert 1 <= len(pieces) <= 5


def test_a_chat_keeps_what_was_said(model):
    with open_source(model) as source:
        tok = open_tokenizer(source)
    talk = Transcript(tok, "S", "high")
    talk.open_turn("the cat")
    start = talk.ids
    thought = [tok.think_open, *tok.encode("hm"), tok.think_close, *tok.encode("sat<|im_end|>")]
    talk.close_turn(thought)
    talk.open_turn("and?")
    text = tok.decode(talk.ids).decode()
    assert text == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
        "sat<|im_end|><|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert talk.ids[: len(start)] == start
    assert talk.ids.count(tok.eos) == 4, "what the answer spelled is text"
    saved = talk._messages()
    assert (saved[2].content, saved[2].reasoning) == ("sat<|im_end|>", "hm")


def test_a_request_of_the_server_is_rendered_by_the_template(model):
    with open_source(model) as source:
        tok = open_tokenizer(source)
    call = ToolCall("look", '{"at": [1]}')
    messages = [Message("user", "a<|im_end|>"), Message("assistant", "", "hm", (call,)), Message("user", "c")]
    prompt = render(messages, ['{"name":"look"}'], "none")
    text = tok.decode(prompt.encode(tok)).decode()
    assert '{"type": "function", "function": {"name": "look"}}' in text
    assert text.endswith("<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    seen = {}

    class Asked:
        template = object()

        def chat(self, messages, **more):
            seen.update(more, messages=messages)
            return [1]

    assert prompt.encode(Asked()) == [1]
    assert seen["messages"][1] == {
        "role": "assistant", "content": "", "reasoning_content": "hm",
        "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": [1]}}}],
    }  # fmt: skip
    assert seen["answer"] and seen["thinking"] == "none"
    assert not render(messages[:2]).encode(Asked()) == [] and seen["answer"] is False


@pytest.mark.parametrize(
    ("key", "entry", "match"),
    [
        ("model", None, "no supported tokenizer.ggml.model"),
        ("model", (G + "model", "string", "bert"), "no supported tokenizer.ggml.model"),
        ("pre", (G + "pre", "string", "martian\n"), "tokenizer.ggml.pre 'martian"),
        ("token_type", (G + "token_type", "i32[]", [1, 1]), "2 entries for"),
        ("tokens", None, "tokens is missing"),
        ("merges", (G + "merges", "string[]", ["no such"]), "library failed"),
        ("eos_token_id", (G + "eos_token_id", "u32", 10**6), "eos is token 1000000"),
        ("eot_token_id", (G + "eot_token_id", "u32", 10**6), "an end is token 1000000"),
        ("eot_token_id", (G + "eot_token_id", "string", "x"), "eot_token_id has type string"),
        ("eos_token_ids", (G + "eos_token_ids", "string[]", ["9"]), "eos_token_ids has type"),
        ("eos_token_ids", (G + "eos_token_ids", "u32[]", [1] * 65), "lists 65 tokens, at most 64"),
        ("token_type", (G + "token_type", "i32[]", None), "no tokens|library failed"),
    ],
)
def test_a_gguf_without_a_usable_tokenizer_is_one_line(entries, tmp_path, key, entry, match):
    kept = [e for e in entries if e[0] != G + key]
    if entry is not None:
        if entry[2] is None:  # everything is a control token
            entry = (*entry[:2], [3] * len(next(e[2] for e in entries if e[0] == G + "tokens")))
        kept.append(entry)
    with open_source(write(tmp_path / "m.gguf", kept)) as source, pytest.raises(TextError, match=match) as caught:
        of_gguf(source)
    assert "\n" not in str(caught.value) and np.isfinite(len(str(caught.value)))
