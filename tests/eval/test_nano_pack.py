"""The pack of the embedded model's skills: what is asked, what is right, what the report says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ds4ref.eval import library, packs
from ds4ref.eval import log as logs
from ds4ref.eval.calls import call_of
from ds4ref.eval.grading import grade
from ds4ref.eval.plan import settings_of
from ds4ref.eval.prompt import prompt
from ds4ref.eval.report import report
from ds4ref.eval.runner import ask
from ds4ref.eval.view import detail
from ds4ref.nano.skills import tokenizer
from ds4ref.targets import Ability, Completion, Finish, Target
from ds4ref.text.chat import render

from . import nano_pack

ITEMS = nano_pack.items()
PACK = nano_pack.make()
BOTH = list(zip([item for item, _ in ITEMS], PACK.questions, strict=True))
"""Items, and the same as questions."""


def test_the_file_is_what_the_generator_makes(tmp_path):
    packs.write(PACK, tmp_path / "nano.jsonl")
    made = (tmp_path / "nano.jsonl").read_bytes()
    assert library.files()["nano"].read_bytes() == made, "make it anew: python -m tests.eval.nano_pack"


def test_every_skill_is_there_from_the_beginning_and_every_depth_as_stated():
    skills = [item.skill for item, _ in ITEMS]
    assert len({q.digest for q in PACK.questions}) == len(skills) == 194
    assert set(skills[:21]) == set(skills) == {*nano_pack.COUNTS, *(skill for skill, _ in nano_pack.RECALL.values())}
    deep = [(stated, nano_pack.tokens_back(item, tokenizer())) for item, stated in ITEMS if stated]
    assert {stated for stated, _ in deep} == {*nano_pack.RECALL}
    assert all(stated - 10 <= measured <= stated for stated, measured in deep)
    longest = max(len(tokenizer().encode_rendered(item.answer())) for item, _ in ITEMS)
    assert longest + 1 <= PACK.header.settings["tokens"], "every right answer fits, with its end"


def test_questions_are_asked_as_the_skills_ask_them_and_right_answers_are_right():
    for item, question in BOTH:
        asked = prompt(question, "none")
        assert render(asked.messages, asked.tools, asked.thinking).parts == item.prompt().parts
        assert (question.source, question.guess) == (item.skill, item.guess)
        assert item.grade(item.answer())
        assert grade(question, item.answer(), finish="stop").outcome == "right", question.id
        if question.kind == "exact":
            for wrong in (f"{question.answer}.", f"The {question.answer}", question.answer.swapcase() + "0"):
                assert grade(question, f"{item.reply.reasoning}</think>{wrong}").outcome == "wrong"


def test_calls_are_graded_by_their_parts():
    item, question = next((item, q) for item, q in BOTH if q.kind == "call" and '":"' in q.answer)
    call = json.loads(question.answer)

    def graded(name=call["name"], arguments=call["arguments"], before="", after=""):
        reply = replace(item.reply, calls=(call_of(json.dumps({"name": name, "arguments": arguments})),))
        found = grade(question, before + replace(item, reply=reply).answer() + after)
        return found.outcome, found.why

    assert graded()[0] == graded(arguments=dict(reversed(call["arguments"].items())))[0] == "right"
    assert graded(name="other") == ("wrong", "wrong tool, right arguments")
    assert graded(arguments={}) == ("wrong", "right tool, wrong arguments")
    assert graded(before="Well.") == ("wrong", "right tool, right arguments, not alone")
    assert graded(after="Done.")[0] == "wrong" and grade(question, "set it").why == "no call"


# --- runs


class Knowing(Target):
    """Answers every question rightly but for those of new tools."""

    kind, name = "local", "knowing"
    abilities = frozenset({Ability.CHAT, Ability.TOOLS})

    def stream(self, request):
        raise NotImplementedError

    def complete(self, request):
        item = next(item for item, q in BOTH if prompt(q, "none") == request.prompt)
        if item.skill == "tools/open":
            return Completion("no", finish=Finish.STOP)
        return Completion(
            item.reply.content, finish=Finish.STOP, reasoning=item.reply.reasoning, calls=item.reply.calls
        )

    def identity(self):
        return {"kind": self.kind, "name": self.name}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "answers.jsonl"
    settings, target = settings_of(PACK.header.settings, {}), Knowing()
    header = logs.header_of(PACK, settings, 1, target.identity(), {})
    with logs.Writer.create(path, header) as writer:
        for question in PACK.questions:
            writer.add(ask(target, question, 1, settings))
    return logs.read(path)


def test_a_run_by_skill_with_guessing_and_by_depth(log):
    text = report(log, 120)
    lines = {line.split("  ")[0]: line.split() for line in text.split("\n")}
    assert lines["facts"][1] == "100.0" and lines["tools/open"][1] == "0.0"
    assert "25.0" in lines["choice"] and "33.3" in lines["tools/open"] and lines["2,048 tokens back"][3] == "100.0"
    assert "calls: 12 of 24 right; right tool 12, right arguments 12" in text
    assert f", guessing {100 * sum(q.guess for q in PACK.questions) / len(PACK.questions):.1f} %" in text
    assert all(sample.close == ("natural" if "think" in sample.id else "") for sample in log.samples)


def test_a_question_is_shown_with_its_tools_and_what_came_before(log):
    question = next(q for q in PACK.questions if q.called)
    text = detail(log.header, question, [s for s in log.samples if s.id == question.id])
    assert "--- tools" in text and question.called in text and question.result in text and "--- system" not in text
