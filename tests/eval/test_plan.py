"""Settings, keys, prompts and the thinking budget: what decides what a sample is."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.errors import UsageError
from ds4ref.eval import library, prompt
from ds4ref.eval.budget import Budget
from ds4ref.eval.packs import Question
from ds4ref.eval.plan import Key, Settings, chosen, keys, settings_of

CHOICE = Question("q-1", "maths", "algebra/x", "hard", "choice", "Which?", ("one", "two", "three"), "B")
INTEGER = Question("q-2", "science", "physics", "hard", "integer", "How many?", (), "12")
LINES = Question("q-3", "security", "parsers", "hard", "lines", "Where?", (), "4-6")


def test_a_prompt_is_system_question_and_form():
    made = prompt.prompt(CHOICE, "high")
    assert made.system == prompt.SYSTEM and made.thinking == "high"
    assert made.user.startswith("Which?\n\nChoices:\nA. one\nB. two\nC. three\n\n")
    assert made.user.endswith("\nAnswer: <letter>")
    assert prompt.user_text(INTEGER).endswith("\nAnswer: <integer>")
    assert prompt.user_text(LINES).endswith("\nAnswer: <line number or comma-separated line numbers>")


def test_a_samples_seed_depends_on_seed_question_and_epoch_alone():
    plan = Settings(seed=1)
    base = plan.sample_seed(CHOICE, 1)
    assert base == Settings(seed=1, tokens=999999).sample_seed(CHOICE, 1) and 0 <= base < 1 << 63
    others = {plan.sample_seed(CHOICE, 2), plan.sample_seed(INTEGER, 1), Settings(seed=2).sample_seed(CHOICE, 1)}
    assert len(others | {base}) == 4


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_every_setting_makes_another_digest(name):
    plan = Settings()
    old = getattr(plan, name)
    other = {"think": "none", "system": "other", "hard_limit": 100}.get(name)
    other = other or old + 1
    assert dataclasses.replace(plan, **{name: other}).digest(CHOICE) != plan.digest(CHOICE)


@pytest.mark.parametrize(
    "wrong", [{"think": "much"}, {"soft_limit": 10, "hard_limit": 20}, {"tokens": 100, "hard_limit": 100}]
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(UsageError):
        Settings(**wrong)


def test_a_packs_settings_give_way_to_the_users_and_without_thinking_its_limits_do_not_matter():
    own = {"think": "none", "tokens": 1, "unknown": 3}
    assert settings_of(own, {}).tokens == 1 and settings_of(own, {"tokens": 7}).tokens == 7


def test_every_question_comes_once_before_any_comes_again():
    assert keys([CHOICE, INTEGER], 2) == [Key(1, "q-1"), Key(1, "q-2"), Key(2, "q-1"), Key(2, "q-2")]


@pytest.mark.parametrize(("pack", "words", "count"), [
    ("ds4ref", "science", 25), ("ds4ref", "Maths, science", 50), ("ds4ref", "scien", 27), ("ds4ref", "physics", 9),
    ("nano", "tools", 34), ("nano", "choice", 12), ("nano", "recall/far", 14), ("ds4ref", None, 93),
])  # fmt: skip
def test_a_word_is_a_source_or_part_of_id_source_or_domain(pack, words, count):
    """Two domains of scholar have "science" in their names."""
    every = library.load(pack).questions
    assert len(chosen(every, words)) == len(chosen(every, words, count)) == count
    with pytest.raises(UsageError, match=f"there are {count} questions.*, not {count + 1}"):
        chosen(every, words, count + 1)
    with pytest.raises(UsageError, match="'nothing'"):
        chosen(every, f"{words or 'maths'},nothing")


# --- the budget

CLOSE = 5


@pytest.mark.parametrize(
    "left, rank, thinking, kind",
    [
        (21, 0, True, ""),  # not yet
        (20, 2, True, "soft"),  # the third best
        (20, 3, True, ""),  # the fourth
        (11, 9, True, ""),
        (10, 9, True, "hard"),
        (1, 9, True, "hard"),
        (1, 0, False, ""),  # after thinking nothing is forced
    ],
)
@pytest.mark.parametrize("limit", [100, 40])  # clipped by the context
def test_which_limit_closes_the_thinking(left, rank, thinking, kind, limit):
    """``rank`` of ten tokens are likelier than </think>."""
    budget = Budget(Settings(tokens=100, soft_limit=20, hard_limit=10))
    tokenizer = SimpleNamespace(think_close=CLOSE)
    generation = SimpleNamespace(tokens=[0] * (limit - left), limit=limit, thinking=thinking, tokenizer=tokenizer)
    logits = np.zeros(10, np.float32)
    logits[CLOSE] = 1
    logits[[i for i in range(10) if i != CLOSE][:rank]] = 2
    before = logits.copy()
    assert budget(generation, logits) == (CLOSE if kind else None) and budget.closed == kind
    assert (logits == before).all()
