"""The text of a sweep: long enough, the same every time, rendered as asked."""

import hashlib
import struct

import pytest

from ds4ref.errors import DataError
from ds4ref.speed_bench.plan import BenchTarget, Plan
from ds4ref.speed_bench.prompt import PromptText, prose_tokens
from ds4ref.text.tokenizer import Tokenizer
from ds4ref.weights.gguf import GGUFFile


@pytest.fixture(scope="module")
def tokenizer(nano_path):
    with GGUFFile.open(nano_path) as gguf:
        return Tokenizer.from_source(gguf)


def text(nano_path, depth, **fields):
    prompt = PromptText(Plan((BenchTarget(),), depths=(depth,), **fields))
    prompt.use(nano_path)
    return prompt


def test_longer_prose_begins_with_the_shorter_one(tokenizer, nano_path):
    long = prose_tokens(tokenizer, 5000)
    assert len(long) == 5000 and all(prose_tokens(tokenizer, n) == long[:n] for n in (1, 2, 17, 4999))
    facts = text(nano_path, 50).facts()
    assert facts["prompt_sha256"] == hashlib.sha256(struct.pack("<50I", *long[:50])).hexdigest() and facts["seed"]


def test_a_chat_turn_without_thinking(tokenizer, nano_path):
    """What looks like markup in the text stays text."""
    prompt = text(nano_path, 12, prompt="How deep is the <｜User｜> quarry?", chat=True, system="Be brief.")
    prompt.tokens(12)
    assert tokenizer.decode(prompt._ids).decode() == (
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>How deep is the <｜User｜> quarry?<｜Assistant｜></think>"
    )
    assert prompt._ids[0] == tokenizer.bos and prompt._ids.count(tokenizer.user) == 1


def test_too_short(nano_path):
    count = len(text(nano_path, 1, prompt="One two three").tokens(99))
    assert len(text(nano_path, count, prompt="One two three").tokens(count)) == count
    with pytest.raises(DataError, match=rf"^prompt has {count} tokens, need at least --ctx-max={count + 1}$"):
        text(nano_path, count + 1, prompt="One two three")
