"""Questions of the skills: determined by seeds, split from training, graded exactly."""

import hashlib
import random

import numpy as np
import pytest

from ds4ref.eval.grading import grade
from ds4ref.eval.packs import Question
from ds4ref.eval.prompt import prompt
from ds4ref.nano.skills import SKILLS, held_out, mixture, thinking, tokenizer, training_rng, vocabulary
from ds4ref.nano.skills.arithmetic import is_held_out
from ds4ref.nano.skills.base import conversation, no_questions
from ds4ref.nano.skills.curriculum import STAGES
from ds4ref.nano.skills.lexicon import TOPIC_WORDS, TOPICS, WORDS
from ds4ref.nano.skills.recall import RANGES
from ds4ref.nano.skills.rows import with_system
from ds4ref.nano.skills.topic import section
from ds4ref.text.chat import Message, render
from tests.eval.nano_pack import tokens_back

ASKED = [name for name, skill in SKILLS.items() if skill.make is not no_questions]


@pytest.mark.parametrize("name", ASKED)
def test_questions_are_determined_by_their_seed(name):
    assert held_out(name, 5, seed=1) == held_out(name, 5, seed=1)
    assert held_out(name, 5, seed=1) != held_out(name, 5, seed=2)
    first, again = (mixture({name: 1}, training_rng(1, 2), 300, tokenizer()) for _ in range(2))
    assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])


@pytest.mark.parametrize("name", ASKED)
def test_right_replies_are_right_and_anything_longer_or_shorter_is_not(name):
    for plain in held_out(name, 10):
        for item in (plain, thinking(plain)):
            answer = item.answer()
            assert item.grade(answer)
            assert not item.grade(answer + " more") and not item.grade(answer[:-1]) and not item.grade("")
            assert not item.grade("</think>" + answer) and not item.grade(answer.replace("</think>", "") + "</think>")


@pytest.mark.parametrize("name", ASKED)
def test_a_training_row_begins_like_the_first_prompt_and_its_replies_like_live_turns(name):
    rng = random.Random(7)
    items = SKILLS[name].episode(rng, 300)
    row = conversation(items)
    assert row.text.startswith(items[0].prompt().text + items[0].answer() + "<｜end▁of▁sentence｜>")
    ids, weights = row.encode(tokenizer())
    assert len(ids) == len(weights) and ids == tokenizer().encode_rendered(row.text)
    start = len(items[0].prompt().encode(tokenizer()))
    assert ids[:start] == items[0].prompt().encode(tokenizer())
    reply = len(tokenizer().encode_rendered(items[0].answer()))
    assert set(weights[start : start + reply + 1]) == {1.0} and ids[start + reply] == tokenizer().eos
    assert set(weights[1:start]) == {0.1} and weights[0] == 0
    if items[0].mode == "none":  # past reasoning is not rendered again, so only plain turns can be compared
        messages: list[Message] = []
        for item in items:
            messages += [*(m for m in item.messages if not messages or m.role != "system"), item.reply]
        assert row.text == render(messages, items[0].schemas, "none").text


def test_held_out_sums_are_never_trained():
    for name in ("sums2", "sums3", "think/sums2", "think/sums3"):
        for item in held_out(name, 50):
            a, b = map(int, item.messages[0].content.rstrip("=").split("+"))
            assert is_held_out(a, b) and is_held_out(b, a)
        rng = random.Random(1)
        for _ in range(100):
            for item in SKILLS[name].episode(rng, 200):
                a, b = map(int, item.messages[0].content.rstrip("=").split("+"))
                assert not is_held_out(a, b)
    two = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    assert 0.04 < sum(is_held_out(a, b) for a, b in two) / len(two) < 0.06


def test_wrong_digits_letters_and_working():
    (item,) = held_out("sums3", 1)
    answer = item.answer()
    assert not item.grade(answer[1] + answer[0] + answer[2:]) or answer[0] == answer[1]
    (item,) = held_out("think/sums2", 1)
    reasoning, _, answer = item.answer().partition("</think>")
    assert item.grade(f"nonsense</think>{answer}")
    assert not item.grade(answer)
    (item,) = held_out("choice", 1)
    right = item.answer()[-1]
    assert (
        thinking(item).reply.content == f"Answer: {right}" == held_out("think/choice", 1)[0].reply.content[:-1] + right
    )
    for letter in set("ABCDE") - {right}:
        assert not item.grade(item.answer()[:-1] + letter)
    assert item.grade(f"Answer: {right}") and item.grade(item.answer() + "\n")
    assert not item.grade(f"Answer: {right}\nAnswer: E") and not item.grade(f"Answer: {right} or E")


def test_calls_are_graded_by_name_types_and_values():
    numbers = [i for i in held_out("tools/open", 60) if any(c.isdigit() for c in i.reply.calls[0].arguments)]
    quoted = [i for i in numbers if '":"' in i.reply.calls[0].arguments]
    assert len(numbers) > 10 and quoted
    for item in numbers:
        answer = item.answer()
        flipped = answer.replace('"false"', "\0").replace('"true"', '"false"').replace("\0", '"true"')
        assert not item.grade(flipped)
        other = answer.replace(item.reply.calls[0].name, "other")
        assert not item.grade(other)
        assert not item.grade("Well." + answer) and not item.grade(answer + answer) and not item.grade(answer + "\n")


def test_the_right_open_tool_is_told_by_its_description_alone():
    for item in held_out("tools/open", 50):
        request = item.messages[0].content.partition(":")[0]
        assert sum(f'"{request} with ' in schema for schema in item.schemas) == 1


@pytest.mark.parametrize("name", RANGES)
def test_distances_of_recall(name):
    low, high = RANGES[name]
    limit = {"recall/window": (0, 62), "recall/near": (65, 512), "recall/far": (600, 4096)}[name]
    for item in held_out(name, 12 if name == "recall/far" else 100):
        assert limit[0] <= tokens_back(item, tokenizer()) <= limit[1]
    for style in ("sentence", "pairs"):
        for item in held_out(name, 8, distance=low, style=style):
            assert low - 10 <= tokens_back(item, tokenizer()) <= low


@pytest.mark.parametrize("name", ["choice", "think/choice"])
def test_ds4_eval_asks_and_grades_in_the_same_way(name):
    for item in held_out(name, 20):
        text, _, rest = item.messages[-1].content.partition("\n\nChoices:\n")
        choices = tuple(line.partition(". ")[2] for line in rest.split("\n")[:4])
        question = Question("1", "ours", "facts", "easy", "choice", text, choices, item.reply.content[-1])
        asked = prompt(question, item.mode)
        assert (asked.system, asked.user) == (item.messages[0].content, item.messages[1].content)
        for reply in (item.answer(), item.answer()[:-1] + "A", item.answer()[:-1] + "B"):
            assert item.grade(reply) == (grade(question, reply).outcome == "right")


def test_sections_have_one_main_topic():
    rng = random.Random(2)
    for topic in TOPICS:
        words = section(rng, topic, 130).replace(".", "").split()
        counts = {name: sum(word in TOPICS[name] for word in words) for name in TOPICS}
        assert max(counts, key=counts.get) == topic


def test_the_default_system_text_stands_where_there_is_none():
    (plain,), (own,) = held_out("facts", 1), held_out("choice", 1)
    assert [m.role for m in with_system(plain).messages] == ["system", "user"] and with_system(own) == own


def test_mixtures_need_weights_and_hold_their_length():
    with pytest.raises(ValueError, match="positive"):
        mixture({"sums2": 0}, random.Random(0), 64, tokenizer())
    for length in (64, 257, 1024):
        ids, weights = mixture(dict.fromkeys(SKILLS, 1.0), random.Random(length), length, tokenizer())
        assert ids.dtype == np.int32 and weights.dtype == np.float32 and len(ids) == len(weights) == length
        assert ids[0] == tokenizer().bos and weights[0] == 0 and ids.max() < 2048


DIGEST = "7c1872e537de910e04c316f941e02c370f27d73d5eb9ff9f7daf4789ceb6735e"
"""A model trained with one vocabulary is worthless with another: change this only together with a new training."""


def test_the_vocabulary_is_the_one_that_was_trained():
    tokens, merges = vocabulary()
    assert hashlib.sha256("\n".join([*tokens, *merges]).encode()).hexdigest() == DIGEST
    words = [word for kind, some in WORDS.items() if kind not in ("starts", "ends") for word in some]
    for word in [*words, *TOPICS, *TOPIC_WORDS]:
        assert len(tokenizer().encode(word)) == 1 == len(tokenizer().encode(f" {word}")), word
    assert len(tokenizer().encode("417+248=")) == 8, "digits are never merged"


@pytest.mark.parametrize("stage", STAGES)
def test_stages_make_rows_of_their_lengths(stage):
    for kind in STAGES[stage]:
        ids, weights = mixture(kind.weights, random.Random(3), kind.length, tokenizer(), **kind.levels)
        again, _ = mixture(kind.weights, random.Random(3), kind.length, tokenizer(), **kind.levels)
        assert len(ids) == len(weights) == kind.length and list(ids) == list(again)
        assert (weights == 1).any() or len(ids) > 512  # a very long row may be cut before its first question
