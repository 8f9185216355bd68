"""The vocabulary: complete, compact for the skills' texts, and never changed by accident."""

import hashlib
import random

import pytest

from ds4ref.nano.skills import SKILLS, curriculum, tokenizer, vocabulary
from ds4ref.nano.skills.lexicon import FLAGS, PARAMETERS, VERBS, WORDS
from ds4ref.nano.skills.world import TOWNS
from ds4ref.nano.vocab import CONTROL, UNUSED
from ds4ref.text.byte_level import ALPHABET
from ds4ref.text.chat import tool_prompt
from ds4ref.text.rendered import Rendered

DIGEST = "7c1872e537de910e04c316f941e02c370f27d73d5eb9ff9f7daf4789ceb6735e"
"""A model trained with one vocabulary is worthless with another: change this only together with a new training."""


def test_the_vocabulary_is_the_one_that_was_trained():
    tables = vocabulary()
    assert hashlib.sha256("\n".join([*tables.tokens, *tables.merges]).encode()).hexdigest() == DIGEST


def test_layout():
    tables = vocabulary()
    assert len(tables.tokens) == len(tables.types) == len(set(tables.tokens)) == 2048
    assert tables.tokens[3:259] == list(ALPHABET)
    assert tables.types[:3] == [CONTROL] * 3
    assert tables.types.count(UNUSED) == sum(token.startswith("<|unused_") for token in tables.tokens)


def test_every_word_is_one_token_with_and_without_a_blank():
    encode = tokenizer().encode
    for word in [*WORDS, *PARAMETERS, *FLAGS]:
        assert len(encode(word)) == 1 == len(encode(f" {word}")), word
    for verb in VERBS:
        assert len(encode(verb.capitalize())) == 1
    for town in TOWNS:
        assert len(encode(town)) == 2 == len(encode(f" {town}")), town


def test_digits_stay_single():
    assert len(tokenizer().encode("417+248=")) == 8
    assert not any(any(c.isdigit() for c in token) for token in vocabulary().tokens[259:] if "unused" not in token)


def test_the_tool_prompt_is_compact():
    prompt = Rendered().extend(tool_prompt([""])).encode(tokenizer())
    assert len(prompt) <= 265
    items = [SKILLS["tools/open"].item(random.Random(i)) for i in range(20)]
    assert max(len(tokenizer().encode(schema)) for item in items for schema in item.schemas) <= 40


@pytest.mark.parametrize("stage", curriculum.STAGES)
def test_stages_make_rows_of_their_lengths(stage):
    lengths = {kind.length for kind in curriculum.STAGES[stage].rows}
    for seed in range(20):
        ids, weights = curriculum.row(stage, random.Random(seed), tokenizer())
        again, _ = curriculum.row(stage, random.Random(seed), tokenizer())
        assert len(ids) == len(weights) in lengths and list(ids) == list(again)
        assert (weights == 1).any() or len(ids) > 512  # a very long row may be cut before its first question
