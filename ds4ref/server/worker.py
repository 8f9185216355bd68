"""The inference thread: takes turns from the queue, prefills, decodes, reports events, caches timelines.

    worker = Worker(engine, ctx=32768)
    job = worker.submit(turn, events.append)      # from any thread; events.append is called in the inference thread
    job.cancel.press()                            # ends the turn at the next token, or layer of a prefill
    worker.shut_down(seconds=10)

One turn runs at a time: two at once on one CPU or GPU would each be half as fast. Switching between conversations is
cheap, since cached prefixes are not evaluated again (``timelines``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine import Engine
from ..errors import Cancelled, ContextError, Ds4Error, TokenError
from ..generate import Generation, Piece
from ..sampling import sampler_of
from ..targets.answer import Delta, Finish, Step, Token, Usage
from ..targets.reader import AnswerReader
from ..text.chat import Message, ends_in_thinking, live_tail
from ..text.rendered import Rendered
from . import saving
from .constrain import GrammarError
from .job import Job
from .queue import Closed, FairQueue, Full
from .scoring import echo, step
from .timelines import Start, Timelines
from .turn import Event, Failed, Prefill, Queued, Turn

if TYPE_CHECKING:
    from ..session.session import Session
    from ..text.dsml import ToolCall
    from .constrain import Steer

log = logging.getLogger("ds4-server")

QUEUE_LIMIT = 256


CERTAIN = 1 << 20
"""Length in characters up to which a prompt is always tokenized; a longer one may be refused by an estimate."""


class Busy(Exception):
    """Raised if the queue is full or the server is shutting down.

    ``retry_after``: seconds after which to retry, None if retrying is useless.
    """

    def __init__(self, message: str, retry_after: int | None):
        super().__init__(message)
        self.retry_after = retry_after


class Overflow(Exception):
    """Raised if the prompt, of at least ``tokens`` tokens, does not fit into a context of ``ctx`` tokens."""

    def __init__(self, tokens: int, ctx: int):
        super().__init__(f"Prompt has {tokens} tokens, but the configured context size is {ctx} tokens")
        self.tokens, self.ctx = tokens, ctx


class Worker:
    """The inference thread and its queue; only this thread evaluates with ``engine`` while it runs.

    ``constrain(turn)`` returns the constraint on the turn's answer (``constrain.steering``) or None; it is called in
    the thread that submits the turn.
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
        """Queue a turn; ``listen`` receives its events in the inference thread.

        Renders and tokenizes the prompt and compiles the constraint in the caller's thread. Raises Overflow if the
        prompt does not fit, TokenError for ids outside the vocabulary, TextError for an unsupported constraint, Busy if
        the queue is full or closed.
        """
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
        """Cancel a job whose client disconnected, and remove it from the queue."""
        job.cancel.press()
        if self.queue.drop(job):
            self._end(job, Finish.CANCELLED)

    def shut_down(self, seconds: float = 30.0) -> None:
        """Stop accepting turns; finish the running one within ``seconds``; fail queued ones with "shutting down"."""
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
        """Thread identifier of the inference thread."""
        return self._thread.ident or 0

    @property
    def alive(self) -> bool:
        """Whether the inference thread is running."""
        return self._thread.is_alive()

    # --- the thread

    def _work(self) -> None:
        while (job := self.queue.take()) is not None:
            self.running = job
            job.began = time.monotonic()
            try:
                for part in job.per_prompt():
                    self._answer(part)
                    job.start, job.decoding, job.finish = part.start, part.decoding, part.finish
            except Overflow as error:
                job.listen(Failed("context", str(error), error.tokens))
            except ContextError as error:
                job.listen(Failed("context", str(error)))
            except GrammarError as error:
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
        """Answer a turn whose prompt is part of the answer; its timeline is not cached."""
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
        """Bring the session to the longest cached prefix; None if the turn needs a cached timeline that is gone."""
        turn = job.turn
        if not turn.results_only:
            return self.timelines.begin(self._session, job.prompt, job.ids)
        timeline = self.timelines.answering(i for message in turn.messages for i in message.result_ids)
        if timeline is None:
            return None
        self.timelines.resume(self._session, timeline)
        first = next(i for i, message in enumerate(turn.messages) if message.result_ids)
        tail = live_tail(turn.messages, first, turn.thinking, turn.hoist).encode(self.engine.tokenizer)
        tokens = list(timeline.tokens)
        if tokens and tokens[-1] == self.engine.tokenizer.eos:
            tail = tail[1:]
        return Start(tokens + tail, len(tokens), f"{turn.api}-tool-output")

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
        begun, generated = time.perf_counter(), 0
        for piece in generation:
            saving.decoded(self.timelines, session, reader.in_block)
            steps = () if piece.token is None else (self._step(turn, session, piece.token, begun),)
            generated += len(steps)
            delta = reader.feed(self._raw(piece) if turn.raw else piece)
            job.listen(replace(delta, steps=steps, time=time.perf_counter() - begun))
            if reader.done:
                break
        ended = "" if reader.done else generation.finish
        rest = reader.finish(ended, generation.thinking)
        finish = reader.reason(ended)
        usage = Usage(len(start.tokens), generated, start.cached, reader.reasoning_tokens)
        self._remember(job, generation, reader, finish)
        job.finish = finish
        if turn.echo and generation.end is not None:
            # Harnesses that score expect one entry after the prompt.
            rest = replace(rest, steps=(self._step(turn, session, generation.end, begun),))
        job.listen(replace(rest, time=time.perf_counter() - begun, finish=finish, usage=usage,
                           error=reader.generated.error or "", markup=reader.generated.raw_block))  # fmt: skip

    def _raw(self, piece: Piece) -> Piece:
        """Return the piece with reasoning as plain text, its tags included."""
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
        """Cache the timeline, end-of-sequence token included, under every text its history may be rendered as."""
        session, turn = self._session, job.turn
        if turn.echo:
            return
        plain = turn.raw or turn.text is not None or turn.ids is not None
        # The text behind a stop string was evaluated too, and no client will send it back.
        if finish not in (Finish.STOP, Finish.TOOL_CALLS) or plain or reader.stopped:
            if session.valid:
                self.timelines.keep(session, ())
            return
        # A token is evaluated when the next one is requested: the last one is not yet.
        tokens = [*generation.tokens]
        session.sync([*job.start.tokens, *tokens]) if job.start is not None else None
        if session.pos < self.ctx:
            session.append(self.engine.tokenizer.eos)
        answer = job.remember(self._message(reader, generation))
        self.timelines.keep(session, self._texts(turn, answer), [call.id for call in answer.calls if call.id])

    def _message(self, reader: AnswerReader, generation: Generation) -> Message:
        generated = reader.generated
        calls: tuple[ToolCall, ...] = generated.calls
        return Message("assistant", reader.text, reader.reasoning, calls, generated.raw_block or None)

    def _texts(self, turn: Turn, answer: Message) -> list[str]:
        """Return the prefixes of later prompts with this turn in their history: with its reasoning and without."""
        texts = []
        for message in (answer, replace(answer, reasoning="")):
            text = turn.rendered(message, Message("user", "")).text
            texts.append(text[: text.rindex("<\uff5cUser\uff5c>")])
        return texts


def _steering(job: Job, reader: AnswerReader) -> Any:
    """Return the steering hook of a job: its constraint, and greedy decoding of tool-call markup."""
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
