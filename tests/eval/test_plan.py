"""Settings, keys and prompts: what decides what a sample is."""

import dataclasses

import pytest

from ds4ref.errors import UsageError
from ds4ref.eval import library, prompt
from ds4ref.eval.packs import Header, Question
from ds4ref.eval.plan import Key, Settings, chosen, keys, settings_of

CHOICE = Question("q-1", "maths", "algebra/x", "hard", "choice", "Which?", ("one", "two", "three"), "B")
INTEGER = Question("q-2", "science", "physics", "hard", "integer", "How many?", (), "12")
LINES = Question("q-3", "security", "parsers", "hard", "lines", "Where?", (), "4-6")


def test_the_forms_of_the_answers():
    assert prompt.user_text(CHOICE).startswith("Which?\n\nChoices:\nA. one\nB. two\nC. three\n\n")
    assert prompt.user_text(CHOICE).endswith("\nAnswer: <letter>")
    assert prompt.user_text(INTEGER).startswith("How many?\n\n")
    assert prompt.user_text(INTEGER).endswith("\nAnswer: <integer>")
    assert prompt.user_text(LINES).endswith("\nAnswer: <line number or comma-separated line numbers>")


def test_a_prompt_is_system_and_user():
    made = prompt.prompt(CHOICE, "high")
    assert made.system == prompt.SYSTEM and made.user == prompt.user_text(CHOICE) and made.thinking == "high"


def test_shuffled_choices_keep_their_key():
    seen = set()
    for seed in range(40):
        order = prompt.shuffled(CHOICE, seed, 1)
        text = prompt.user_text(CHOICE, order)
        letter = prompt.key(CHOICE, order)
        assert f"{letter}. two" in text
        seen.add(order)
    assert len(seen) == 6
    assert prompt.shuffled(CHOICE, 1, 1) == prompt.shuffled(CHOICE, 1, 1)
    assert prompt.key(CHOICE) == "B" and prompt.shuffled(INTEGER, 1, 1) == ()


def test_a_samples_seed_depends_on_seed_question_and_epoch_alone():
    plan = Settings(seed=1)
    base = plan.sample_seed(CHOICE, 1)
    assert base == Settings(seed=1, tokens=999999).sample_seed(CHOICE, 1)
    others = {plan.sample_seed(CHOICE, 2), plan.sample_seed(INTEGER, 1), Settings(seed=2).sample_seed(CHOICE, 1)}
    assert len(others | {base}) == 4
    assert 0 <= base < 1 << 63


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_every_setting_makes_another_digest(name):
    plan = Settings()
    old = getattr(plan, name)
    other = {"think": "none", "system": "other"}.get(name) or (not old if isinstance(old, bool) else old + 1)
    if name == "hard_limit":
        other = 100
    assert dataclasses.replace(plan, **{name: other}).digest(CHOICE) != plan.digest(CHOICE)


@pytest.mark.parametrize(
    "wrong", [{"think": "much"}, {"soft_limit": 10, "hard_limit": 20}, {"tokens": 100, "hard_limit": 100}]
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(UsageError):
        Settings(**wrong)


def test_without_thinking_its_limits_do_not_matter():
    assert Settings(think="none", tokens=1).tokens == 1


def test_a_packs_settings_give_way_to_the_users():
    header = Header("p", 1, settings={"think": "none", "tokens": 1, "unknown": 3})
    assert settings_of(header, {}).tokens == 1
    assert settings_of(header, {"tokens": 7}).tokens == 7


def test_every_question_comes_once_before_any_comes_again():
    assert keys([CHOICE, INTEGER], 2) == [Key(1, "q-1"), Key(1, "q-2"), Key(2, "q-1"), Key(2, "q-2")]


def test_questions_are_chosen_by_id_source_or_domain():
    every = [CHOICE, INTEGER, LINES]
    assert chosen(every, "q-2, algebra") == [CHOICE, INTEGER]
    assert chosen(every, "SECUR") == [LINES]
    assert chosen(every, None, 2) == [CHOICE, INTEGER]
    for words in ("nothing", "q-2,nothing"):
        with pytest.raises(UsageError, match="'nothing'"):
            chosen(every, words)


@pytest.mark.parametrize(("pack", "words", "count"), [
    ("ds4ref", "science", 25), ("ds4ref", "Maths, science", 50), ("ds4ref", "scien", 27), ("ds4ref", "physics", 9),
    ("nano", "tools", 34), ("nano", "choice", 12), ("nano", "think", 28), ("nano", "recall/far", 14),
])  # fmt: skip
def test_a_source_is_that_source_alone(pack, words, count):
    """Two domains of scholar have "science" in their names."""
    assert len(chosen(library.load(pack).questions, words)) == count


def test_no_more_questions_than_there_are():
    every = library.load("ds4ref").questions
    assert len(chosen(every, None, 93)) == 93 and len(chosen(every, "maths", 25)) == 25
    with pytest.raises(UsageError, match="there are 93 questions, not 94"):
        chosen(every, None, 94)
    with pytest.raises(UsageError, match="there are 25 questions of maths, not 26"):
        chosen(every, "maths", 26)
