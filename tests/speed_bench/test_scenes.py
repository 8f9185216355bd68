"""Scenes for measuring drafts: what they hold, and that lookup finds in each what it should."""

from __future__ import annotations

import json

import pytest

from ds4ref.drafts.lookup import Lookup
from ds4ref.errors import UsageError
from ds4ref.nano import embedded_path
from ds4ref.speed_bench.scenes import CHANGED, SCENES, edit, records, scene
from ds4ref.text.vocabulary import open_tokenizer
from ds4ref.weights import open_source


@pytest.fixture(scope="module")
def tokenizer():
    with open_source(embedded_path()) as source:
        return open_tokenizer(source)


def tokens_a_pass(name: str, tokenizer, count: int = 1024) -> float:
    """Of lookup at depth 7, if the answer is the model's."""
    made = scene(name, tokenizer, count)
    draft, live, at, passes = Lookup(), list(made.prompt), 0, 0
    while at < count:
        live.append(made.answer[at])
        at, passes = at + 1, passes + 1
        for token in draft.propose(live, None, min(7, count - at)):
            if token != made.answer[at]:
                break
            live.append(token)
            at += 1
    return count / passes


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("count", [1, 200, 3000])
def test_an_answer_has_the_tokens_asked_for_and_is_always_the_same(name, count, tokenizer):
    made = scene(name, tokenizer, count, seed=3)
    assert len(made.answer) == count and made.prompt and made.name == name
    assert all(0 <= token < len(tokenizer) for token in made.prompt + made.answer)
    assert made == scene(name, tokenizer, count, seed=3)
    if count > 1:
        assert made != scene(name, tokenizer, count, seed=4)


def test_an_edit_is_a_module_with_every_eighth_line_changed():
    request, answer = edit(6000, seed=1)
    old, new = request.splitlines(), answer.splitlines()
    compile(answer, "answer", "exec")
    differ = [at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    assert differ and all(at % CHANGED == 1 for at in differ)
    assert len(new) / CHANGED / 4 < len(differ) <= len(new) / CHANGED + 1


def test_a_table_has_the_values_of_the_records():
    result, table = records(3000, seed=2)
    rows = json.loads(result[: result.rindex("]") + 1])
    lines = table.splitlines()[2:]
    assert lines == [f"| {row['path']} | {row['size']} | {row['owner']} |" for row in rows]
    assert len(table) > 3000


def test_lookup_profits_where_there_is_something_to_copy(tokenizer):
    speeds = {name: tokens_a_pass(name, tokenizer) for name in SCENES}
    assert speeds["edit"] > 3 and speeds["json"] > 1.8
    assert speeds["edit"] > speeds["json"] > speeds["prose"] > speeds["random"]
    assert speeds["random"] < 1.02


def test_another_name_is_refused(tokenizer):
    with pytest.raises(UsageError, match="choose from prose, edit, json, random"):
        scene("poem", tokenizer)
