"""The runner, on a target that answers by script: what is asked and logged, and what a user may do in the middle."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from ds4ref.errors import DataError, TargetError
from ds4ref.eval import log as logs
from ds4ref.eval.log import Grade, Sample, Writer
from ds4ref.eval.plan import Key, Settings, keys
from ds4ref.eval.runner import IN_A_ROW, Abandoned, Finished, Runner, Started, Streamed, ask, missing
from ds4ref.targets import Ability, Delta, Finish

from .scripted import Scripted, integer, log_of
from .staged import Play

QUESTIONS = [integer(i) for i in range(1, 7)]
PLAN = Settings(tokens=2000)


class Run:
    """A runner in a thread, whose events are kept; ``hear`` is called with each of them."""

    def __init__(self, folder, at_once=1, earlier=(), count=6):
        self.questions = QUESTIONS[:count]
        self.play = Play(self.questions)
        self.log = log_of(folder / "log.jsonl", self.questions, PLAN)
        for sample in earlier:
            self.log.add(sample)
        self.events, self.failure, self.hear = [], None, lambda event: None
        todo = [key for key in keys(self.questions, 1) if key not in self.log.samples]
        self.target = Scripted(self.play)
        self.runner = Runner(self.target, self.log, todo, settings=PLAN, questions=self.questions, listen=self._listen,
                             at_once=at_once)  # fmt: skip
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _listen(self, event):
        self.events.append(event)
        self.hear(event)

    def _run(self):
        try:
            self.runner.run()
        except BaseException as error:
            self.failure = error

    def until(self, true):
        for _ in range(4000):
            if true():
                return
            time.sleep(0.005)
        raise AssertionError("it never became true")

    def answering(self, question, times=2):
        """Start, if it has not started, and wait for pieces of an answer."""
        if not self.thread.is_alive():
            self.thread.start()
        self.until(lambda: self.count(Streamed, question) >= times)

    def ended(self):
        if self.thread.ident is None:
            self.thread.start()
        self.thread.join(30)
        assert not self.thread.is_alive()
        return {key.question[-1]: sample.status for key, sample in self.log.samples.items()}

    def count(self, kind, question):
        return sum(isinstance(event, kind) and event.key.question[-1] == question for event in list(self.events))


@pytest.fixture
def run(tmp_path):
    made = []

    def start(**options):
        made.append(Run(tmp_path, **options))
        return made[-1]

    yield start
    for one in made:
        one.runner.leave()
        if one.thread.is_alive():
            one.thread.join(30)
        one.log.close()


# --- what is asked and logged


def test_every_question_is_asked_and_graded(run):
    run = run()
    run.play.answers["maths-0003"] = "Answer: 77"
    assert list(run.ended().values()) == ["done"] * 6
    samples = logs.read(run.log.path).samples
    assert [s.id for s in samples] == [q.id for q in QUESTIONS]
    assert [s.grade.outcome for s in samples] == ["right", "right", "wrong", "right", "right", "right"]
    one = samples[0]
    assert (one.output, one.reasoning, one.finish, one.close) == ("So it is.\nAnswer: 1", "hm hm\n", "stop", "natural")
    assert (one.prompt_tokens, one.tokens, one.expected, samples[2].grade.given) == (40, 3, "1", "77")
    assert one.prompt == run.target.asked[0].prompt.user and one.ttft < one.seconds
    assert [e.key.question for e in run.events if isinstance(e, Started)] == [q.id for q in QUESTIONS]
    pieces = [e for e in run.events if isinstance(e, Streamed) and e.key.question == "maths-0001"]
    assert "".join(e.text for e in pieces if e.thinking) == one.reasoning
    assert "".join(e.text for e in pieces if not e.thinking) == one.output and [e.tokens for e in pieces] == [1, 2, 3]


def test_requests_carry_the_settings():
    plan = Settings(tokens=900, temperature=0.7, top_p=0.9, min_p=0.1, seed=4, think="max")
    target = Scripted(Play(QUESTIONS))
    ask(target, QUESTIONS[1], 2, plan)
    (request,) = target.asked
    assert (request.max_tokens, request.temperature, request.top_p, request.min_p) == (900, 0.7, 0.9, 0.1)
    assert request.seed == plan.sample_seed(QUESTIONS[1], 2) and request.prompt.thinking == "max"
    assert request.guide is None, "the script cannot be guided"


def test_a_failure_is_no_wrong_answer_and_what_is_missing_is_asked_again(run):
    run = run(count=4)
    run.play.answers["maths-0002"] = TargetError("the line is dead")
    run.target.finish = lambda request: Finish.LENGTH if "number is 3" in request.prompt.user else Finish.STOP
    run.ended()
    bad = logs.read(run.log.path).samples[1]
    assert (bad.status, bad.grade, bad.error, bad.output) == ("failed", None, "the line is dead", "So it is.\n")
    wanted = keys(QUESTIONS, 1)
    run.log.header.questions = QUESTIONS
    assert [k.question[-1] for k in missing(run.log, wanted)] == ["5", "6"]
    assert [k.question[-1] for k in missing(run.log, wanted, incomplete=True)] == ["2", "3", "5", "6"]


@pytest.mark.parametrize("answered", range(1, IN_A_ROW))
def test_failures_that_are_not_in_a_row_do_not_end_a_run(run, answered):
    one = run()
    one.play.answers = {q.id: TargetError("gone") for q in QUESTIONS if q is not QUESTIONS[answered]}
    one.ended()
    assert one.failure is None and len(one.log.samples) == len(QUESTIONS) == IN_A_ROW + 1


def test_what_ends_a_run(run, monkeypatch):
    one = run()
    one.play.answers = {q.id: TargetError("nobody there") for q in QUESTIONS}
    one.ended()
    assert str(one.failure) == f"{IN_A_ROW} samples in a row failed, the last one with: nobody there"
    assert len(one.log.samples) == IN_A_ROW


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("where", ["log", "listener"])
def test_an_error_here_ends_the_run(run, monkeypatch, at_once, where):
    one = run(at_once=at_once)

    def broken(*args):
        raise DataError("no space")

    if where == "log":
        monkeypatch.setattr(Writer, "_line", broken)
    else:
        one.hear = broken
    one.ended()
    assert isinstance(one.failure, DataError) and len(one.target.asked) <= at_once


@pytest.mark.parametrize(
    "reasoning, text, finish, close",
    [("never ending", "", Finish.LENGTH, "open"), ("done", "Answer: 1", Finish.LENGTH, "natural"),
     ("", "", Finish.STOP, "natural"), ("", "Answer: 1", Finish.STOP, "")],
)  # fmt: skip
def test_how_thinking_ended_where_it_cannot_be_guided(reasoning, text, finish, close):
    target = Scripted(lambda request: [Delta(reasoning=reasoning), Delta(text)])
    target.finish = lambda request: finish
    assert ask(target, QUESTIONS[0], 1, PLAN).close == close
    assert ask(target, QUESTIONS[0], 1, Settings(think="none")).close == ""


def test_without_streaming_the_answer_still_comes():
    target = Scripted(Play(QUESTIONS))
    target.abilities -= {Ability.STREAM}
    sample = ask(target, QUESTIONS[1], 1, PLAN)
    assert sample.right and sample.reasoning == "hm hm\n"


# --- what a user does


@pytest.mark.parametrize("at_once", [1, 3])
def test_stop_keeps_what_there_is_and_ends_a_pause(run, at_once):
    run = run(at_once=at_once)
    run.play.shut("answer")
    run.answering("1")
    run.runner.pause()
    run.runner.stop()
    found = run.ended()
    assert 1 <= len(found) <= at_once and set(found.values()) == {"stopped"}
    assert all(s.grade is None and s.reasoning in ("", "hm hm\n") for s in run.log.samples.values())
    assert run.log.samples[Key(1, "maths-0001")].output == "So it is.\n"
    assert missing(run.log, keys(QUESTIONS, 1)) == keys(QUESTIONS, 1)


def test_pause_holds_the_next_token_and_its_time_is_nobodys(run, monkeypatch):
    run = run(count=1)
    run.hear = lambda event: run.runner.pause() if isinstance(event, Streamed) and event.tokens == 2 else None
    now, wait = [0.0], run.runner._going.wait

    def waited():
        wait()
        now[0] += 1000

    monkeypatch.setattr(run.runner._going, "wait", waited)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run.answering("1")
    run.thread.join(0.3)
    assert run.thread.is_alive() and run.count(Streamed, "1") == 2 and run.runner.paused
    run.runner.go()
    assert run.ended() == {"1": "done"} and run.log.samples[Key(1, "maths-0001")].seconds == 0


def test_a_pause_holds_between_samples(run):
    run = run()
    gate = run.play.shut("answer")
    run.target.abilities -= {Ability.STREAM}
    run.thread.start()
    run.until(lambda: run.target.asked)
    run.runner.pause()
    gate.set()
    run.until(lambda: len(run.log.samples) == 1)
    time.sleep(0.1)
    assert run.count(Started, "2") == 0
    run.runner.go()
    assert len(run.ended()) == 6


@pytest.mark.parametrize(("question", "order", "abandoned"), [(5, "512346", "1"), (1, "123456", "")])
def test_asking_now_loses_no_question(run, question, order, abandoned):
    run = run()
    gate = run.play.shut("answer")
    run.answering("1")
    run.runner.run_now(Key(1, f"maths-000{question}"))
    if abandoned:
        run.until(lambda: run.count(Abandoned, "1") == 1)
    gate.set()
    assert "".join(run.ended()) == order and set(run.ended().values()) == {"done"}
    assert "".join(e.key.question[-1] for e in run.events if isinstance(e, Abandoned)) == abandoned


def test_what_is_done_is_asked_again_and_replaced(run):
    run = run()
    run.ended()
    run.play.answers["maths-0002"] = "Answer: 99"
    run.runner.run_now(Key(1, "maths-0002"))
    run.runner.run()
    assert run.log.samples[Key(1, "maths-0002")].output.endswith("99") and len(run.log.samples) == 6


@pytest.mark.parametrize(("status", "output"), [("done", "before"), ("stopped", "So it is.\n")])
def test_an_answer_outlives_another_try_that_was_stopped(run, status, output):
    grade = Grade("wrong", "9") if status == "done" else None
    run = run(earlier=[Sample("maths-0001", 1, "", status, "1", "", grade=grade, output="before")])
    run.play.shut("answer")
    run.runner.run_now(Key(1, "maths-0001"))
    run.answering("1")
    run.runner.stop()
    assert run.ended() == {"1": status} and run.log.samples[Key(1, "maths-0001")].output == output
    assert run.count(Abandoned, "1") == (status == "done")


def test_who_leaves_gets_nothing_more_into_the_log(run):
    run = run()
    run.play.shut("answer")
    run.answering("1")
    run.runner.leave()
    assert run.ended() == {} and run.runner.left and not any(isinstance(event, Finished) for event in run.events)


def test_several_at_once_are_each_asked_once(run):
    run = run(at_once=3)
    gate = run.play.shut("answer")
    run.answering("3")
    assert len(run.runner.running()) == 3
    gate.set()
    assert sorted(run.ended()) == list("123456") and len(run.target.asked) == 6


def test_a_stop_between_taking_and_asking_is_heard(run, monkeypatch):
    run = run()
    run.play.shut("answer")
    take = run.runner._take

    def taken():
        key = take()
        run.runner.stop()
        return key

    monkeypatch.setattr(run.runner, "_take", taken)
    assert run.ended() == {"1": "stopped"}


def test_a_handler_may_stop_a_run_that_holds_its_lock(run):
    """In the middle of writing a sample, which is where a signal finds it if it wants to."""
    run = run()
    add = run.log.add

    def interrupted(sample):
        signal.raise_signal(signal.SIGINT)
        add(sample)

    run.log.add = interrupted
    before = signal.signal(signal.SIGINT, lambda number, frame: run.runner.stop())
    try:
        run.runner.run()  # in this thread, which gets the signals
    finally:
        signal.signal(signal.SIGINT, before)
    assert [sample.status for sample in run.log.samples.values()] == ["done"]
