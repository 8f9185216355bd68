"""The generated vocabulary: complete, distinct, and every merge makes a token."""

import pytest

from ds4ref.nano.vocab import CONTROL, MINIMUM, NORMAL, UNUSED, build_vocabulary
from ds4ref.text.byte_level import ALPHABET


@pytest.mark.parametrize("size", [MINIMUM, MINIMUM + 1, 512, 2048, 6000])
def test_exact_size_without_duplicates(size):
    vocabulary = build_vocabulary(size)
    assert len(vocabulary.tokens) == len(vocabulary.types) == len(set(vocabulary.tokens)) == size
    assert vocabulary.tokens[3:259] == list(ALPHABET)
    assert vocabulary.types[:4] == [CONTROL, CONTROL, CONTROL, NORMAL]
    assert vocabulary.types.count(UNUSED) == sum(token.startswith("<|unused_") for token in vocabulary.tokens)
    tokens = set(vocabulary.tokens)
    for merge in vocabulary.merges:
        left, right = merge.split(" ")
        assert left in tokens and right in tokens and left + right in tokens
