"""Ask a target all questions, one after the other or several at once, and log every sample (one answer to one
question).

    with open_target(spec) as target, Writer.create(path, header) as log:
        runner = Runner(target, log, keys(questions, epochs))
        runner.run()

Progress is reported by calling a listener with events, in the threads that ask; ``pause``, ``stop`` and ``run_now`` may
be called from any thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ds4ref.cancellation import Cancellation
from ds4ref.errors import DataError, TargetError
from ds4ref.runs import thinking as thoughts
from ds4ref.runs.provenance import now
from ds4ref.targets import Ability, Completion, Delta, Finish, Request, Target, collect
from ds4ref.text.dsml import render_calls

from .budget import Budget
from .grading import grade
from .log import Sample, Writer
from .packs import Question
from .plan import Key, Settings
from .prompt import prompt

IN_A_ROW = 5
"""Number of failed samples in a row after which the run gives up, as the engine must be broken."""


@dataclass(frozen=True)
class Started:
    """Event: a question was sent to the target."""

    key: Key


@dataclass(frozen=True)
class Streamed:
    """Event: a piece of an answer arrived.

    text      the piece
    thinking  whether the piece is part of the thinking
    tokens    number of tokens of the answer so far
    seconds   seconds since the question was sent
    """

    key: Key
    text: str
    thinking: bool
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Finished:
    """Event: a sample was finished and written to the log."""

    sample: Sample


@dataclass(frozen=True)
class Abandoned:
    """Event: a running sample was discarded, either to be asked again or because an earlier answer is kept."""

    key: Key


Event = Started | Streamed | Finished | Abandoned


class Runner:
    """Asks the samples ``todo`` until none is left or the run is stopped.

    at_once   number of samples that are asked at the same time; a local engine needs as many sessions
    """

    replays = False
    speed = 1.0
    """How many times as fast as the recorded run; only a replay has another speed than 1."""

    def __init__(
        self,
        target: Target,
        log: Writer,
        todo: Sequence[Key],
        *,
        settings: Settings,
        questions: Sequence[Question],
        listen: Callable[[Event], None] = lambda event: None,
        at_once: int = 1,
        ctx: int | None = None,
    ):
        self.target, self.log, self.settings, self.listen = target, log, settings, listen
        self.questions = {q.id: q for q in questions}
        self._waiting, self.at_once, self.ctx = list(todo), at_once, ctx
        self.stopped = False
        self.error: Exception | None = None
        self._going = threading.Event()
        self._going.set()
        self._lock = threading.RLock()  # a signal handler that stops the run may interrupt the thread that holds it
        self._running: dict[Key, Cancellation] = {}
        self._abandoned: set[Key] = set()  # cancelled, to be asked again later
        self._failed = 0
        self.left = False  # whether ``leave`` was called

    def clock(self) -> float:
        """Return the time in seconds on the clock of the run (a replay has one of its own)."""
        return time.monotonic()

    # --- control, from any thread

    def pause(self) -> None:
        """Read no further tokens until ``go``; a server may go on generating until the connection's buffer is full."""
        self._going.clear()

    def go(self) -> None:
        """Resume a paused run."""
        self._going.set()

    @property
    def paused(self) -> bool:
        """Return whether the run is paused."""
        return not self._going.is_set()

    def stop(self) -> None:
        """Stop the run: log partial answers as "stopped", and start no other. May be called from a signal handler."""
        self.stopped = True
        if self.paused:  # ``set`` takes a lock, which a signal handler must not wait for
            self._going.set()
        for cancel in self.running().values():
            cancel.press()

    def leave(self) -> None:
        """Stop the run without waiting for running answers, which are discarded."""
        with self._lock:
            self.left = True
        self.stop()

    def run_now(self, key: Key) -> None:
        """Ask ``key`` now, even if it is done. If ``at_once`` samples are running, cancel one of them and ask it again
        next."""
        running = self.running()
        if key in running:
            return
        self._wait_at(0, key)
        if len(running) >= self.at_once:
            victim = next(iter(running))
            self._abandoned.add(victim)
            running[victim].press()
        self._going.set()

    def waiting(self) -> list[Key]:
        """Return the samples that are still to be asked, the next one first."""
        with self._lock:
            return list(self._waiting)

    def _wait_at(self, place: int, key: Key) -> None:
        with self._lock:
            self._waiting = [other for other in self._waiting if other != key]
            self._waiting.insert(place, key)

    def _take(self) -> Key | None:
        with self._lock:
            return self._waiting.pop(0) if self._waiting else None

    def running(self) -> dict[Key, Cancellation]:
        """Return the samples that are being answered, each with the switch that cancels it."""
        with self._lock:
            return dict(self._running)

    # --- work

    def run(self) -> None:
        """Ask until no sample is left or ``stop`` is called.

        Raises if the log cannot be written, or if ``IN_A_ROW`` samples in a row failed.
        """
        if self.at_once == 1:
            self._work()
        else:
            threads = [
                threading.Thread(target=self._work, name=f"sample-{i}", daemon=True) for i in range(self.at_once)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():  # a join without a timeout would hold back signal handlers on some systems
                    thread.join(0.2)
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        """Ask samples, one after the other, until none is left or the run is stopped: the work of one thread."""
        try:
            while not self.stopped and self.waiting():
                self._going.wait()  # also pause between samples, since not every target streams
                if self.stopped or (key := self._take()) is None:
                    return
                self._one(key)
        except Exception as error:  # ``run`` raises it; in this thread nobody would see it
            self.error = self.error or error
            self.stop()

    def _one(self, key: Key) -> None:
        """Ask one sample and log it; put it back into the queue if it was abandoned for another one."""
        cancel = Cancellation()
        with self._lock:
            self._running[key] = cancel
        if self.stopped:  # ``stop`` may have been called since the sample was taken
            cancel.press()
        try:
            self.listen(Started(key))
            sample = self._answer(key, cancel)
        finally:
            with self._lock:
                del self._running[key]
                abandoned = key in self._abandoned
                self._abandoned.discard(key)
        if abandoned and (sample is None or sample.status == "stopped"):
            self._wait_at(1, key)
        elif sample is not None and self._keep(sample):
            return
        self.listen(Abandoned(key))

    def _answer(self, key: Key, cancel: Cancellation) -> Sample | None:
        """Ask one sample and return it with its answer."""
        return ask(self.target, self.questions[key.question], key.epoch, self.settings, cancel,
                   ctx=self.ctx, streamed=self._streamed)  # fmt: skip

    def _keep(self, sample: Sample) -> bool:
        """Log a sample, unless it was stopped and the log already has a graded one; return whether it was logged."""
        with self._lock:
            before = self.log.samples.get(sample.key)
            if self.left or (sample.status == "stopped" and before is not None and before.status == "done"):
                return False
            self.log.add(sample)
            self._failed = failed = self._failed + 1 if sample.status == "failed" else 0
        self.listen(Finished(sample))
        if failed >= IN_A_ROW:
            raise TargetError(f"{failed} samples in a row failed, the last one with: {sample.error}")
        return True

    def _streamed(self, event: Streamed) -> float:
        """Report an event, and wait while the run is paused; return the seconds waited."""
        self.listen(event)
        if self._going.is_set():
            return 0.0
        start = time.perf_counter()
        self._going.wait()
        return time.perf_counter() - start


def ask(
    target: Target,
    question: Question,
    epoch: int,
    settings: Settings,
    cancel: Cancellation | None = None,
    *,
    ctx: int | None = None,
    streamed: Callable[[Streamed], float] = lambda event: 0.0,
) -> Sample:
    """Ask a question once, as its sample number ``epoch``, grade the answer and return the sample; after an error of
    the target its status is "failed", other errors are raised.

    ctx: context in tokens, for a local target. ``streamed`` is called with each piece of the answer and returns the
    seconds that it waited, which do not count as time of the answer.
    """
    asked = prompt(question, settings.think, settings.system)
    thinks = settings.thinking(question) != "none"
    budget = Budget(settings) if thinks and target.can(Ability.GUIDE) else None
    request = Request(
        asked, settings.tokens, settings.temperature, settings.top_p, settings.min_p,
        settings.sample_seed(question, epoch), ctx=ctx, guide=budget, cancel=cancel,
    )  # fmt: skip
    sample = Sample(
        question.id, epoch, settings.digest(question), "done", question.answer, now(), asked.user or "",
        target=target.name,
    )  # fmt: skip
    start, error, held = time.perf_counter(), "", 0.0

    def shown(event: Streamed) -> None:
        nonlocal held
        held += streamed(event)

    try:
        done = _collected(target, request, Key(epoch, question.id), start, shown)
    except TargetError as failure:
        done, error = failure.partial or Completion(""), str(failure)
    calls = done.markup
    if question.tools and done.calls and not calls:  # a server that returns calls as JSON, not as markup
        calls = "".join(part.text for part in render_calls(done.calls))
    sample.output, sample.reasoning = _storable(done.text + calls), _storable(done.reasoning)
    sample.finish, sample.model = str(done.finish), _storable(done.model)
    sample.prompt_tokens, sample.cached_tokens = done.usage.prompt, done.usage.cached
    sample.tokens, sample.reasoning_tokens = done.usage.completion, done.usage.reasoning
    sample.ttft, sample.seconds = done.ttft, time.perf_counter() - start - held
    sample.error = _storable(error or done.error)
    sample.close = _close(thinks, budget, done)
    if error or done.finish == Finish.ERROR:
        sample.status = "failed"
    elif done.finish == Finish.CANCELLED:
        sample.status = "stopped"
    else:
        regrade(sample, question)
    if sample.close == "natural" and thoughts.seen(msgspec.to_builtins(sample)) is False:
        sample.close = ""
    return sample


def _storable(text: str) -> str:
    """Replace lone surrogates, which servers may send and UTF-8 cannot hold."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def regrade(sample: Sample, question: Question) -> None:
    """Set the grade of a finished sample by the current rules."""
    sample.grade = grade(question, sample.output, reasoning=sample.reasoning, finish=sample.finish)


def _collected(
    target: Target, request: Request, key: Key, start: float, shown: Callable[[Streamed], None]
) -> Completion:
    """Return the whole answer to ``request``; report each piece to ``shown`` if the target streams. start: when it was
    sent."""
    target.require(*request.needs, needed_for="ds4-eval")
    if not target.can(Ability.STREAM):
        return target.complete(request)
    tokens = 0

    def counted(delta: Delta) -> Delta:
        nonlocal tokens
        tokens += len(delta.steps) or int(delta.brings)
        for text, thinking in ((delta.reasoning, True), (delta.text, False)):
            if text:
                shown(Streamed(key, text, thinking, tokens, time.perf_counter() - start))
        return delta

    return collect(map(counted, target.stream(request)))


def _close(thinks: bool, budget: Budget | None, done: Completion) -> str:
    if not thinks:
        return ""
    if budget is not None and budget.closed:
        return budget.closed
    return "natural" if done.text.strip() or done.finish == Finish.STOP else "open"


def missing(log: Writer, wanted: Sequence[Key], incomplete: bool = False) -> list[Key]:
    """Return the keys in ``wanted`` that still have to be asked: the log has no sample of them, or a stopped one.

    ``incomplete`` adds samples that failed or were cut off by the token limit. Raise DataError for a sample that was
    made with other settings.
    """
    plan, questions = log.header.plan, {q.id: q for q in log.header.questions}
    left = []
    for key in wanted:
        sample = log.samples.get(key)
        if sample is not None and sample.digest != plan.digest(questions[key.question]):
            raise DataError(f"{log.path}: sample {key.question} of epoch {key.epoch} was made with other settings")
        again = sample is None or sample.status == "stopped"
        if sample is not None and incomplete:
            again = again or sample.status == "failed" or sample.finish == Finish.LENGTH
        if again:
            left.append(key)
    return left
