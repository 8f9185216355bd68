"""What the screen knows: states, counts and score after events; speed and time left on a scripted clock."""

import pytest

from ds4ref.eval.log import Grade, Sample
from ds4ref.eval.plan import Key
from ds4ref.eval.runner import Abandoned, Finished, Started, Streamed
from ds4ref.eval.tui.board import WINDOW, Board, Pace, State
from ds4ref.eval.tui.find import STATES, Filter, Search, filters
from ds4ref.eval.tui.header import clock, speed
from ds4ref.runs.stats import share_interval

from .scripted import choice, integer

QUESTIONS = [integer(7), choice(1), integer(9), choice(2, "A"), integer(11, "sums")]


class Clock:
    """Seconds that pass when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def sample(i: int, outcome: str = "right", epoch: int = 1, status: str = "done", **more) -> Sample:
    grade = Grade(outcome, "x") if status == "done" else None  # type: ignore[arg-type]
    return Sample(QUESTIONS[i].id, epoch, "", status, "7", "", grade=grade, **more)  # type: ignore[arg-type]


def key(i: int, epoch: int = 1) -> Key:
    return Key(epoch, QUESTIONS[i].id)


def board(*samples: Sample, epochs: int = 1) -> Board:
    return Board(QUESTIONS, epochs, {s.key: s for s in samples})


def test_a_sample_goes_through_its_states():
    b = board()
    seen = [b.state(key(0))]
    for event in (
        Started(key(0)),
        Streamed(key(0), "hm", True, 1, 0.1),
        Streamed(key(0), "It is ", False, 2, 0.2),
        Finished(sample(0)),
    ):
        changes = b.apply([event])
        assert changes == {0}
        seen.append(b.state(key(0)))
    assert seen == [State.PEND, State.FILL, State.THINK, State.ANS, State.PASS]
    assert not b.live


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (sample(0), State.PASS),
        (sample(0, "wrong"), State.FAIL),
        (sample(0, "ambiguous"), State.AMBIG),
        (sample(0, "missing"), State.MISS),
        (sample(0, status="failed", error="reset"), State.ERR),
        (sample(0, status="stopped"), State.STOP),
    ],
)
def test_the_states_of_samples_that_are_over(made, state):
    b = board(made)
    assert b.state(key(0)) is state and b.counts[state] == 1 and b.counts[State.PEND] == 4
    assert b.graded == state.graded and b.finished == 1


def test_more_of_the_same_changes_no_row():
    b = board()
    b.apply([Started(key(0)), Streamed(key(0), "hm", True, 1, 0.1)])
    changes = b.apply([Streamed(key(0), " hm", True, 2, 0.2)])
    assert not changes and b.live[key(0)].reasoning == "hm hm"


def test_an_abandoned_sample_waits_again_and_a_graded_one_keeps_its_grade():
    b = board(sample(1, "wrong"))
    b.apply([Started(key(0)), Started(key(1)), Abandoned(key(0)), Abandoned(key(1))])
    assert (b.state(key(0)), b.state(key(1))) == (State.PEND, State.FAIL)


def test_the_last_try_counts():
    b = board(sample(0, "wrong"))
    b.apply([Started(key(0)), Finished(sample(0))])
    assert b.counts[State.FAIL] == 0 and b.counts[State.PASS] == 1 and b.graded == 1


def test_samples_of_other_questions_and_epochs_are_ignored():
    b = Board(QUESTIONS[:2], 1, {key(4): sample(4)})
    b.apply([Started(key(4)), Finished(sample(4)), Started(key(0, 2))])
    assert b.graded == 0 and not b.live


def test_failed_and_stopped_samples_are_in_no_score():
    b = board(sample(0), sample(1, "missing"), sample(2, status="failed"), sample(3, status="stopped"))
    b.interval = lambda shares: share_interval(shares)
    found = b.score()
    assert found is not None and found.n == 2 and found.estimate == 0.5


def test_epochs_of_a_question_are_one_value_of_the_score():
    b = board(sample(0), sample(0, "wrong", 2), sample(1), sample(1, epoch=2), epochs=2)
    assert b.score() is None, "before the statistics are loaded"
    seen = []
    b.interval = lambda shares: seen.append(shares) or share_interval(shares)
    assert b.score() == b.score() and seen == [[0.5, 1.0]], "computed once"
    b.apply([Finished(sample(2))])
    b.score()
    assert seen[-1] == [0.5, 1.0, 1.0]


def test_the_epoch_worth_seeing_is_the_one_that_runs_or_the_last_one():
    b = board(sample(0), sample(0, "wrong", 2), epochs=3)
    assert b.epoch(0) == 2 and b.epoch(1) == 1
    b.apply([Started(key(0, 1))])
    assert b.epoch(0) == 1
    assert b.states(0) == [State.FILL, State.FAIL, State.PEND]


# ------------------------------------------------------------------------------------------------------------- pace


def tick(pace: Pace, going: bool = True) -> None:
    """Count the time so far; from now on the run goes or pauses."""
    pace.tick()
    pace.going = going


def paced() -> tuple[Clock, Pace]:
    clock = Clock()
    return clock, Pace(clock)


def test_time_counts_only_while_something_runs():
    now, pace = paced()
    for seconds, going in ((5, True), (2, False), (7, True), (1, True)):
        now.now += seconds
        tick(pace, going)
    assert pace.seconds == 2 + 1, "what was before the first look, and the pause, do not"


def test_speed_looks_back_a_little_and_the_mean_at_everything():
    now, pace = paced()
    tick(pace, True)
    for i in range(100):
        now.now += 0.1
        tick(pace, True)
        pace.add_tokens(1 if i < 50 else 3)
    assert pace.mean == pytest.approx((50 + 150) / 10)
    assert pace.speed == pytest.approx(30, rel=0.1)
    now.now += 2 * WINDOW
    tick(pace, True)
    assert pace.speed == pytest.approx(0, abs=0.6), "nothing came of late"


def test_a_pause_does_not_slow_down():
    now, pace = paced()
    tick(pace, True)
    for i in range(40):
        now.now += 0.1
        tick(pace, i != 20)
        pace.add_tokens(2)
        if i == 20:
            now.now += 1000
            tick(pace, True)
    assert pace.speed == pytest.approx(20, rel=0.1) and pace.seconds == pytest.approx(4)


def test_before_there_is_anything_nothing_is_said():
    now, pace = paced()
    tick(pace, True)
    assert (pace.speed, pace.mean, pace.seconds_left(5)) == (None, None, None)
    now.now += 0.1
    tick(pace, True)
    pace.add_tokens(1)
    assert pace.speed is None, "a tenth of a second is no speed"


def test_time_left_is_that_of_the_samples_so_far():
    now, pace = paced()
    tick(pace, True)
    now.now += 60
    tick(pace, True)
    pace.samples = 2
    assert pace.seconds_left(10) == 300


def test_tokens_that_show_at_the_end_count_but_are_no_burst():
    now = Clock()
    b = Board(QUESTIONS, 1, {}, Pace(now))
    b.apply([Started(key(0))])
    tick(b.pace)
    now.now += 4
    tick(b.pace)
    b.apply([Streamed(key(0), "x", False, 10, 4.0), Finished(sample(0, tokens=200))])
    assert b.pace.tokens == 200 and b.pace.mean == 50
    before = b.pace.speed
    now.now += 1
    tick(b.pace)
    assert before is not None and before < 5


def test_a_stopped_sample_says_nothing_about_time_left():
    b = board()
    b.apply([Started(key(0)), Finished(sample(0, status="stopped"))])
    assert b.pace.samples == 0


# ----------------------------------------------------------------------------------------------- filters and search


def test_filters_show_what_they_say():
    b = board(sample(0), sample(1, "wrong"), sample(2, "ambiguous"), sample(3, status="failed"))
    shown = {name: Filter(name).rows(b) for name in STATES}
    assert shown == {
        "all": [0, 1, 2, 3, 4],
        "unanswered": [4],
        "wrong": [1],
        "ambiguous or missing": [2],
        "failed": [3],
    }
    assert Filter("science", True).rows(b) == [1, 3]
    assert Filter("wrong").rows(b, keep=4) == [1, 4], "the selected one does not vanish under the cursor"
    b.apply([Started(key(1))])
    assert Filter("unanswered").rows(b) == [1, 4] and Filter("wrong").rows(b) == []


def test_one_wrong_epoch_is_enough():
    b = board(sample(0), sample(0, "wrong", 2), epochs=2)
    assert Filter("wrong").rows(b) == [0] and 0 not in Filter("unanswered").rows(b)


def test_sources_are_offered_where_there_are_several():
    assert [(one.name, len(one.rows(board()))) for one in filters(board())][-3:] == [
        ("maths", 2),
        ("science", 2),
        ("sums", 1),
    ]
    assert all(not one.by_source for one in filters(Board(QUESTIONS[:1], 1, {})))


def test_search_looks_into_id_source_question_and_choices():
    search = Search(QUESTIONS)
    for word, hits in (("MATHS-0007", [0]), ("sums", [4]), ("which number is 9", [2]), ("two of 2", [3]), ("", [])):
        search.word = word
        assert search.hits(range(5)) == hits


def test_hits_go_round():
    search = Search(QUESTIONS)
    search.word = "maths"
    assert search.next(range(5), 0, 0) == (0, 1, 2), "where it is counts when the search begins"
    assert search.next(range(5), 0, 1) == (2, 2, 2)
    assert search.next(range(5), 2, 1) == (0, 1, 2)
    assert search.next(range(5), 0, -1) == (2, 2, 2)
    assert search.next([1, 3], 1, 1) is None


def test_numbers_are_short():
    assert [clock(s) for s in (0, 67.9, 3723)] == ["0:00:00", "0:01:07", "1:02:03"]
    assert [speed(s) for s in (None, 26.66)] == ["–", "26.7"]
