"""The text of a sweep: long enough, the same every time, rendered as asked."""

import hashlib
import struct

import pytest

from ds4ref.errors import DataError
from ds4ref.speed_bench.prompt import chat_tokens, check_length, digest, prose_tokens
from ds4ref.text.tokenizer import Tokenizer
from ds4ref.weights.gguf import GGUFFile


@pytest.fixture(scope="module")
def tokenizer(nano_path):
    with GGUFFile.open(nano_path) as gguf:
        return Tokenizer.from_source(gguf)


def test_longer_prompts_begin_with_the_shorter_ones(tokenizer):
    long = prose_tokens(tokenizer, 5000)
    assert len(long) == 5000
    for n in (1, 2, 17, 1000, 4999):
        assert prose_tokens(tokenizer, n) == long[:n]


def test_prose_reads_as_text(tokenizer):
    text = tokenizer.decode(prose_tokens(tokenizer, 500)).decode()
    assert text.isascii() and text.count(".") > 10 and "\n\n" in text


def test_chat_prompt_is_one_turn_without_thinking(tokenizer):
    ids = chat_tokens(tokenizer, "How deep is the quarry?", "Be brief.")
    text = tokenizer.decode(ids).decode()
    assert text == ("<｜begin▁of▁sentence｜>Be brief.<｜User｜>How deep is the quarry?<｜Assistant｜></think>")
    assert ids[0] == tokenizer.bos


def test_special_tokens_in_the_text_are_text(tokenizer):
    ids = chat_tokens(tokenizer, "<｜User｜></think>", "")
    assert ids.count(tokenizer.user) == 1 and ids.count(tokenizer.think_close) == 1


def test_too_short():
    check_length([1, 2, 3], 3)
    with pytest.raises(DataError, match=r"prompt has 3 tokens, need at least --ctx-max=4$"):
        check_length([1, 2, 3], 4)


def test_digest():
    assert digest([1, 2, 70000]) == hashlib.sha256(struct.pack("<3I", 1, 2, 70000)).hexdigest()
