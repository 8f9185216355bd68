"""Which lengths of a sequence get a checkpoint: ds4's examples, and what they are for."""

from __future__ import annotations

import pytest

from ds4ref.errors import UsageError
from ds4ref.session.boundaries import Frontiers, Policy

U, A = 9001, 9002


def anchor(ids: str, least: int) -> int:
    names = {"U": U, "A": A}
    return Policy(min_tokens=least).anchor([names.get(word, 0) or int(word) for word in ids.split()], U, A)


def test_kv_cache_store_len_uses_configured_boundary() -> None:
    """server check 78; ds4 KV 7.2."""
    default = {11011: 10240, 10000: 8192, 545: 545, 1695: 1695, 2079: 2079, 2080: 2048, 4128: 4096, 30000: 28672}
    assert {n: Policy().stable(n) for n in default} == default
    assert Policy(trim=0, align=1000).stable(3500) == 3000
    assert Policy(trim=0, align=0).stable(3500) == 3500
    assert Policy(trim=32, align=0).stable(3500) == 3468


@pytest.mark.parametrize(
    ("ids", "least", "wanted"),
    [("1 2 U 3 4 U 5 A", 4, 5), ("1 2 3 4 U 5 A", 4, 4), ("1 2 3 4 U 5 A", 5, -1)],
)
def test_kv_cache_chat_anchor_uses_last_user_before_assistant(ids: str, least: int, wanted: int) -> None:
    """server check 79; ds4 KV 7.1."""
    assert anchor(ids, least) == wanted


@pytest.mark.parametrize(
    ("ids", "least", "wanted"),
    [("1 2 U 3 A 4 U 5 A", 2, 2), ("1 2 U 3 A 4 U 5 A", 3, -1), ("1 2 3 4 5", 2, -1), ("A 1 2 3 U 4", 1, -1)],
)
def test_kv_cache_chat_anchor_ignores_multiturn_tail(ids: str, least: int, wanted: int) -> None:
    """server.md 13, 80: what comes after the first answer is another conversation's business."""
    assert anchor(ids, least) == wanted


def test_kv_cache_continued_uses_aligned_frontiers() -> None:
    """server check 81; ds4 KV 7.3."""
    policy = Policy()
    assert policy.step == 10240
    due = {(10239, 0): False, (10240, 0): True, (10240, 4096): True, (30720, 24576): True, (18432, 10240): False,
           (20480, 10240): True, (10240, 10240): False}  # fmt: skip
    assert {at: policy.due(*at) for at in due} == due
    free = Policy(align=0)
    assert free.step == 10_000
    assert (free.due(29_999, 20_480), free.due(30_000, 20_480)) == (False, True)
    assert not Policy(interval=0).due(10240, 0)
    assert not Policy(min_tokens=20_000).due(10240, 0)


def test_a_frontier_that_was_missed_is_caught_up_with() -> None:
    """K10 of ds4 KV 15: inside a call there is no checkpoint; the next one is not 10,000 tokens later."""
    frontiers = Frontiers(Policy())
    assert frontiers.due(10_300)
    frontiers.saved(10_300)
    assert not frontiers.due(10_301) and not frontiers.due(20_479) and frontiers.due(20_480)


def test_kv_cache_cold_store_suppresses_duplicate_continued_boundary() -> None:
    """server.md 13, 82: one file at a length that is due for both reasons, and one if the first cannot be written."""
    frontiers = Frontiers(Policy())
    before = frontiers.cold_begins(10240)
    assert not frontiers.due(10240)
    frontiers.cold_failed(10240, before)
    assert frontiers.due(10240)

    frontiers = Frontiers(Policy())
    before = frontiers.cold_begins(10240)
    frontiers.saved(20480)  # meanwhile
    frontiers.cold_failed(10240, before)
    assert not frontiers.due(20480) and frontiers.due(30720)

    frontiers = Frontiers(Policy())
    frontiers.cold_begins(18_000)  # a length that is due for one reason alone
    assert frontiers.due(10240)
    frontiers.saved(18_000)
    assert not frontiers.due(20479) and frontiers.due(20480)


def test_cold_lengths() -> None:
    policy = Policy()
    prompt = [1] * 1000 + [U] + [2] * 1000 + [A]
    assert policy.cold(prompt, U, A) == 1000
    assert policy.cold([1] * 511, U, A) == 0 == policy.cold([1] * 30_001, U, A)
    assert policy.cold([1] * 4128, U, A) == 4096 and policy.cold([1] * 600, U, A) == 600
    assert Policy(cold_max=0).cold(prompt, U, A) == 0
    assert Policy(cold_max=2001).cold(prompt, U, A) == 0


@pytest.mark.parametrize(
    "options",
    [{"min_tokens": 0}, {"cold_max": -1}, {"cold_max": 511}, {"interval": -1}, {"trim": -1}, {"align": -5}],
)
def test_lengths_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Policy(**options)
