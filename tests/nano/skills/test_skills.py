"""Questions of the skills: determined by seeds, split from training, graded exactly."""

import random

import numpy as np
import pytest

from ds4ref.eval.grading import grade
from ds4ref.eval.packs import Question
from ds4ref.eval.prompt import prompt
from ds4ref.nano.skills import SKILLS, depth, held_out, held_out_text, mixture, thinking, tokenizer, training_rng
from ds4ref.nano.skills.arithmetic import is_held_out, working
from ds4ref.nano.skills.base import conversation, no_questions
from ds4ref.nano.skills.lexicon import TOPICS
from ds4ref.nano.skills.recall import RANGES
from ds4ref.nano.skills.topic import section
from ds4ref.nano.skills.world import TOWNS, VALUES, facts
from ds4ref.text.chat import Message, render

ASKED = [name for name, skill in SKILLS.items() if skill.make is not no_questions]
EXACT = [name for name in ASKED if name not in ("english", "choice", "think/choice", "tools/fixed", "tools/open")]


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
            assert item.grade(answer) and all(item.parts(answer).values())
            assert not item.grade(answer + " more") and not item.grade(answer[:-1]) and not item.grade("")
            assert not item.grade("</think>" + answer) and not item.grade(answer.replace("</think>", "") + "</think>")


@pytest.mark.parametrize("name", EXACT)
def test_white_space_and_repetition_are_wrong(name):
    for item in held_out(name, 5):
        answer = item.answer()
        assert not item.grade(answer + "\n") and not item.grade(answer + answer)


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


def test_working_carries():
    assert working(417, 248) == "7+8=15, 1+4+1=6, 4+2=6"
    assert working(99, 11) == "9+1=10, 9+1+1=11"


def test_wrong_digits_letters_and_working():
    (item,) = held_out("sums3", 1)
    answer = item.answer()
    assert not item.grade(answer[1] + answer[0] + answer[2:]) or answer[0] == answer[1]
    (item,) = held_out("think/sums2", 1)
    reasoning, _, answer = item.answer().partition("</think>")
    assert item.grade(f"nonsense</think>{answer}") and item.parts(f"nonsense</think>{answer}")["reasoning"] is False
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
        assert item.parts(flipped) == {"tool": True, "arguments": False, "call": False}
        other = answer.replace(item.reply.calls[0].name, "other")
        assert item.parts(other) == {"tool": False, "arguments": True, "call": False}
        assert not item.grade("Well." + answer) and not item.grade(answer + answer) and not item.grade(answer + "\n")
        assert item.parts("nothing") == {"tool": False, "arguments": False, "call": False}


def test_the_right_open_tool_is_told_by_its_description_alone():
    for item in held_out("tools/open", 50):
        request = item.messages[0].content.partition(":")[0]
        assert sum(f'"{request} with ' in schema for schema in item.schemas) == 1


@pytest.mark.parametrize("name", RANGES)
def test_distances_of_recall(name):
    low, high = RANGES[name]
    limit = {"recall/window": (0, 62), "recall/near": (65, 512), "recall/far": (600, 4096)}[name]
    for item in held_out(name, 12 if name == "recall/far" else 100):
        assert limit[0] <= depth(item, tokenizer()) <= limit[1]
    for style in ("sentence", "pairs"):
        for item in held_out(name, 8, distance=low, style=style):
            assert low - 10 <= depth(item, tokenizer()) <= low


def test_the_fact_stands_once_in_the_prompt():
    for item in held_out("recall/near", 30, pairs=32):
        text = item.messages[0].content
        value, name = item.reply.content, item.messages[0].content.split()[-2]
        assert text.count(f" {value}.") == 1 and text.count(f"{name} ") == 2


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


def guesses(item, rng):
    """Return what somebody guesses who knows what kind of answer is wanted."""
    name, text = item.skill, item.messages[-1].content
    if name.startswith("recall"):
        form = " keeps the " if "keep?" in text else " has the "
        return rng.choice([part.partition(".")[0] for part in text.split(form)[1:]])
    if name == "choice":
        return f"Answer: {rng.choice('ABCD')}"
    if name == "topic":
        return rng.choice([*TOPICS])
    if name.startswith("lists"):
        return " ".join(rng.sample(text.split()[1:], len(text.split()) - 1))
    return rng.choice(next(values for values in VALUES.values() if item.guess == 1 / len(values)))


@pytest.mark.parametrize("name", ["recall/window", "choice", "topic", "lists/reverse", "facts"])
def test_guess_rates(name):
    rng, tries = random.Random(3), 600
    level = {"topic": {"tokens": 130}, "lists/reverse": {"length": 3}}.get(name, {})
    items = [SKILLS[name].item(random.Random(i), **level) for i in range(tries)]
    expected = sum(item.guess for item in items) / tries
    rate = sum(item.grade(guesses(item, rng)) for item in items) / tries
    # Sentences of the filler may have the form of a fact, which makes a guess a little worse.
    assert abs(rate - expected) < 4 * (expected / tries) ** 0.5


def test_the_world_is_known_by_heart():
    assert len(TOWNS) == 128 == len(set(TOWNS))
    assert len(facts()) == 512
    item = held_out("facts", 1)[0]
    town = next(town for town in TOWNS if town in item.messages[0].content)
    assert item.reply.content in {facts()[town, attribute] for attribute in VALUES}


def test_sections_have_one_main_topic():
    rng = random.Random(2)
    for topic in TOPICS:
        words = section(rng, topic, 130).replace(".", "").split()
        counts = {name: sum(word in TOPICS[name] for word in words) for name in TOPICS}
        assert max(counts, key=counts.get) == topic


def test_held_out_text_is_not_a_training_text():
    text = held_out_text(500)
    assert text == held_out_text(500) and text != held_out_text(500, 1)
    assert len(tokenizer().encode(text)) >= 500
    assert text not in SKILLS["english"].train(training_rng(0, 0), 5000).text


def test_mixtures_need_weights_and_hold_their_length():
    with pytest.raises(ValueError, match="positive"):
        mixture({"sums2": 0}, random.Random(0), 64, tokenizer())
    for length in (64, 257, 1024):
        ids, weights = mixture(dict.fromkeys(SKILLS, 1.0), random.Random(length), length, tokenizer())
        assert ids.dtype == np.int32 and weights.dtype == np.float32 and len(ids) == len(weights) == length
        assert ids[0] == tokenizer().bos and weights[0] == 0 and ids.max() < 2048


def test_echo_learns_the_values_that_were_told_before():
    tables = tokenizer()
    ids, weights = mixture({"echo": 1}, training_rng(3, 4), 128, tables, echo={"pairs": 4})
    words = [tables.token_bytes(int(i)).decode().strip() for i in ids]
    ends = [i for i, word in enumerate(words) if word == "."]
    known: set[str] = set()
    for end in ends:
        assert weights[end - 1] == (1.0 if words[end - 1] in known else 0.0)
        known.add(words[end - 1])
    assert len(known) == 4 and len(ids) == 128


def learned(conversation):
    """Return the texts of a row, and those of them that are learned as replies."""
    texts = [("".join(part.text for part in segment.parts), segment.learn) for segment in conversation.segments]
    return [text for text, _ in texts], [text for text, learn in texts if learn == 1]


def test_search_goes_through_the_choices_up_to_the_value():
    texts, replies = learned(SKILLS["search"].train(random.Random(5), 200))
    shown, checked = {}, 0
    for text in texts:
        if text.startswith("\nA."):
            shown = dict(line.split(". ") for line in text.split("\n") if line)
        elif text.startswith(" the "):
            wanted = text[5:-1]
        elif text in replies:
            lines = [f"{letter}. {value}" for letter, value in shown.items()]
            assert text == f" {' '.join(lines[: [*shown.values()].index(wanted) + 1])}\n"
            checked += 1
    assert checked == len(replies) > 10
    assert len({reply.count(".") for reply in replies}) == 4, "every place of the value"
