"""What faults of the library do, at their edges: where a mistake begins, what it reads instead, and by chunks as at
once. That they mean what they say is held against Hugging Face's code (tests/oracle/test_bugs.py)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.cache import EMPTY_SCORE
from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.engine import Engine
from ds4ref.kernels.formats import FORMATS
from ds4ref.kernels.formats.matrix import Matrix
from ds4ref.kernels.reference import Reference
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.variants import LIBRARY, Runner
from ds4ref.variants.families import FAMILIES
from tests.marking import sampled

IDS = PROMPTS["mixed"]()[:70]

FIRST = {
    # the first position that a mistake reaches: every position before is that of the right engine to the bit
    "inverse_main_rope": 1, "compressed_kv_norm": 3, "state_late": 3, "previous_window_late": 7,
    "chunk_32_shared_lost": 31, "chunk_32_routed_lost": 31, "chunk_64_shared_lost": 63, "chunk_64_routed_lost": 63,
    "hc_post_before": 0, "hc_comb_before": 0, "hc_post_stale": 0, "hc_comb_stale": 0, "kv_norm_before": 0,
    "q_lora_norm_before": 0, "attn_norm_of_ffn": 0, "ffn_norm_of_attn": 0, "no_routed_experts": 0, "routed_late": 0,
    "expert_scratch": 0, "expert_scratch_token": 0, "router_biased_sum": 0, "router_weights_swapped": 0,
    "experts_swapped": 0, "iq2_xxs_sign_parity": 0, "iq2_xxs_last_signs": 0, "iq2_xxs_last_magnitudes": 0,
    "inverse_rope_base=160000": 1, "inverse_compress_rope_base=10000": 1, "compressed_position=1": 3,
    # a window of 16 rows is full from position 15 on
    "window_short": 15, "window_long": 16, "ring_wrap": 15, "chunk_32_window_cut": 32, "chunk_64_window_cut": 64,
    # ratio 4: a row is there from position 3 on, and has a window before it from 7 on
    "row_early": 2, "row_late": 3, "no_compressed_rows": 3, "row_rope_end": 3, "row_rope_late": 3, "halves_swapped": 3,
    "first_window_zero": 3, "no_ape": 3, "no_previous_window": 7, "chunk_32_rows_late": 3, "chunk_32_state_lost": 35,
    # of 9 rows, from position 35 on, the indexer leaves out one
    "indexer_all": 35, "indexer_recent": 35, "indexer_no_weights": 35, "indexer_no_rope": 35, "indexer_topk_short": 31,
    # the first token is turned by nothing, and has none before it
    "no_inverse_rope": 1, "rope_half_split": 1, "rope_first_dims": 1, "compressed_main_rope": 1,
    "plain_compressed_rope": 1, "hash_previous_token": 1,
}  # fmt: skip
STATEFUL = ["state_late", "previous_window_late", "compressed_kv_norm", "chunk_32_routed_lost", "kv_norm_before",
            "hc_post_stale", "hc_comb_before"]  # fmt: skip


@pytest.fixture(scope="module")
def engine(_model_cache):
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as opened:
        yield opened


@pytest.fixture(scope="module")
def right(engine):
    return Runner(engine).run(IDS, "exact")[0]


def named(name: str):
    family, _, value = name.partition("=")
    return FAMILIES[family].fault(float(value)) if value else LIBRARY[name]


@pytest.mark.parametrize("name", sampled(FIRST, [name for name, first in FIRST.items() if first]))
def test_a_fault_begins_where_it_should(engine, right, name) -> None:
    wrong = Runner(engine).run(IDS, "exact", [named(name)])[0]
    first = FIRST[name]
    assert np.array_equal(wrong[:first], right[:first])
    assert np.abs(wrong[first] - right[first]).max() > 1e-2


@pytest.mark.parametrize("name", sampled(STATEFUL, 3))
def test_a_fault_is_the_same_in_chunks(engine, name) -> None:
    """What a fault takes from before a chunk it finds in the caches."""
    whole = Runner(engine).run(IDS, "exact", [LIBRARY[name]])[0]
    session = engine.session(len(IDS) + 1)
    session.hooks = LIBRARY[name].hooks()
    parts = [session.extend(IDS[start:end]) for start, end in ((0, 33), (33, 35), (35, 70))]
    assert np.abs(np.concatenate(parts) - whole).max() < 1e-3


@pytest.mark.parametrize("own", [True, False])
def test_slots_of_a_window_hold_the_tokens_before(engine, own) -> None:
    """Ratio 4, by the projections of a right pass: the window before has their first halves, the window itself the
    second ones."""
    session, seen = engine.session(41), Recorder("attn_comp_kv_raw", "attn_comp_score_raw", layers={2})
    session.hooks = seen
    session.extend(IDS[:40])
    candidates = {}

    class Both:
        """The fault, and what it leaves."""

        def begin(self, chunk):
            self.fault = LIBRARY["state_late" if own else "previous_window_late"].hooks()

        def tap(self, name, layer, value, chunk):
            if layer != 2:
                return value
            value = self.fault.tap(name, layer, value, chunk)
            if name == "attn_comp_candidates":
                candidates[chunk.pos0] = value
            return value

    session = engine.session(41)
    session.hooks = Both()
    session.extend(IDS[:18])
    session.extend(IDS[18:40])
    width = engine.shape.head_dim
    for part, raw, empty in zip((0, 1), ("kv", "score"), (0.0, EMPTY_SCORE), strict=True):
        tokens = seen[f"attn_comp_{raw}_raw", 2]
        rows = np.concatenate([candidates[at][part] for at in (0, 18)])
        assert len(rows) == 10
        for window, row in enumerate(rows):
            for slot in range(4):
                token = 4 * window + slot - own
                assert_row(row[4 + slot], tokens[token, width:] if token >= 0 else empty)
                token = 4 * window - 4 + slot - 1
                assert_row(row[slot], tokens[token, :width] if token >= 0 else empty)


def assert_row(row: np.ndarray, expected: np.ndarray | float) -> None:
    np.testing.assert_allclose(row, np.broadcast_to(expected, row.shape), rtol=1e-4, atol=1e-4)


def read_through(name: str, w: Matrix) -> np.ndarray:
    """The matrix that products see: what they make of unit vectors."""
    chunk = SimpleNamespace(ops=Reference())
    LIBRARY[name].begin(chunk)
    return chunk.ops.linear(np.eye(w.cols, dtype=np.float32), w, "float").T


@pytest.mark.parametrize("name", ["iq2_xxs_sign_parity", "iq2_xxs_last_signs", "iq2_xxs_last_magnitudes"])
def test_one_thing_wrong_in_a_table(name) -> None:
    """Weights of IQ2_XXS differ where the entry is used, by what is wrong in it, and nowhere else."""
    rng = np.random.default_rng(3)
    blocks = np.zeros(8, FORMATS["IQ2_XXS"].layout)
    blocks["d"] = 0.01
    blocks["groups"]["index"] = rng.choice([7, 255], (8, 8, 4))
    blocks["groups"]["word"] = rng.integers(0, 1 << 32, (8, 8), dtype=np.uint32) | 127
    w = Matrix("IQ2_XXS", blocks.view(np.uint8).reshape(8, -1), 8, 256)
    plain = FORMATS["IQ2_XXS"].dequantize(w.data)
    signs = blocks["groups"]["word"][..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    odd = np.array([bin(entry).count("1") % 2 for entry in range(128)])
    octets = {
        "iq2_xxs_sign_parity": (np.arange(8) == 7) & (odd[signs] == 1)[..., None],
        "iq2_xxs_last_signs": np.broadcast_to((signs == 127)[..., None], (*signs.shape, 8)),
        "iq2_xxs_last_magnitudes": np.broadcast_to((blocks["groups"]["index"] == 255)[..., None], (*signs.shape, 8)),
    }[name].reshape(8, 256)
    expected = np.where(octets, 0 if name.endswith("magnitudes") else np.abs(plain), plain)
    assert (expected != plain).any() and (expected == plain).any()
    np.testing.assert_allclose(read_through(name, w), expected, rtol=1e-6)


def test_weights_of_chosen_experts() -> None:
    """Scores 1, 2, 3 with a bias of 1 on the last: chosen 2 and 1, whose biased scores add up to 6."""
    chunk = SimpleNamespace(ops=Reference())
    LIBRARY["router_biased_sum"].begin(chunk)
    logits = np.log(np.expm1(np.array([[1.0, 4.0, 9.0]]))).astype(np.float32)
    _, ids, weights = chunk.ops.route(logits, np.array([0, 0, 1], np.float32), None, 2, 1.5, False)
    assert ids.tolist() == [[2, 1]]
    np.testing.assert_allclose(weights, [[3 / 6 * 1.5, 2 / 6 * 1.5]], rtol=1e-6)
    swapped = LIBRARY["router_weights_swapped"].edits["ffn_moe_weights_scaled"]
    assert swapped(np.array([[1, 2, 3]]), 0, None, {}).tolist() == [[2, 1, 3]]
    assert swapped(np.array([[1]]), 0, None, {}).tolist() == [[1]]
    exchanged = LIBRARY["experts_swapped"].edits["ffn_moe_topk"]
    shape = SimpleNamespace(n_experts=8)
    assert exchanged(np.array([[0, 7, 1, 2]]), 0, SimpleNamespace(shape=shape), {}).tolist() == [[1, 7, 0, 2]]


def test_scratch_read_before_it_is_written() -> None:
    """Two tokens of two experts: one scratch holds the expert before, a scratch for each place the token before."""
    mid = np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1)
    for name, expected in (("expert_scratch", [[0, 1], [2, 3]]), ("expert_scratch_token", [[0, 0], [1, 2]])):
        got = LIBRARY[name].edits["ffn_moe_weighted_swiglu"](mid, 0, None, {})
        assert got[..., 0].tolist() == expected


def test_an_end_of_the_ramp_moves_by_pairs(engine) -> None:
    """The grids of the betas move one end by one to three pairs each way."""
    fast, slow = (
        [ends(engine, name, value) for value in FAMILIES[name].grid(engine.shape)]
        for name in ("yarn_beta_fast", "yarn_beta_slow")
    )
    assert fast == [(15 + by, 25) for by in (3, 2, 1, -1, -2, -3)]
    assert slow == [(15, 25 + by) for by in (3, 2, 1, -1, -2, -3)]


def ends(engine: Engine, family: str, size: float) -> tuple[int, int]:
    """The last pair that is not stretched, and the first that is stretched in full: 15 and 25 in Flash."""
    tables, numerics = engine.model.rope[True], SimpleNamespace(rope="f64")
    chunk = SimpleNamespace(shape=engine.shape, rope={True: tables}, numerics=numerics)
    FAMILIES[family].fault(size).begin(chunk)
    ramp = chunk.rope[True].ramp
    return int(np.flatnonzero(ramp == 1)[-1]), int(np.flatnonzero(ramp == 0)[0])
