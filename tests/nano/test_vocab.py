"""The generated vocabulary: complete, distinct, and as good as what the tokenizers library learns."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

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


def test_too_small():
    with pytest.raises(ValueError, match="at least 264"):
        build_vocabulary(MINIMUM - 1, "text")


def test_the_most_frequent_pair_comes_first_and_ties_go_by_spelling():
    assert learn_merges("abab abab cd cd", 1) == [("a", "b")]
    assert learn_merges("ba ba ab ab", 1)[0] == ("a", "b")
    assert learn_merges("aaaa aaaa", 3)[:2] == [("a", "a"), ("aa", "aa")]
    assert learn_merges("abc", 5) == [], "pairs that occur once are not worth a token"


def test_compresses_as_well_as_the_tokenizers_library():
    corpus, unseen = prose(100_000, 1), prose(50_000, 2)
    vocabulary = build_vocabulary(1500, corpus)
    ours = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(vocabulary.tokens)},
            merges=[tuple(merge.split(" ")) for merge in vocabulary.merges],
        )
    )
    theirs = Tokenizer(models.BPE())
    for tokenizer in (ours, theirs):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500 - 8, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    theirs.train_from_iterator([corpus], trainer)
    n_ours, n_theirs = len(ours.encode(unseen).ids), len(theirs.encode(unseen).ids)
    assert n_ours < 1.02 * n_theirs
    assert "".join(ours.encode(unseen).tokens) == "".join(theirs.encode(unseen).tokens)
