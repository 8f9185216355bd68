"""Break-even of drafts, against values computed by hand."""

from __future__ import annotations

import pytest

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.archs.deepseek4.tensors import expected_tensors
from ds4ref.costs import Peaks
from ds4ref.drafts.breakeven import best_depth, break_even, rows_costs, speed_up, tokens_a_pass

HAND = [0.0, 1.0, 1.25, 1.5, 1.75]


def test_tokens_of_a_pass():
    assert tokens_a_pass(0.5, 0) == 1
    assert tokens_a_pass(0.5, 3) == 1.875
    assert tokens_a_pass(0.0, 7) == 1 and tokens_a_pass(1.0, 7) == 8


def test_speed_up_by_hand():
    assert speed_up(0.5, 1, HAND) == pytest.approx(1.5 / 1.25)
    assert speed_up(0.5, 3, HAND, draft=0.1) == pytest.approx(1.875 / 2.05)
    assert speed_up(0.3, 0, HAND, draft=9.0) == 1.0


def test_break_even_by_hand():
    assert break_even(1, HAND) == pytest.approx(0.25)  # 1 + a = 1.25
    assert break_even(2, HAND) == pytest.approx((3**0.5 - 1) / 2)  # 1 + a + a^2 = 1.5
    assert break_even(1, HAND, draft=0.5) == pytest.approx(0.75)
    assert break_even(1, HAND, draft=0.75) == pytest.approx(1.0)
    assert break_even(1, HAND, draft=0.76) is None
    assert break_even(0, HAND) == pytest.approx(0.0)


def test_the_best_depth():
    assert [best_depth(a, HAND) for a in (0.0, 0.2, 0.5, 1.0)] == [0, 0, 1, 3]
    assert best_depth(1.0, HAND, draft=1.0) == 0


def test_the_bytes_of_flash_by_rows():
    """Every tensor once, of experts those of any row: counted here from the list of tensors."""
    costs = Costs.of_recipe(FLASH, "q2")
    ratios = rows_costs(costs, 8192)
    specs = expected_tensors(FLASH, "q2")
    experts = sum(spec.nbytes for spec in specs if "_exps" in spec.name)
    lookups = sum(spec.nbytes for spec in specs if "token_embd" in spec.name or "tid2eid" in spec.name) / FLASH.vocab
    share = 6 / 256
    assert FLASH.n_used / FLASH.n_experts == share
    one = costs.decode(8192).bytes
    for rows in (1, 2, 4, 8):
        more = experts * ((1 - (1 - share) ** rows) - share) + (rows - 1) * lookups
        kv = FLASH.kv_bytes(rows) - FLASH.kv_bytes(1)
        assert ratios[rows] == pytest.approx((one + more + kv) / one, rel=1e-9)
    assert ratios[1] == pytest.approx(1.0) and ratios[0] == 0.0
    assert ratios[2] == pytest.approx(1.185, abs=0.001) and ratios[8] == pytest.approx(2.21, abs=0.005)


def test_where_arithmetic_binds_rows_cost_as_much_as_tokens():
    ratios = rows_costs(Costs.of_recipe(FLASH, "q2"), 8192, Peaks(1e9, 1.0, 1.0))
    assert ratios == pytest.approx(list(range(9)))
    assert break_even(3, ratios) == pytest.approx(1.0) and best_depth(0.9, ratios) == 0
