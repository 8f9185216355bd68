"""The generated vocabulary: complete, distinct, and as good as what the tokenizers library learns."""

import pytest

from ds4ref.nano.prose import prose
from ds4ref.nano.vocab import CONTROL, MINIMUM, NORMAL, UNUSED, build_vocabulary, learn_merges
from ds4ref.text.byte_level import ALPHABET


@pytest.mark.parametrize("size", [MINIMUM, MINIMUM + 1, 512, 2048, 6000])
def test_exact_size_without_duplicates(size):
    vocabulary = build_vocabulary(size, prose(30_000, 1))
    assert len(vocabulary.tokens) == len(vocabulary.types) == len(set(vocabulary.tokens)) == size
    assert vocabulary.tokens[3:259] == list(ALPHABET)
    assert vocabulary.types[:4] == [CONTROL, CONTROL, CONTROL, NORMAL]
    assert vocabulary.types.count(UNUSED) == sum(token.startswith("<|unused_") for token in vocabulary.tokens)
    tokens = set(vocabulary.tokens)
    for merge in vocabulary.merges:
        left, right = merge.split(" ")
        assert left in tokens and right in tokens and left + right in tokens


def test_the_most_frequent_pair_comes_first_and_ties_go_by_spelling():
    assert learn_merges("abab abab cd cd", 1) == [("a", "b")]
    assert learn_merges("ba ba ab ab", 1)[0] == ("a", "b")
    assert learn_merges("aaaa aaaa", 3)[:2] == [("a", "a"), ("aa", "aa")]
    assert learn_merges("abc", 5) == [], "pairs that occur once are not worth a token"
