"""The pack of the embedded model's skills: what is asked, what is right, what the report says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ds4ref.cancellation import Cancellation
from ds4ref.eval import log as logs
from ds4ref.eval import nano_pack, packs
from ds4ref.eval.calls import call_of, call_parts
from ds4ref.eval.grading import grade
from ds4ref.eval.plan import settings_of
from ds4ref.eval.prompt import prompt
from ds4ref.eval.report import report
from ds4ref.eval.runner import ask
from ds4ref.eval.view import detail
from ds4ref.nano.skills import depth, tokenizer
from ds4ref.reports.build import build_report
from ds4ref.reports.sources import read_file
from ds4ref.targets import Ability, Completion, Finish, Target
from ds4ref.text.chat import render

ITEMS = nano_pack.items()
PACK = nano_pack.make()
BOTH = list(zip([item for item, _ in ITEMS], PACK.questions, strict=True))
"""Items, and the same as questions."""
CALLS = [(item, q) for item, q in BOTH if q.kind == "call"]


def test_the_file_is_what_the_generator_makes(tmp_path):
    packs.write(PACK, tmp_path / "nano.jsonl")
    kept = Path(packs.__file__).with_name("questions") / "nano.jsonl"
    assert kept.read_bytes() == (tmp_path / "nano.jsonl").read_bytes(), "make it anew: python -m ds4ref.eval.nano_pack"
    assert packs.load("nano") == PACK


def test_every_skill_is_there_from_the_beginning():
    skills = [item.skill for item, _ in ITEMS]
    assert 150 <= len(skills) <= 200 and len({q.digest for q in PACK.questions}) == len(skills)
    assert set(skills[:21]) == set(skills) == {*nano_pack.COUNTS, *(skill for skill, _ in nano_pack.RECALL.values())}


@pytest.mark.parametrize(("item", "question"), BOTH, ids=[q.id for q in PACK.questions])
def test_a_question_is_asked_as_the_skill_asks_it(item, question):
    asked = prompt(question, "none")
    assert render(asked.messages, asked.tools, asked.thinking).parts == item.prompt().parts
    assert (question.source, question.guess) == (item.skill, item.guess)


def test_the_longest_answer_fits():
    """With its end."""
    longest = max(len(tokenizer().encode_rendered(item.answer())) for item, _ in ITEMS)
    assert longest + 1 <= PACK.header.settings["tokens"]


def test_depths():
    found = [(stated, depth(item, tokenizer())) for item, stated in ITEMS if stated]
    assert {stated for stated, _ in found} == {*nano_pack.RECALL}
    assert all(stated - 10 <= measured <= stated for stated, measured in found)


def test_right_answers_are_right():
    for item, question in BOTH:
        assert item.grade(item.answer())
        assert grade(question, item.answer(), finish="stop").outcome == "right", question.id


def test_near_misses_are_wrong():
    for item, question in BOTH:
        if question.kind == "exact":
            for wrong in (f"{question.answer}.", f"The {question.answer}", question.answer.swapcase() + "0"):
                assert grade(question, f"{item.reply.reasoning}</think>{wrong}").outcome == "wrong"
            assert grade(question, f"{item.reply.reasoning}</think> {question.answer}\n").outcome == "right"
            assert grade(question, question.answer, finish="length").outcome == "ambiguous"
            assert grade(question, "", reasoning="so").outcome == grade(question, " ").outcome == "missing"


def test_calls_are_graded_by_their_parts():
    item, question = next((item, q) for item, q in CALLS if '"string"' in q.answer or '":"' in q.answer)
    call = json.loads(question.answer)

    def graded(name=call["name"], arguments=call["arguments"], before="", after=""):
        reply = replace(item.reply, calls=(call_of(json.dumps({"name": name, "arguments": arguments})),))
        return grade(question, before + replace(item, reply=reply).answer() + after)

    assert graded().outcome == graded(arguments=dict(reversed(call["arguments"].items()))).outcome == "right"
    assert graded().given == question.answer
    other = graded(name="other")
    assert (other.outcome, other.why) == ("wrong", "wrong tool, right arguments")
    assert graded(arguments={}).why == "right tool, wrong arguments"
    assert graded(before="Well.").why == "right tool, right arguments, not alone"
    assert graded(before="Well.").outcome == graded(after="Done.").outcome == "wrong"
    assert grade(question, "set it").why == "no call" and grade(question, "").outcome == "missing"


@pytest.mark.parametrize("given", ["5", 5.5, True, None])
def test_types_count(given):
    right = '{"name":"t","arguments":{"n":5}}'
    assert call_parts(json.dumps({"name": "t", "arguments": {"n": given}}), right) == (True, False)
    assert call_parts(right, right) == (True, True) and call_parts("", right) == (False, False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"answer": "{}"}, "an answer with name and arguments"),
        ({"tools": ()}, "tools are needed"),
        ({"tools": ("[]",)}, "tools are JSON objects"),
        ({"called": "x"}, "a call has a name"),
        ({"kind": "exact", "answer": " x"}, "must not be empty or have spaces"),
        ({"kind": "integer", "answer": "5"}, "kind integer has no tools"),
        ({"think": "much"}, "unknown thinking mode"),
        ({"guess": 1.0}, "guess is a probability"),
    ],
)
def test_unusable_questions_are_named(changed, said):
    assert said in packs.problem(msgspec.structs.replace(CALLS[0][1], **changed))


# --- runs


class Knowing(Target):
    """Answers every question rightly but for those of some skills."""

    kind, name = "local", "knowing"
    abilities = frozenset({Ability.CHAT, Ability.TOOLS})

    def __init__(self, wrong=()):
        self.wrong = set(wrong)

    def stream(self, request):
        raise NotImplementedError

    def complete(self, request):
        item = next(item for item, q in BOTH if prompt(q, "none") == request.prompt)
        if item.skill in self.wrong:
            return Completion("no", finish=Finish.STOP)
        return Completion(
            item.reply.content, finish=Finish.STOP, reasoning=item.reply.reasoning, calls=item.reply.calls
        )

    def identity(self):
        return {"kind": self.kind, "name": self.name}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A run in which new tools are not understood."""
    path = tmp_path_factory.mktemp("run") / "answers.jsonl"
    settings, target = settings_of(PACK.header, {}), Knowing({"tools/open"})
    header = logs.header_of(PACK, settings, 1, target.identity(), {})
    with logs.Writer.create(path, header) as writer:
        for question in PACK.questions:
            writer.add(ask(target, question, 1, settings, Cancellation()))
    return logs.read(path)


def test_a_run_by_skill_with_guessing_and_by_depth(log):
    text = report(log, 120)
    lines = {line.split("  ")[0]: line.split() for line in text.split("\n")}
    assert lines["facts"][1] == "100.0" and lines["tools/open"][1] == "0.0"
    heading = next(line.split() for line in text.split("\n") if "guessing" in line and "95 %" in line)
    assert "guessing" in heading and "25.0" in lines["choice"] and "33.3" in lines["tools/open"]
    assert lines["2,048 tokens back"][3] == "100.0"
    assert "calls: 12 of 24 right; right tool 12, right arguments 12" in text
    assert f", guessing {100 * sum(q.guess for q in PACK.questions) / len(PACK.questions):.1f} %" in text
    assert "ds4's grader" not in text, "it knows a part of the questions only"
    assert all(sample.close == ("natural" if "think" in sample.id else "") for sample in log.samples)


def test_a_question_is_shown_with_its_tools_and_what_came_before(log):
    question = next(q for q in PACK.questions if q.called)
    text = detail(log, question, [s for s in log.samples if s.id == question.id])
    assert "--- tools" in text and question.called in text and question.result in text
    assert "--- system" not in text
    choice = next(q for q in PACK.questions if q.kind == "choice")
    assert "--- system" in detail(log, choice, [])


def test_the_report_has_a_section_on_it(log, tmp_path):
    written = build_report([read_file(log.path)], str(tmp_path / "r.html"))
    page, twin = (Path(file).read_text() for file in written.files[:2])
    for text in (page, twin):
        assert "What the model can do" in text and "guessing" in text and "2,048 tokens back" in text
        assert "Graded runs" not in text
    assert "Vertical strokes: the score of guessing." in page and "right answers by depth" in page
    assert "| · tools/open | 12 | 0.0 % |" in twin and "| 33.3 % |" in twin
