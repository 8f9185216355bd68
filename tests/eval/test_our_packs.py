"""The packs that come with the program are those that were checked; nothing but the question tells the answer.

What depends on nothing but the files was checked once (commit a9331faa, this file): sources take turns, ids are
digests of their texts, each item is explained, every wrong choice names its mistake, keys are balanced over letters and
lengths, recall has five languages and two works an item, no two items share a fifth of their runs of five words. Who
changes a question runs those checks again.
"""

import hashlib
from collections import Counter

import pytest

from ds4ref.eval import library
from ds4ref.eval.grading import grade
from ds4ref.eval.library import load
from ds4ref.eval.packs import LETTERS

FILES = {
    "ds4ref": "55ddb54cb923a92b298c3cf890d87d33cee60966ef31a1b6d7078245e97cbf56",
    "recall": "16ec4bd07495e32d0d73491f3d0a2ea7bd6953d576cf47f1336924c4c58b65ab",
}
COUNTS = {"science": 25, "scholar": 25, "maths": 25, "security": 18}


def test_what_there_is():
    assert library.names() == ["ds4ref", "long", "nano", "recall"]
    assert Counter(q.source for q in load("ds4ref").questions) == COUNTS and len(load("recall").questions) == 60
    assert {name: hashlib.sha256(library.files()[name].read_bytes()).hexdigest() for name in FILES} == FILES


ALWAYS = (*LETTERS, "", "yes", "no", "true", "none", *map(str, range(-1, 20)), "0-999", "1,2,3", "all of them")
"""What says the same to everything."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", library.files())
def test_no_constant_answer_is_above_chance(name):
    """Of whole packs and of every source: 5 points above, or a question more than chance gives."""
    every = load(name).questions
    answers = dict.fromkeys([*ALWAYS, *(q.answer for q in every)])
    groups = [every, *([q for q in every if q.source == source] for source in {q.source for q in every})]
    for asked in groups:
        allowed = 100 * sum(q.chance for q in asked) / len(asked) + max(5, 100 / len(asked))
        for answer in answers:
            for form in ("{}", "Answer: {}", "</think>{}", "<think>so</think>\nAnswer: {}"):
                right = sum(grade(q, form.format(answer), finish="stop").outcome == "right" for q in asked)
                assert 100 * right / len(asked) <= allowed, (asked[0].source, form.format(answer))


def test_chance_is_stated_where_it_is_not_one_in_the_choices():
    """The commonest key of security is 0: nothing is wrong in five functions of 18."""
    chances = {source: {q.chance for q in load("ds4ref").questions if q.source == source} for source in COUNTS}
    assert chances == {"science": {0.25}, "scholar": {0.1}, "maths": {0.001}, "security": {0.2778}}
    assert {round(q.chance, 3) for q in load("recall").questions if q.choices} == {0.167}
