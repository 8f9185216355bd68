"""The runner, on a target that answers by script."""

import threading

import pytest

from ds4ref.errors import DataError, TargetError
from ds4ref.eval import log as logs
from ds4ref.eval.log import Writer, header_of
from ds4ref.eval.packs import Header, Pack, Question
from ds4ref.eval.plan import Key, Settings, keys
from ds4ref.eval.runner import IN_A_ROW, Abandoned, Finished, Runner, Schedule, Started, Streamed, ask, missing
from ds4ref.targets import Finish

from .answering import Answer, Scripted

QUESTIONS = tuple(Question(f"q-{i}", "s", "d", "hard", "integer", f"What is {i}?", (), str(i)) for i in range(6))
PACK = Pack(Header("p", 1), QUESTIONS)
PLAN = Settings(tokens=2000)


def number(request) -> int:
    return int(request.prompt.user.split("What is ")[1].split("?")[0])


def knows(request) -> Answer:
    """Everything but 3."""
    i = number(request)
    return Answer(f"So it is so.\nAnswer: {i if i != 3 else 77}", "let me see")


@pytest.fixture
def log(tmp_path):
    with Writer.create(tmp_path / "run.jsonl", header_of(PACK, PLAN, 1, {}, {})) as writer:
        yield writer


def run(target, log, todo=None, **options):
    events = []
    runner = Runner(
        target, log, keys(QUESTIONS, 1) if todo is None else todo, settings=PLAN, questions=QUESTIONS,
        listen=events.append, **options,
    )  # fmt: skip
    return runner, events


def test_every_question_is_asked_and_graded(log):
    target = Scripted(knows)
    runner, events = run(target, log)
    runner.run()
    samples = logs.read(log.path).samples
    assert [s.id for s in samples] == [q.id for q in QUESTIONS]
    assert [s.grade.outcome for s in samples] == ["right"] * 3 + ["wrong"] + ["right"] * 2
    one = samples[0]
    assert (one.output, one.reasoning, one.finish, one.close) == (
        "So it is so.\nAnswer: 0",
        "let me see",
        "stop",
        "natural",
    )
    assert (one.prompt_tokens, one.tokens, one.reasoning_tokens, one.expected) == (7, 8, 3, "0")
    assert one.prompt == target.asked[0].prompt.user and one.ttft == 0.001 and one.model == "script-1"
    assert samples[3].grade.given == "77"
    assert [e.key.question for e in events if isinstance(e, Started)] == [q.id for q in QUESTIONS]
    assert [e.sample.id for e in events if isinstance(e, Finished)] == [q.id for q in QUESTIONS]
    first = [e for e in events if isinstance(e, Streamed) and e.key.question == "q-0"]
    assert "".join(e.text for e in first if e.thinking) == one.reasoning
    assert "".join(e.text for e in first if not e.thinking) == one.output
    assert [e.tokens for e in first] == list(range(1, 9))


def test_requests_carry_the_settings(log):
    plan = Settings(tokens=900, temperature=0.7, top_p=0.9, min_p=0.1, seed=4, think="max")
    target = Scripted(knows)
    ask(target, QUESTIONS[1], 2, plan)
    request = target.asked[0]
    assert (request.max_tokens, request.temperature, request.top_p, request.min_p) == (900, 0.7, 0.9, 0.1)
    assert request.seed == plan.sample_seed(QUESTIONS[1], 2) and request.prompt.thinking == "max"
    assert request.guide is None  # the script cannot be guided


def test_a_failure_is_no_wrong_answer(log):
    def fails(request):
        return (
            Answer("Answer: 2 and more", error="the line is dead", after=2) if number(request) == 2 else knows(request)
        )

    runner, _ = run(Scripted(fails), log)
    runner.run()
    bad = logs.read(log.path).samples[2]
    assert (bad.status, bad.grade, bad.error) == ("failed", None, "the line is dead")
    assert bad.output == "Answer: 2"  # what had come is kept
    assert len(logs.read(log.path).done) == 5


def test_a_dead_target_ends_the_run(log):
    runner, _ = run(Scripted(lambda request: Answer("x", error="nobody there")), log)
    with pytest.raises(TargetError, match=f"{IN_A_ROW} samples in a row failed, the last one with: nobody there"):
        runner.run()
    assert len(log.samples) == IN_A_ROW


def test_a_log_that_cannot_be_written_ends_the_run(log, monkeypatch):
    def full(self, entry):
        raise DataError("no space")

    target = Scripted(knows)
    monkeypatch.setattr(Writer, "_line", full)
    runner, _ = run(target, log)
    with pytest.raises(DataError, match="no space"):
        runner.run()
    assert len(target.asked) == 1


@pytest.mark.parametrize("at_once", [1, 3])
def test_stop_keeps_what_there_is(log, at_once):
    runner = None

    def listen(event):
        if isinstance(event, Streamed) and event.tokens == 2:
            runner.stop()
        return None

    runner = Runner(Scripted(knows), log, keys(QUESTIONS, 1), settings=PLAN, questions=QUESTIONS, listen=listen,
                    at_once=at_once)  # fmt: skip
    runner.run()
    samples = logs.read(log.path).samples
    assert 1 <= len(samples) <= at_once and {s.status for s in samples} == {"stopped"}
    # Another one at once may have been stopped within its first words.
    assert all(s.grade is None and s.reasoning and "let me see".startswith(s.reasoning) for s in samples if s.tokens)
    assert any(s.reasoning.startswith("let me") for s in samples)
    assert missing(log, keys(QUESTIONS, 1)) == keys(QUESTIONS, 1)


def test_pause_holds_the_next_token_and_its_time_is_nobodys(log, monkeypatch):
    reached, seen = threading.Event(), []
    runner = None

    def listen(event):
        if isinstance(event, Streamed):
            seen.append(event.tokens)
            if event.tokens == 3:
                runner.pause()
                reached.set()

    runner = Runner(Scripted(knows), log, keys(QUESTIONS[:1], 1), settings=PLAN, questions=QUESTIONS, listen=listen)
    now, wait = [0.0], runner._going.wait

    def waited():
        wait()
        now[0] += 1000

    monkeypatch.setattr(runner._going, "wait", waited)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    thread = threading.Thread(target=runner.run)
    thread.start()
    assert reached.wait(300)
    thread.join(0.3)
    assert thread.is_alive() and seen == [1, 2, 3] and runner.paused
    runner.go()
    thread.join(300)
    assert seen == list(range(1, 9))
    assert now == [2000], "once before the question, once within it"
    assert logs.read(log.path).samples[0].seconds == 0


def test_stop_ends_a_pause(log):
    runner = None

    def listen(event):
        if isinstance(event, Streamed):
            runner.pause()
            threading.Timer(0.05, runner.stop).start()

    runner = Runner(Scripted(knows), log, keys(QUESTIONS, 1), settings=PLAN, questions=QUESTIONS, listen=listen)
    runner.run()
    assert [s.status for s in log.samples.values()] == ["stopped"]


def test_run_now_abandons_what_runs_and_loses_no_question(log):
    target = Scripted(knows)
    runner, done = None, []

    def listen(event):
        if isinstance(event, Streamed) and event.key.question == "q-0" and event.tokens == 2 and not done:
            runner.run_now(Key(1, "q-4"))
        if isinstance(event, (Finished, Abandoned)):
            done.append(event.sample.id if isinstance(event, Finished) else f"abandoned {event.key.question}")

    runner = Runner(target, log, keys(QUESTIONS, 1), settings=PLAN, questions=QUESTIONS, listen=listen)
    runner.run()
    assert done == ["abandoned q-0", "q-4", "q-0", "q-1", "q-2", "q-3", "q-5"]
    assert {s.status for s in log.samples.values()} == {"done"}


def test_run_now_leaves_the_one_that_runs_already(log):
    runner, done = None, []

    def listen(event):
        if isinstance(event, Streamed):
            runner.run_now(event.key)
        if isinstance(event, Abandoned):
            done.append(event)

    runner = Runner(Scripted(knows), log, keys(QUESTIONS, 1), settings=PLAN, questions=QUESTIONS, listen=listen)
    runner.run()
    assert not done and len(log.samples) == 6


def test_several_at_once_are_each_asked_once(log):
    together, most = [], []
    lock = threading.Lock()

    def slow(request):
        with lock:
            together.append(request)
            most.append(len(together))
        answer = knows(request)
        answer.wait = 0.005
        return answer

    def listen(event):
        if isinstance(event, Finished):
            with lock:
                together.pop()

    target = Scripted(slow)
    runner = Runner(target, log, keys(QUESTIONS, 1), settings=PLAN, questions=QUESTIONS, listen=listen, at_once=3)
    runner.run()
    assert sorted(s.id for s in logs.read(log.path).samples) == [q.id for q in QUESTIONS]
    assert len(target.asked) == 6 and 2 <= max(most) <= 3


def test_what_is_missing(log):
    def mixed(request):
        i = number(request)
        if i == 1:
            return Answer("a b", error="no", after=1)
        if i == 2:
            return Answer("Answer: 2", finish=Finish.LENGTH)
        return knows(request)

    runner, _ = run(Scripted(mixed), log, keys(QUESTIONS[:3], 1))
    runner.run()
    wanted = keys(QUESTIONS, 1)
    assert [k.question for k in missing(log, wanted)] == ["q-3", "q-4", "q-5"]
    assert [k.question for k in missing(log, wanted, incomplete=True)] == ["q-1", "q-2", "q-3", "q-4", "q-5"]


def test_without_streaming_the_answer_still_comes(log):
    class Mute(Scripted):
        abilities = Scripted.abilities - {next(a for a in Scripted.abilities if a.name == "STREAM")}

    sample = ask(Mute(knows), QUESTIONS[1], 1, PLAN)
    assert sample.right and sample.reasoning == "let me see"


@pytest.mark.parametrize(
    "answer, close",
    [
        (Answer("", "never ending", finish=Finish.LENGTH), "open"),
        (Answer("Answer: 1", "done", finish=Finish.LENGTH), "natural"),
        (Answer("", "", finish=Finish.STOP), "natural"),
    ],
)
def test_how_thinking_ended_where_it_cannot_be_guided(answer, close):
    assert ask(Scripted(lambda request: answer), QUESTIONS[1], 1, PLAN).close == close
    assert ask(Scripted(lambda request: answer), QUESTIONS[1], 1, Settings(think="none")).close == ""


def test_the_schedule():
    a, b, c = keys(QUESTIONS[:3], 1)
    schedule = Schedule([a, b, c])
    assert schedule.take() == a
    schedule.first(c)
    schedule.back(a)
    assert schedule.waiting() == [c, a, b]
    schedule.first(a)
    assert [schedule.take() for _ in range(4)] == [a, c, b, None]
