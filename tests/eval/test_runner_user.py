"""What a user may do to a run in the middle of it, from other threads and from signal handlers."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from ds4ref.eval.log import Grade, Sample
from ds4ref.eval.plan import Key, Settings, keys
from ds4ref.eval.runner import Abandoned, Finished, Runner, Started, Streamed

from .scripted import Scripted, integer, log_of
from .staged import Play

QUESTIONS = [integer(i) for i in range(1, 5)]


class Run:
    """A runner in a thread, whose events are kept."""

    def __init__(self, folder, at_once=1, earlier=()):
        self.play = Play(QUESTIONS)
        self.log = log_of(folder / "log.jsonl", QUESTIONS)
        for sample in earlier:
            self.log.add(sample)
        self.events = []
        todo = [key for key in keys(QUESTIONS, 1) if key not in self.log.samples]
        self.target = Scripted(self.play)
        self.runner = Runner(self.target, self.log, todo, settings=Settings(tokens=2000), questions=QUESTIONS,
                             listen=self.events.append, at_once=at_once)  # fmt: skip
        self.failure = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self.runner.run()
        except BaseException as error:
            self.failure = error

    def start(self):
        self.thread.start()

    def until(self, true):
        for _ in range(4000):
            if true():
                return
            time.sleep(0.005)
        raise AssertionError("it never became true")

    def ended(self):
        self.thread.join(30)
        assert not self.thread.is_alive()
        return {key.question[-1]: sample.status for key, sample in self.log.samples.items()}

    def count(self, kind, question):
        return sum(isinstance(event, kind) and event.key.question[-1] == question for event in list(self.events))


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.runner.leave()
    if made.thread.is_alive():
        made.thread.join(30)
    made.log.close()


def answering(run, question):
    return lambda: run.count(Streamed, question) >= 2


def test_again_asks_next_and_leaves_what_runs(run):
    gate = run.play.shut("answer")
    run.start()
    run.until(answering(run, "1"))
    run.runner.again(Key(1, "maths-0004"))
    gate.set()
    assert list(run.ended()) == ["1", "4", "2", "3"] and run.count(Abandoned, "1") == 0


def test_again_of_what_runs_begins_anew_and_comes_next(run):
    gate = run.play.shut("answer")
    run.start()
    run.until(answering(run, "1"))
    run.runner.pause()
    run.runner.again(Key(1, "maths-0001"))
    run.until(lambda: run.count(Started, "1") == 2)
    gate.set()
    assert list(run.ended()) == ["1", "2", "3", "4"]
    assert run.count(Abandoned, "1") == 1 and set(run.ended().values()) == {"done"}


def test_again_of_what_is_done_replaces_it(run):
    gate = run.play.shut("answer")
    run.start()
    run.until(answering(run, "1"))
    gate.set()
    run.until(lambda: len(run.log.samples) >= 1)
    run.ended()
    run.play.answers["maths-0002"] = "Answer: 99"
    run.runner.again(Key(1, "maths-0002"))
    run.runner.run()
    assert run.log.samples[Key(1, "maths-0002")].output.endswith("99") and len(run.log.samples) == 4


def earlier(outcome="wrong"):
    return Sample("maths-0001", 1, "", "done", "1", "", grade=Grade(outcome, "9"), output="before")


def test_an_answer_outlives_another_try_that_was_stopped(tmp_path):
    run = Run(tmp_path, earlier=[earlier()])
    run.play.shut("answer")
    run.runner.again(Key(1, "maths-0001"))
    run.start()
    run.until(answering(run, "1"))
    run.runner.stop()
    assert run.ended() == {"1": "done"} and run.log.samples[Key(1, "maths-0001")].output == "before"
    assert run.count(Abandoned, "1") == 1 and not any(isinstance(event, Finished) for event in run.events)
    run.log.close()


def test_a_stopped_one_does_not_outlive_anything(tmp_path):
    run = Run(tmp_path, earlier=[Sample("maths-0001", 1, "", "stopped", "1", "", output="before")])
    run.play.shut("answer")
    run.runner.again(Key(1, "maths-0001"))
    run.start()
    run.until(answering(run, "1"))
    run.runner.stop()
    run.ended()
    assert run.log.samples[Key(1, "maths-0001")].output == "So it is.\n"
    run.log.close()


def test_who_leaves_gets_nothing_more_into_the_log(run):
    run.play.shut("answer")
    run.start()
    run.until(answering(run, "1"))
    run.runner.leave()
    assert run.ended() == {} and run.runner.left
    assert not any(isinstance(event, Finished) for event in run.events)


def test_a_pause_holds_between_samples(run):
    gate = run.play.shut("answer")
    run.target.abilities -= {next(a for a in run.target.abilities if a.name == "STREAM")}
    run.start()
    run.until(lambda: run.count(Started, "1"))
    run.runner.pause()
    gate.set()
    run.until(lambda: len(run.log.samples) == 1)
    time.sleep(0.1)
    assert run.count(Started, "2") == 0
    run.runner.go()
    assert len(run.ended()) == 4


def test_a_pause_after_the_last_sample_holds_nothing(run):
    run.start()
    run.until(lambda: len(run.log.samples) == 4)
    run.runner.pause()
    assert len(run.ended()) == 4


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_in_a_thread_is_an_error_of_the_run(tmp_path, at_once):
    run = Run(tmp_path, at_once)

    def broken(event):
        raise ZeroDivisionError("in a listener")

    run.runner.listen = broken
    run.start()
    run.ended()
    assert isinstance(run.failure, ZeroDivisionError)
    run.log.close()


def test_a_stop_between_taking_and_asking_is_heard(run, monkeypatch):
    """The sample that was taken already is not asked to its end."""
    run.play.shut("answer")
    take = run.runner.schedule.take

    def taken():
        key = take()
        run.runner.stop()
        return key

    monkeypatch.setattr(run.runner.schedule, "take", taken)
    run.start()
    assert run.ended() == {"1": "stopped"}


def test_a_handler_may_stop_a_run_that_holds_its_lock(run):
    """In the middle of writing a sample, which is where a signal finds it if it wants to."""
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
