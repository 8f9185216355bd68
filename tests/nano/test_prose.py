"""The prose and story generators: reproducible, varied, and honest about what they hide."""

import hashlib
import re

import pytest

from ds4ref.nano.prose import Fact, Story, prose, spell, statements, tell

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


def test_spelling_has_no_duplicates_and_limits():
    assert len({spell(n) for n in range(20_000)}) == 20_000
    assert spell(999_315) == "nine hundred ninety-nine thousand three hundred fifteen"
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


@pytest.mark.parametrize(
    ("answer", "numbers"),
    [
        ("Bob=34", [34]),
        ("* **Bob = 34**\nBob\t=\t35", [34, 35]),
        ("Bobby=34 xBob=3 Bob_=4 _Bob=5 Bob2=6", []),
        ("Bob is 34 Bob=\n34 Bob=thirty-four Bob==34", []),
        ("Bob=034", [34]),
        ("Bob=" + "9" * 5000, [10**18 - 1]),
    ],
)
def test_statements_need_the_whole_name(answer, numbers):
    assert statements(answer, "Bob") == numbers


def test_grades():
    story = Story("", (Fact("Ann", 1, 0), Fact("Bob", 2, 0), Fact("Cid", 3, 0), Fact("Dan", 4, 0)))
    recalled = story.recalled("Ann=1\nBob=9 Bob=8\nDan=5\nDan=4\nEve=3")
    assert recalled == ["Ann", "Dan"], "one correct statement is enough"
