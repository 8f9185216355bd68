"""The inference thread: takes turns from the queue, evaluates, generates, tells what happens, remembers.

    worker = Worker(engine, ctx=32768)
    job = worker.submit(turn, events.append)      # from any thread; events come from the worker's
    job.cancel.press()                            # it ends at the next token, or layer of a prefill
    worker.shut_down(seconds=10)

One turn is generated at a time: on one CPU or GPU two at once would only be half as fast each. What makes several
conversations cheap is that none of them is evaluated again (``timelines``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cancellation import Cancellation
from ..engine import Engine
from ..errors import Cancelled, ContextError, Ds4Error, TokenError
from ..generate import Generation, Piece, Timing
from ..sampling import sampler_of
from ..targets.answer import Delta, Finish, Step, Token, Usage
from ..targets.reader import AnswerReader
from ..text.chat import Message, ends_in_thinking, live_tail
from ..text.rendered import Rendered
from . import saving
from .grammar import Lost
from .queue import Closed, FairQueue, Full
from .scoring import echo, step
from .timelines import Start, Timelines
from .turn import Answered, Event, Failed, Prefill, Queued, Turn

if TYPE_CHECKING:
    from ..session.session import Session
    from ..text.dsml import ToolCall
    from .constrain import Steer

log = logging.getLogger("ds4-server")

QUEUE_LIMIT = 256


CERTAIN = 1 << 20
"""Characters of a prompt up to which its tokens are always counted."""


class Busy(Exception):
    """The queue is full, or the server is being shut down. ``retry_after`` in seconds, None if that is in vain."""

    def __init__(self, message: str, retry_after: int | None):
        super().__init__(message)
        self.retry_after = retry_after


class Overflow(Exception):
    """The prompt does not fit: ``tokens`` of it, or more, into a context of ``ctx``."""

    def __init__(self, tokens: int, ctx: int):
        super().__init__(f"Prompt has {tokens} tokens, but the configured context size is {ctx} tokens")
        self.tokens, self.ctx = tokens, ctx


@dataclass(eq=False)
class Job:
    """A turn that was taken on. Times are of ``time.monotonic``; None until they come.

    remember   what an API adds to the history it will see again: from the finished answer to the message it returns
    more       further prompts of the same request, with their turns
    demanded   what keeps the answer to the form that the turn demands
    """

    number: int
    turn: Turn
    prompt: Rendered
    ids: list[int]
    listen: Callable[[Event], None]
    remember: Callable[[Message], Message] = lambda message: message
    more: tuple[tuple[Turn, Rendered, list[int]], ...] = ()
    demanded: Steer | None = None
    cancel: Cancellation = field(default_factory=Cancellation)
    submitted: float = 0.0
    began: float | None = None
    decoding: float | None = None
    ended: float | None = None
    start: Start | None = None
    timing: Timing = field(default_factory=Timing)
    finish: str = ""


class Worker:
    """Owns the sessions of ``engine``; nobody else evaluates while it runs.

    constrain   makes the steering of a turn's answer (``constrain.steering``); None where a turn asks for nothing. It
                is asked in the thread that submits a turn
    """

    def __init__(
        self,
        engine: Engine,
        *,
        ctx: int = 32768,
        timelines: Timelines | None = None,
        queue_limit: int = QUEUE_LIMIT,
        constrain: Callable[[Turn, Any], Steer | None] | None = None,
    ):
        self.engine, self.ctx, self.constrain = engine, ctx, constrain
        self.timelines = Timelines(engine.tokenizer) if timelines is None else timelines  # an empty one is false
        self.queue: FairQueue[Job] = FairQueue(queue_limit, lambda job, ahead: job.listen(Queued(ahead)))
        self.running: Job | None = None
        self.finished = 0
        self._session: Session = engine.session(ctx)
        self._lock = threading.Lock()
        self._count = 0
        self._thread = threading.Thread(target=self._work, name="inference", daemon=True)
        self._thread.start()

    # --- from any thread

    def submit(
        self,
        turn: Turn,
        listen: Callable[[Event], None],
        remember: Callable[[Message], Message] = lambda message: message,
    ) -> Job:
        """Take a turn on. Overflow if its prompt does not fit, TokenError if it is of ids that do not exist, Busy if it
        cannot wait; rendering and tokenizing are done here, in the caller's thread, and so is what compiles the form of
        the answer (its TextErrors included)."""
        prompts = [self._prompt(one) for one in (turn, *turn.more)]
        longest = max(len(ids) for _, ids in prompts)
        if longest >= self.ctx:
            raise Overflow(longest, self.ctx)
        (prompt, ids), more = prompts[0], tuple((t, *p) for t, p in zip(turn.more, prompts[1:], strict=True))
        demanded = None if self.constrain is None else self.constrain(turn, self.engine.tokenizer)
        with self._lock:
            self._count += 1
            job = Job(self._count, turn, prompt, ids, listen, remember, more, demanded, submitted=time.monotonic())
        try:
            self.queue.put(turn.client, job)
        except Full:
            raise Busy(f"{self.queue.limit} requests wait already", 5) from None
        except Closed:
            raise Busy("server shutting down", None) from None
        return job

    def abandon(self, job: Job) -> None:
        """Nobody waits for it any more."""
        job.cancel.press()
        if self.queue.drop(job):
            self._end(job, Finish.CANCELLED)

    def shut_down(self, seconds: float = 30.0) -> None:
        """Take nothing on, answer what runs, for so many seconds; what waits is told that it waited in vain."""
        for job in self.queue.close():
            job.listen(Failed("shutdown", "server shutting down"))
            self._end(job, Finish.ERROR)
        self._thread.join(seconds)
        running = self.running
        if running is not None:
            running.cancel.press()
            self._thread.join()
        self.timelines.write_out()

    @property
    def ident(self) -> int:
        """Of the inference thread, as ``threading`` knows it."""
        return self._thread.ident or 0

    @property
    def alive(self) -> bool:
        """Whether the inference thread is there."""
        return self._thread.is_alive()

    # --- the thread

    def _work(self) -> None:
        while (job := self.queue.take()) is not None:
            self.running = job
            job.began = time.monotonic()
            try:
                for part in _parts(job):
                    self._answer(part)
                    job.start, job.decoding, job.finish = part.start, part.decoding, part.finish
            except Overflow as error:
                job.listen(Failed("context", str(error), error.tokens))
            except ContextError as error:
                job.listen(Failed("context", str(error)))
            except Lost as error:
                job.listen(Failed("form", str(error)))
            except Ds4Error as error:
                job.listen(Failed("engine", str(error)))
            except Exception:
                # One request's bug must not end the server.
                log.exception("request %d", job.number)
                self._session = self.engine.session(self.ctx)
                job.listen(Failed("engine", "internal error"))
            finally:
                self.running = None
                self._end(job, job.finish or Finish.ERROR)

    def _end(self, job: Job, finish: str) -> None:
        job.finish, job.ended = str(finish), time.monotonic()
        self.finished += 1

    def _prompt(self, turn: Turn) -> tuple[Rendered, list[int]]:
        tokenizer = self.engine.tokenizer
        if turn.ids is not None:
            if any(not 0 <= i < len(tokenizer) for i in turn.ids):
                raise TokenError(f"the prompt has token ids outside the vocabulary of {len(tokenizer)}")
            return Rendered(), list(turn.ids)
        if turn.text is not None:
            prompt = Rendered().protocol(turn.text)
        else:
            prompt = turn.rendered()
        size = sum(len(part.text) for part in prompt.parts)
        if size > CERTAIN and (least := size // self._longest) >= self.ctx:
            raise Overflow(least, self.ctx)  # tokenizing megabytes to know exactly would take long
        return prompt, prompt.encode(tokenizer)

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        tokenizer = self.engine.tokenizer
        return max(len(tokenizer.token_bytes(i)) for i in range(len(tokenizer)))

    def _answer(self, job: Job) -> None:
        turn, session = job.turn, self._session
        if turn.echo:
            self._echo(job)
            return
        start = self._begin(job)
        if start is None:
            job.listen(Failed("continuation", "continuation state is not available"))
            return
        job.start = start
        if len(start.tokens) >= self.ctx:
            raise Overflow(len(start.tokens), self.ctx)
        usage = Usage(len(start.tokens), 0, start.cached, 0)
        job.listen(Prefill(start.cached, len(start.tokens), start.cached, start.source))
        try:
            saving.prefill(self.timelines, session, start, job.timing, lambda done, total: job.listen(
                Prefill(done, total, start.cached, start.source)), job.cancel)  # fmt: skip
        except Cancelled:
            self.timelines.keep(session, ())
            job.finish = Finish.CANCELLED
            job.listen(Delta(finish=Finish.CANCELLED, usage=usage))
            return
        if len(start.tokens) > start.cached:
            self.timelines.keep(session, ())
        job.decoding = time.monotonic()
        self._generate(job, start)

    def _echo(self, job: Job) -> None:
        """The prompt is part of the answer. Nobody goes on from such a one: it takes no conversation's place."""
        job.start = Start(job.ids, 0, "none")
        try:
            echo(self._session, self.engine.tokenizer, job)
        except Cancelled:
            job.finish = Finish.CANCELLED
            job.listen(Delta(finish=Finish.CANCELLED, usage=Usage(len(job.ids), 0, 0, 0)))
            return
        job.decoding = time.monotonic()
        self._generate(job, job.start)

    def _begin(self, job: Job) -> Start | None:
        """Where the prompt starts to be evaluated; None if only a live timeline could tell, and there is none."""
        turn = job.turn
        if not turn.results_only:
            return self.timelines.begin(self._session, job.prompt, job.ids)
        timeline = self.timelines.answering(i for message in turn.messages for i in message.result_ids)
        if timeline is None:
            return None
        self.timelines.resume(self._session, timeline)
        first = next(i for i, message in enumerate(turn.messages) if message.result_ids)
        tail = live_tail(turn.messages, first, turn.thinking, turn.hoist).encode(self.engine.tokenizer)
        held = list(timeline.tokens)
        if held and held[-1] == self.engine.tokenizer.eos:
            tail = tail[1:]
        return Start(held + tail, len(held), f"{turn.api}-tool-output")

    def _generate(self, job: Job, start: Start) -> None:
        turn, session, tokenizer = job.turn, self._session, self.engine.tokenizer
        reader = AnswerReader(bool(turn.callable), turn.stop, recover=turn.recover)
        drawn = turn.sampling
        sampler = sampler_of(
            self.engine.source,
            drawn.temperature,
            top_k=drawn.top_k,
            top_p=drawn.top_p,
            min_p=drawn.min_p,
            seed=drawn.seed,
        )
        room = self.ctx - session.pos
        limit = room if turn.max_tokens is None else min(turn.max_tokens, room)
        generation = Generation(
            session, tokenizer, sampler, limit=limit, thinking=ends_in_thinking(start.tokens, tokenizer),
            cancel=job.cancel, timing=job.timing, steer=_steering(job, reader), last=True,
        )  # fmt: skip
        begun, made = time.perf_counter(), 0
        for piece in generation:
            saving.decoded(self.timelines, session, reader.in_block)
            steps = () if piece.token is None else (self._step(turn, session, piece.token, begun),)
            made += len(steps)
            delta = reader.feed(self._raw(piece) if turn.raw else piece)
            job.listen(replace(delta, steps=steps, time=time.perf_counter() - begun))
            if reader.done:
                break
        ended = "" if reader.done else generation.finish
        rest = reader.finish(ended, generation.thinking)
        finish = reader.reason(ended)
        usage = Usage(len(start.tokens), made, start.cached, reader.reasoning_tokens)
        self._remember(job, generation, reader, finish)
        if job.demanded is not None and job.demanded.cut and finish in (Finish.STOP, Finish.TOOL_CALLS):
            finish = Finish.LENGTH  # whole and valid, but not what the model would have said with more room
        job.finish = finish
        if turn.echo and generation.end is not None:
            # Whoever scores counts on one entry for what came after the prompt.
            rest = replace(rest, steps=(self._step(turn, session, generation.end, begun),))
        job.listen(replace(rest, time=time.perf_counter() - begun, finish=finish, usage=usage,
                           error=reader.generated.error or "", markup=reader.generated.raw_block))  # fmt: skip

    def _raw(self, piece: Piece) -> Piece:
        """Thinking as text, with its tags, which are tokens without one."""
        tokenizer = self.engine.tokenizer
        tag = piece.token in (tokenizer.think_open, tokenizer.think_close)
        text = piece.text + (tokenizer.token_bytes(piece.token).decode() if tag and piece.token is not None else "")
        return replace(piece, text=text, thinking=False)

    def _step(self, turn: Turn, session: Session, token: int, begun: float) -> Step:
        raw = self.engine.tokenizer.token_bytes
        now = time.perf_counter() - begun
        if turn.top_logprobs is None:
            return Step(Token(raw(token), None, token), (), now)
        return step(self.engine.tokenizer, session.logits, token, turn.top_logprobs, now)

    def _remember(self, job: Job, generation: Generation, reader: AnswerReader, finish: str) -> None:
        """Keep the timeline, its end-of-sequence included, under every text that its history may be rendered as."""
        session, turn = self._session, job.turn
        if turn.echo:
            return
        plain = turn.raw or turn.text is not None or turn.ids is not None
        # What a stop string cut off was evaluated all the same: no text that anybody will send stands for that.
        if finish not in (Finish.STOP, Finish.TOOL_CALLS) or plain or reader.stopped:
            if session.valid:
                self.timelines.keep(session, ())
            return
        # A picked token is evaluated when the next one is asked for: one that ended the answer is not yet.
        made = [*generation.tokens]
        session.sync([*job.start.tokens, *made]) if job.start is not None else None
        if session.pos < self.ctx:
            session.append(self.engine.tokenizer.eos)
        answer = job.remember(self._message(reader, generation))
        self.timelines.keep(session, self._texts(turn, answer), [call.id for call in answer.calls if call.id])

    def _message(self, reader: AnswerReader, generation: Generation) -> Message:
        generated = reader.generated
        calls: tuple[ToolCall, ...] = generated.calls
        return Message("assistant", reader.text, reader.reasoning, calls, generated.raw_block or None)

    def _texts(self, turn: Turn, answer: Message) -> list[str]:
        """What later prompts begin with if this turn is in their history: with its reasoning and without."""
        found = []
        for message in (answer, replace(answer, reasoning="")):
            text = turn.rendered(message, Message("user", "")).text
            found.append(text[: text.rindex("<\uff5cUser\uff5c>")])
        return found


def _steering(job: Job, reader: AnswerReader) -> Any:
    """Markup is picked greedily; what the request demands of its answer comes before that."""
    demanded, tools = job.demanded, bool(job.turn.callable)
    if demanded is None and not tools:
        return None

    def steer(generation: Any, logits: np.ndarray) -> Any:
        wanted = None if demanded is None else demanded(generation, logits)
        if isinstance(wanted, (int, np.integer)):
            return wanted
        if tools and not generation.thinking and reader.greedy:
            return int((logits if wanted is None else wanted).argmax())
        return wanted

    return steer


def _parts(job: Job) -> Iterator[Job]:
    """The job once for each of its prompts. Only with the last one's end it is at its end."""

    def listen(event: Event) -> None:
        ended = isinstance(event, Delta) and event.finish and event.finish != Finish.CANCELLED
        job.listen(Answered(event) if ended and isinstance(event, Delta) else event)

    turns = ((job.turn, job.prompt, job.ids), *job.more)
    for number, (turn, prompt, ids) in enumerate(turns, 1):
        if number == len(turns):
            yield job if number == 1 else replace(job, turn=turn, prompt=prompt, ids=ids)
            return
        part = replace(job, turn=turn, prompt=prompt, ids=ids, listen=listen)
        yield part
        if part.finish == Finish.CANCELLED:
            return
