"""The prose and story generators: reproducible, varied, and honest about what they hide."""

import hashlib
import itertools
import re

import pytest

from ds4ref.nano.prose import Fact, Story, paragraphs, prose, spell, statements, tell
from ds4ref.nano.words import GRAMMAR, NAMES, WORDS

PROSE_SHA256 = "77016835e722cacd02a106d21ca8fc23d073c5d7f25f80d6970ad7d97d0d5627"


def test_longer_texts_begin_with_the_shorter_ones():
    long = prose(20_000, seed=3)
    for n in (0, 1, 1000, 7777):
        short = prose(n, seed=3)
        assert len(short) >= n
        assert long.startswith(short)


def test_text_is_the_same_on_every_python():
    # Random streams and set order differ between versions; the text must not. Changing the grammar changes this
    # digest, the embedded model's vocabulary and with it NANO_SHA256: on purpose only.
    assert hashlib.sha256(prose(100_000, seed=1).encode()).hexdigest() == PROSE_SHA256


def test_seeds_differ():
    assert len({prose(2000, seed) for seed in range(20)}) == 20


def test_text_is_varied_ascii_sentences():
    text = prose(200_000, seed=9)
    assert text.isascii()
    sentences = re.split(r"(?<=[.?])\s+", text)
    assert len(set(sentences)) > 0.98 * len(sentences)
    assert len(set(re.findall(r"[A-Za-z]+", text))) > 600
    assert not re.search(r"[{}_]|  |\b[Aa] [aeiou]|\ban [^aeiouh]", text)
    assert all(re.match(r'["A-Z]', p) for p in itertools.islice(paragraphs(1), 200))


def test_every_symbol_of_the_grammar_can_be_expanded():
    known = set(GRAMMAR) | set(WORDS) | {"name", "number", "count", "year", "ordinal", "lead", "friend"}
    used = {symbol.lower() for options in GRAMMAR.values() for o in options for symbol in re.findall(r"\{(\w+)\}", o)}
    assert used <= known


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (7, "seven"),
        (19, "nineteen"),
        (20, "twenty"),
        (42, "forty-two"),
        (100, "one hundred"),
        (315, "three hundred fifteen"),
        (1000, "one thousand"),
        (999_999, "nine hundred ninety-nine thousand nine hundred ninety-nine"),
    ],
)
def test_spelling(number, words):
    assert spell(number) == words


def test_spelling_has_no_duplicates_and_limits():
    assert len({spell(n) for n in range(20_000)}) == 20_000
    for bad in (-1, 1_000_000):
        with pytest.raises(ValueError, match="spelled"):
            spell(bad)


def test_story_hides_each_fact_once_where_it_says():
    story = tell(seed=5)
    assert len(story.facts) == 16
    assert len({fact.name for fact in story.facts}) == 16
    assert story.text.count("was assigned the number") == 16 + 1  # and once in the rule at the beginning
    for fact in story.facts:
        sentence = story.text[fact.position :].split(".", 1)[0]
        said = f"{fact.name} was assigned the number {spell(fact.number)}"
        assert sentence == f"On that day {said}, and the clerk entered it in the register"
        assert not re.search(rf"{fact.name}\s*=\s*{fact.number}", story.text), "the answer is given away"


def test_facts_are_spread_evenly():
    story = tell(seed=6, scenes=160, facts=16)
    depths = [fact.position / len(story.text) for fact in story.facts]
    for i, depth in enumerate(depths):
        assert abs(depth - (i + 0.5) / 16) < 0.04


def test_story_has_distractors_and_ends_with_the_question():
    story = tell(seed=7)
    numbers = re.findall(r"number ([a-z-]+)", story.text)
    assert len(numbers) > 17, "rumours name numbers, too"
    assert story.text.endswith("nothing else on the line.")
    assert len(story.text) > 80_000


def test_story_takes_given_facts_and_refuses_too_many():
    story = tell(seed=1, scenes=5, facts={"Ada": 7, "Bob": 340})
    assert [(f.name, f.number) for f in story.facts] == [("Ada", 7), ("Bob", 340)]
    assert "Bob was assigned the number three hundred forty" in story.text
    with pytest.raises(ValueError, match="scenes"):
        tell(scenes=3, facts=4)
    with pytest.raises(ValueError, match="names"):
        tell(facts=len(NAMES) + 1)


@pytest.mark.parametrize("count", [1, 2, 190])
def test_as_many_facts_as_asked(count):
    facts = {f"P{i}": i for i in range(count)}
    assert {f.name: f.number for f in tell(scenes=190, facts=facts).facts} == facts


@pytest.mark.parametrize(
    ("answer", "numbers"),
    [
        ("Bob=34", [34]),
        ("Bob = 34\nBob\t=\t35", [34, 35]),
        ("* **Bob=34**", [34]),
        ("Bobby=34 xBob=3 Bob_=4 _Bob=5 Bob2=6", []),
        ("Bob is 34", []),
        ("Bob=\n34", []),
        ("Bob=thirty-four", []),
        ("Bob==34", []),
        ("", []),
        ("Bob=034", [34]),
        ("Bob=" + "9" * 5000, [10**18 - 1]),
    ],
)
def test_statements_need_the_whole_name(answer, numbers):
    assert statements(answer, "Bob") == numbers


def test_grades():
    story = Story("", (Fact("Ann", 1, 0), Fact("Bob", 2, 0), Fact("Cid", 3, 0), Fact("Dan", 4, 0)))
    grade = story.grade("Ann=1\nBob=9 Bob=8\nDan=5\nDan=4\nEve=3")
    assert grade.right == ["Ann", "Dan"], "one correct statement is enough"
    assert grade.wrong == {"Bob": [9, 8]}
    assert grade.missing == ["Cid"]
