"""The thinking budget: which token is forced when, on a generation that is nothing but what the hook may look at."""

from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.eval.budget import Budget
from ds4ref.eval.plan import Settings

CLOSE = 5
PLAN = Settings(tokens=100, soft_limit=20, hard_limit=10, close_rank=3)


def generation(made: int, thinking: bool = True, limit: int = 100):
    tokenizer = SimpleNamespace(think_close=CLOSE)
    return SimpleNamespace(tokens=[0] * made, limit=limit, thinking=thinking, tokenizer=tokenizer)


def logits(rank: int) -> np.ndarray:
    """Of ten tokens; ``rank`` of them are likelier than </think>."""
    row = np.zeros(10, np.float32)
    row[CLOSE] = 1
    row[[i for i in range(10) if i != CLOSE][:rank]] = 2
    return row


@pytest.mark.parametrize(
    "left, rank, wanted, kind",
    [
        (21, 0, None, ""),  # not yet
        (20, 2, CLOSE, "soft"),  # the third best
        (20, 3, None, ""),  # the fourth
        (11, 9, None, ""),
        (10, 9, CLOSE, "hard"),
        (1, 9, CLOSE, "hard"),
    ],
)
def test_limits(left, rank, wanted, kind):
    budget = Budget(PLAN)
    assert budget(generation(100 - left), logits(rank)) == wanted
    assert budget.closed == kind


def test_after_thinking_nothing_is_forced():
    budget = Budget(PLAN)
    assert budget(generation(99, thinking=False), logits(0)) is None
    assert budget.closed == ""


def test_the_room_that_the_context_left_counts():
    """A limit clipped by the context closes earlier."""
    assert Budget(PLAN)(generation(30, limit=40), logits(9)) == CLOSE


def test_the_logits_are_left_alone():
    row = logits(2)
    before = row.copy()
    Budget(PLAN)(generation(85), row)
    assert (row == before).all()
