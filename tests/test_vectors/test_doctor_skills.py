"""What the doctor asks of an engine with the trained embedded model: facts by depth, and tool calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ds4ref.engine import Engine
from ds4ref.errors import TargetError
from ds4ref.nano.skills import held_out
from ds4ref.targets import Prompt
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors.doctor import depth, skills
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.findings import Outcome, Stage


@pytest.fixture(scope="module")
def engine(trained_path):
    with Engine.open(trained_path) as opened:
        yield opened


class Forgetful(LocalTarget):
    """Says something else where a prompt is longer than ``limit`` tokens, but for the first ``spared`` of them."""

    def __init__(self, engine: Engine, limit: int, spared: int = 0):
        super().__init__(engine)
        self.limit, self.spared = limit, spared

    def complete(self, request, *args):
        answer = super().complete(request, *args)
        if len(self.encode(request.prompt)) <= self.limit:
            return answer
        self.spared -= 1
        return answer if self.spared >= 0 else replace(answer, text="kettle", markup="", calls=())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("limit", "spared", "facts", "calls", "far"),
    [
        (100_000, 0, Outcome.OK, Outcome.OK, "4 of 4"),
        (300, 0, Outcome.UNEXPLAINED, Outcome.UNEXPLAINED, "0 of 4"),
        (300, 3, Outcome.UNSURE, Outcome.UNEXPLAINED, "3 of 4"),
        (300, 2, Outcome.UNEXPLAINED, Outcome.UNEXPLAINED, "2 of 4"),
    ],
)
def test_facts_and_calls_that_long_prompts_lose(engine, limit, spared, facts, calls, far):
    case, stage = (
        ExamContext(Forgetful(engine, limit, spared), engine, quick=True, kinds={"chat"}),
        Stage("d", "D", "?"),
    )
    skills.check(case, stage)
    assert [(check.name, check.outcome) for check in stage.checks] == [("facts", facts), ("tool calls", calls)]
    assert stage.checks[0].figures == {"64 tokens back": "4 of 4", "128 tokens back": "4 of 4", "512 tokens back": far}


@pytest.mark.thorough
def test_a_target_that_refuses_long_prompts_keeps_what_it_answered(engine):
    class Short(LocalTarget):
        def complete(self, request, *args):
            if len(self.encode(request.prompt)) > 300:
                raise TargetError("too long")
            return super().complete(request, *args)

    case, stage = ExamContext(Short(engine), engine, quick=True, kinds={"chat"}), Stage("d", "D", "?")
    skills.check(case, stage)
    facts, calls = stage.checks
    assert facts.outcome is Outcome.OK and facts.notes == ["512 tokens back: too long"]
    assert facts.figures == {"64 tokens back": "4 of 4", "128 tokens back": "4 of 4"}
    assert calls.outcome is Outcome.IMPOSSIBLE


def test_what_our_engine_cannot_answer_is_no_evidence(engine, monkeypatch):
    case, stage = ExamContext(LocalTarget(engine), engine, quick=True, kinds={"chat"}), Stage("d", "D", "?")
    monkeypatch.setattr(skills, "answered", lambda case, target, item: False)
    skills.check(case, stage)
    assert [check.outcome for check in stage.checks] == [Outcome.UNSURE, Outcome.UNSURE]


@pytest.mark.thorough
def test_only_the_embedded_models_skills_are_asked(engine, nano_engine, monkeypatch):
    assert skills.has_skills(ExamContext(LocalTarget(engine), engine))
    assert not skills.has_skills(ExamContext(LocalTarget(nano_engine), nano_engine))
    asked = []
    monkeypatch.setattr(skills, "check", lambda case, stage: asked.append("skills"))
    monkeypatch.setattr(depth, "_recall", lambda *args: asked.append("story"))
    monkeypatch.setattr(depth, "edges", lambda *args: None)
    for own in (engine, nano_engine):
        depth.depth(ExamContext(LocalTarget(own), own, kinds={"chat"}), Stage("d", "D", "?"))
    assert asked == ["skills", "story"]


def test_calls_that_an_endpoint_read_out_are_graded_as_written(engine):
    (item,) = held_out("tools/fixed", 1, skills.SEED)
    target = LocalTarget(engine)
    answer = target.complete(skills.Request(Prompt.conversation(item.messages, item.schemas), skills.MAX_TOKENS))
    assert answer.markup and answer.calls
    assert item.grade(skills._text(answer)) and item.grade(skills._text(replace(answer, markup="")))
    assert not item.grade(skills._text(replace(answer, markup="", calls=())))
