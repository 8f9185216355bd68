"""The inference thread: takes turns (parsed requests) from the queue, evaluates their prompts, generates the answers.

    worker = Worker(engine, ctx=32768)
    job = worker.submit(turn, events.append)      # from any thread; events.append is called in the inference thread
    job.cancel.press()                            # ends the turn at the next token, or at the next layer of a prefill
    worker.shut_down(seconds=10)

Several answers are computed at once, each in a session of its own, by a Python generator that pauses after every chunk
of its prompt and after every token. The thread runs them alternately for ``SLICE`` seconds each (``schedule``), so that
a short answer need not wait for the end of a long one; each gets the same result as if it ran alone. If two prompts
begin alike, the second one waits until the first one has evaluated the common beginning, and continues from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine import Engine
from ..errors import BackendError, Cancelled, ContextError, Ds4Error, TokenError
from ..generate import Generation, Piece
from ..sampling import sampler_of
from ..sampling.adjust import Adjustment
from ..targets.answer import Delta, Finish, Step, Token, Usage
from ..targets.local import step_of
from ..targets.reader import AnswerReader
from ..text.chat import Message, ends_in_thinking, text_start
from ..text.official_parser import OfficialParser
from ..text.protocol import USER
from ..text.rendered import Rendered
from .constrain import GrammarError
from .job import Job, Part
from .queue import FairQueue
from .schedule import Schedule
from .scoring import echo
from .sequences import Sequences, Start, begins
from .turn import Event, Failed, Prefill, Queued, Turn
from .vocabulary import vocabulary

if TYPE_CHECKING:
    from ..session.session import Session
    from .constrain import Guide

log = logging.getLogger("ds4-server")

QUEUE_LIMIT = 256

STREAMS = 16
"""Maximum number of answers that are computed at once."""

SLICE = 0.1
"""Seconds that an answer computes before another one has its turn; it computes at least one prompt chunk or token."""

CERTAIN = 1 << 20
"""A prompt of up to this many characters is always tokenized to learn its length. A longer one is refused without that
if, divided by the length of the longest token, it cannot fit."""


class Overflow(ContextError):
    """Raised if the prompt, of at least ``tokens`` tokens, does not fit into a context of ``ctx`` tokens."""

    def __init__(self, tokens: int, ctx: int):
        super().__init__(f"Prompt has {tokens} tokens, but the configured context size is {ctx} tokens")
        self.tokens, self.ctx = tokens, ctx


FAILURES = {ContextError: "context", GrammarError: "form"}
"""The ``Failed.code`` of an exception's type; "engine" for types that are not listed."""


@dataclass(eq=False)
class Stream:
    """An answer that is being computed.

    job         the submitted request
    session     the session (tokens and KV caches) that computes it
    steps       the rest of the work; yields True where another answer should compute next, False where one may
    ids         tokens of the prompt to evaluate next, or being evaluated; () if other prompts cannot profit from it
    saves       number of these tokens after which the session's state is cached; 0 until this is known, and after that
    begun       whether ``steps`` has run already
    generation  the decode loop, None outside of decode
    """

    job: Job
    session: Session
    steps: Iterator[bool]
    ids: Sequence[int] = ()
    saves: int = 0
    begun: bool = False
    generation: Generation | None = None

    @property
    def pending(self) -> int | None:
        """The token that the answer evaluates in its next step, None if that step does something else."""
        return None if self.generation is None else self.generation.pending


class Worker:
    """The inference thread and its queue; only this thread evaluates with ``engine`` while it runs.

    ctx          context length of each session in tokens
    sequences    the prefix cache; None: a new one in memory
    queue_limit  maximum number of waiting requests
    streams      maximum number of answers computed at once
    constrain    called with the turn and the tokenizer, in the thread that submits the turn; returns the constraint on
                 its answer (``constrain.guide_of``) or None
    """

    def __init__(
        self,
        engine: Engine,
        *,
        ctx: int = 32768,
        sequences: Sequences | None = None,
        queue_limit: int = QUEUE_LIMIT,
        streams: int = STREAMS,
        constrain: Callable[[Turn, Any], Guide | None] | None = None,
    ):
        self.engine, self.ctx, self.constrain = engine, ctx, constrain
        self.sequences = Sequences(engine.tokenizer) if sequences is None else sequences  # an empty one is false
        self.queue: FairQueue[Job] = FairQueue(queue_limit, lambda job, ahead: job.listen(Queued(ahead)))
        self.streams = self._most = streams
        self.running: tuple[Job, ...] = ()
        self.finished = 0
        self._schedule: Schedule[Stream] = Schedule()
        self._together = engine.together()
        self._idle: list[Session] = [engine.session(ctx)]
        self._thread = threading.Thread(target=self._work, name="inference", daemon=True)
        self._thread.start()

    # --- from any thread

    def submit(
        self,
        turn: Turn,
        listen: Callable[[Event], None],
        remember: Callable[..., Message] = lambda message, choice: message,
    ) -> Job:
        """Queue a turn; ``listen`` receives its events in the inference thread.

        ``remember(message, choice)`` receives each finished answer, and returns it as the client will send it back in
        its history. Renders and tokenizes the prompt and compiles the constraint in the caller's thread. Raises
        Overflow if the prompt does not fit into the context, TokenError for ids outside the vocabulary, TextError for
        an unsupported constraint, Busy if the queue is full or closed.
        """
        parts = self._parts([turn, *turn.more])
        longest = max(len(part.ids) for part in parts)
        if longest >= self.ctx:
            raise Overflow(longest, self.ctx)
        for token, _ in turn.sampling.bias:
            if token >= len(self.engine.tokenizer):
                raise TokenError(f"logit_bias: token {token} is outside the vocabulary of {len(self.engine.tokenizer)}")
        demanded = None if self.constrain is None else self.constrain(turn, self.engine.tokenizer)
        job = Job(parts, listen, remember, demanded, submitted=time.monotonic())
        self.queue.put(turn.client, job)
        return job

    def abandon(self, job: Job) -> None:
        """Cancel a job whose client disconnected, and remove it from the queue."""
        job.cancel.press()
        if self.queue.drop(job):
            self._end(job, Finish.CANCELLED)

    def shut_down(self, seconds: float = 30.0) -> None:
        """Stop accepting turns, fail the queued ones with "server shutting down", and wait for the running ones, which
        are cancelled after ``seconds``."""
        for job in self.queue.close():
            job.listen(Failed("shutdown", "server shutting down"))
            self._end(job, Finish.ERROR)
        self._thread.join(seconds)
        while self._thread.is_alive():
            for job in self.running:
                job.cancel.press()
            self._thread.join(0.05)
        self.sequences.write_out()

    @property
    def alive(self) -> bool:
        """Whether the inference thread is running."""
        return self._thread.is_alive()

    # --- the thread

    def _work(self) -> None:
        while True:
            try:
                if not self._admit():
                    return
                self._round()
            except BaseException:
                # Rust libraries raise panics as BaseException. Which answer caused it is unknown, so all of them end.
                log.exception("the inference thread failed; the answers under way end here")
                for stream in list(self._schedule):
                    stream.job.listen(Failed("engine", "internal error"))
                    self._ended(stream)

    def _round(self) -> None:
        """Compute the answer whose turn it is, together with others that can decode a token in the same pass."""
        group = self._group(self._next())
        begun = time.perf_counter()
        if len(group) > 1:
            self._look_ahead(group)
            ended = [stream for stream in group if not self._slice(stream, begun)]
        else:
            ended = [stream for stream in group if not self._slice(stream, begun + SLICE)]
        seconds = (time.perf_counter() - begun) / len(group)
        for stream in group:
            self._schedule.charge(stream, seconds)
        for stream in ended:
            self._ended(stream)

    def _ended(self, stream: Stream) -> None:
        """Remove a finished answer from the schedule, and record how its job ended."""
        self._schedule.remove(stream)
        self.running = tuple(one.job for one in self._schedule)
        self._end(stream.job, stream.job.finish or Finish.ERROR)
        self._together.forget(stream.session)

    def _admit(self) -> bool:
        """Start queued answers while fewer than ``streams`` are running; if none is running, wait for one.

        Return False once the queue is closed and empty and nothing runs. If memory for another session is missing,
        fewer answers run at once until all running ones have ended.
        """
        if not len(self._schedule):
            self.streams = self._most
        while len(self._schedule) < self.streams:
            busy = bool(len(self._schedule))
            if busy and not len(self.queue):
                break  # nobody needs another session
            try:
                self._idle = self._idle or [self.engine.session(self.ctx)]
            except BaseException as error:
                if busy:
                    self.streams = len(self._schedule)
                    log.warning("%d answers at once until these have ended: %s", self.streams, error)
                    break
                if not isinstance(error, BackendError):
                    log.exception("a conversation could not be made")
            job = self.queue.take(0 if busy else None, self._may_begin)
            if job is None:
                return busy
            job.began = time.monotonic()
            if not self._idle:
                job.listen(Failed("engine", "no memory for a conversation"))
                self._end(job, Finish.ERROR)
                continue
            stream = Stream(job, self._idle.pop(), iter(()))
            stream.ids = () if job.turn.echo else job.ids
            stream.steps = self._steps(stream)
            self._schedule.add(job.turn.client, stream)
            self.running = (*self.running, job)
        return True

    def _may_begin(self, client: str) -> bool:
        """Return whether an answer of ``client`` may start: half of the ``streams`` are reserved for clients that have
        no running answer, so that a client with many requests does not take them all."""
        return not self._schedule.count(client) or len(self._schedule) < (self.streams + 1) // 2

    def _next(self) -> Stream:
        """Return the answer that computes next; a cancelled one comes first, since it only has to end."""
        for stream in self._schedule:
            if stream.job.cancel():
                return stream
        return self._schedule.next(self._ready)

    def _group(self, stream: Stream) -> list[Stream]:
        """Return ``stream`` and the other answers that can decode a token in the same pass."""
        if stream.pending is None or stream.job.cancel():
            return [stream]
        others = [one for one in self._schedule.ranked() if one is not stream and one.pending is not None]
        return [stream, *others][: self._together.most]

    def _look_ahead(self, group: Sequence[Stream]) -> None:
        """Evaluate the next token of each answer in one pass; the answers' own next steps then find it evaluated."""
        begun = time.perf_counter()
        try:
            self._together.look_ahead([(one.session, one.pending) for one in group if one.pending is not None])
        except BaseException:
            log.exception("a pass for %d answers; each computes by itself", len(group))
        seconds = time.perf_counter() - begun
        for one in group:
            one.job.timing.decode_s += seconds

    def _ready(self, stream: Stream) -> bool:
        """Return whether an answer may compute now.

        One that has not begun waits if another one is evaluating a prefix of its prompt that will be cached: it can
        start from there.
        """
        if stream.begun:
            return True
        return not any(begins(stream.ids, one.ids[: one.saves]) for one in self._schedule if one.saves)

    def _slice(self, stream: Stream, end: float) -> bool:
        """Compute an answer until the time ``end`` (``time.perf_counter``), or until another one should compute.

        Return whether the answer is unfinished. An exception ends it with a ``Failed`` event.
        """
        job, stream.begun = stream.job, True
        try:
            for makes_way in stream.steps:
                if makes_way or time.perf_counter() >= end or (len(self.queue) and len(self._schedule) < self.streams):
                    return True
        except Ds4Error as error:
            code = next((code for kind, code in FAILURES.items() if isinstance(error, kind)), "engine")
            job.listen(Failed(code, str(error), getattr(error, "tokens", 0)))
        except BaseException:
            # A bug in one request must not end the server; its session is in an unknown state and not used again.
            # Rust libraries raise panics as BaseException.
            log.exception("an answer failed")
            job.listen(Failed("engine", "internal error"))
            return False
        self._idle = [stream.session]
        return False

    def _steps(self, stream: Stream) -> Iterator[bool]:
        """Answer the prompts of a request one after the other."""
        job = stream.job
        if job.cancel():  # while it was waiting
            job.finish = Finish.CANCELLED
            job.listen(Delta(finish=Finish.CANCELLED, usage=Usage(len(job.ids), 0, 0, 0)))
            return
        for part in job.parts:
            yield from self._answer(job, part, stream)
            if job.finish == Finish.CANCELLED:
                return

    def _end(self, job: Job, finish: str) -> None:
        job.finish, job.ended = str(finish), time.monotonic()
        self.finished += 1

    def _parts(self, turns: Sequence[Turn]) -> list[Part]:
        """Render and tokenize the prompts of a request; equal prompts in succession (several choices) only once."""
        parts: list[Part] = []
        for number, turn in enumerate(turns):
            before = parts[-1].turn if parts else None
            if (
                before is not None
                and before.messages is turn.messages
                and ((before.text, before.ids) == (turn.text, turn.ids))
            ):
                prompt = parts[-1].prompt, parts[-1].ids
            else:
                prompt = self._prompt(turn)
            parts.append(Part(turn, *prompt, number, number == len(turns) - 1))
        return parts

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
        if turn.text is not None and (start := text_start(tokenizer, turn.text)):
            return Rendered(), start + prompt.encode(tokenizer)
        return prompt, prompt.encode(tokenizer)

    @cached_property
    def _longest(self) -> int:
        """Length of the vocabulary's longest token in bytes."""
        tokenizer = self.engine.tokenizer
        return max(len(tokenizer.token_bytes(i)) for i in range(len(tokenizer)))

    def _answer(self, job: Job, part: Part, stream: Stream) -> Iterator[bool]:
        """Evaluate a prompt and generate its answer. With ``echo``, where the answer repeats the prompt, nothing is
        cached or reused."""
        session = stream.session
        if part.turn.echo:
            start, steps = Start(part.ids, 0, "none"), echo(session, self.engine.tokenizer, job, part)
        else:
            start = self.sequences.begin(session, part.prompt, part.ids)
            if len(start.tokens) >= self.ctx:
                raise Overflow(len(start.tokens), self.ctx)
            steps = self._prefill(job, part, stream, start)
        job.start, job.finish = start, ""
        try:
            for _ in steps:
                yield False
        except Cancelled:
            if not part.turn.echo:
                self.sequences.keep(session)
            job.finish = Finish.CANCELLED
            job.tell(part, Delta(finish=Finish.CANCELLED, usage=Usage(len(start.tokens), 0, start.cached, 0)))
            return
        finally:
            stream.saves = 0
        job.decoding = time.monotonic()
        yield from self._generate(job, part, stream, start)

    def _prefill(self, job: Job, part: Part, stream: Stream, start: Start) -> Iterator[None]:
        """Evaluate the prompt, reporting progress, and cache the session's state at its end."""
        session, total, cold = stream.session, len(start.tokens), self.sequences.cold_length(start)

        def progress(done: int, total: int) -> None:
            job.tell(part, Prefill(done, total, start.cached, start.source))

        progress(start.cached, total)
        stream.ids, stream.saves = start.tokens, cold or total
        for _ in self.sequences.prefill(session, start, job.timing, progress, job.cancel):
            stream.saves = cold if session.pos < cold else total
            yield
        if total > start.cached:
            self.sequences.keep(session)

    def _generate(self, job: Job, part: Part, stream: Stream, start: Start) -> Iterator[bool]:
        turn, session, tokenizer = part.turn, stream.session, self.engine.tokenizer
        drawn = turn.sampling
        inside = ends_in_thinking(start.tokens, tokenizer)
        official = None
        if turn.profile is not None and not turn.plain:
            official = OfficialParser(inside, bool(turn.callable), turn.messages[-1].prefix)
        reader = AnswerReader(bool(turn.callable), turn.stop, unstopped=drawn.min_tokens, official=official)
        sampler = sampler_of(
            self.engine.source, drawn.temperature, top_k=drawn.top_k, top_p=drawn.top_p, min_p=drawn.min_p,
            seed=drawn.seed,
        )  # fmt: skip
        room = self.ctx - session.pos
        generation = stream.generation = Generation(
            session, tokenizer, sampler, limit=room if turn.max_tokens is None else min(turn.max_tokens, room),
            thinking=inside, cancel=job.cancel, timing=job.timing, last=True,
            guide=_guide_of(job.demanded, turn, reader, tokenizer.think_close), past_end=drawn.ignore_eos,
            adjust=Adjustment(dict(drawn.bias), drawn.presence, drawn.frequency, tokenizer.ends, drawn.min_tokens)
            if drawn.adjusts else None,
        )  # fmt: skip
        begun, generated, shown = time.perf_counter(), 0, False
        for piece in generation:
            if not reader.in_block:
                self.sequences.continued(session)
            steps = () if piece.token is None else (self._step(turn, session, piece, begun),)
            generated += len(steps)
            delta = reader.feed(self._shown(turn, piece))
            job.tell(part, replace(delta, steps=steps, time=time.perf_counter() - begun))
            if reader.done:
                break
            first, shown = delta.shows and not shown, shown or delta.shows
            yield first  # after its first token an answer lets others compute: they may still wait for their first
        stream.generation = None
        ended = "" if reader.done else generation.finish
        rest = reader.finish(ended, generation.thinking)
        job.finish = reader.reason(ended)
        usage = Usage(len(start.tokens), generated, start.cached, reader.reasoning_tokens)
        self._remember(job, part, session, generation, reader)
        if turn.echo and generation.end is not None:
            # Evaluation harnesses that score a prompt expect one generated token after it.
            rest = replace(rest, steps=(self._step(turn, session, Piece(generation.end, "", False), begun),))
        job.tell(part, replace(rest, time=time.perf_counter() - begun, finish=Finish(job.finish), usage=usage,
                               error=reader.generated.error or "", markup=reader.generated.raw_block))  # fmt: skip

    @cached_property
    def _hidden(self) -> frozenset[int]:
        """The control tokens whose text is never part of an answer; think tags and the tool-call marker are left to
        ``AnswerReader``."""
        tokenizer = self.engine.tokenizer
        return vocabulary(tokenizer).control - {tokenizer.think_open, tokenizer.think_close, tokenizer.dsml}

    def _shown(self, turn: Turn, piece: Piece) -> Piece:
        """Return a generated piece as the client sees it: without the text of control tokens.

        In the answer to a plain prompt (``Turn.plain``), reasoning and its tags are ordinary text.
        """
        token, text = piece.token, piece.text
        name = b"" if token is None else self.engine.tokenizer.token_bytes(token)
        if token in self._hidden:
            text = text.removesuffix(name.decode())
        if turn.plain and self._is_tag(token):
            text += name.decode()
        return replace(piece, text=text, thinking=piece.thinking and not turn.plain)

    def _is_tag(self, token: int | None) -> bool:
        return token in (self.engine.tokenizer.think_open, self.engine.tokenizer.think_close)

    def _step(self, turn: Turn, session: Session, piece: Piece, begun: float) -> Step:
        token, now = piece.token, time.perf_counter() - begun
        assert token is not None
        thought, raw = piece.thinking or self._is_tag(token), self.engine.tokenizer.token_bytes(token)
        if turn.top_logprobs is None:
            return Step(Token(raw, None, token), (), now, thought)
        return replace(step_of(self.engine.tokenizer, session.logits, token, turn.top_logprobs, now), thought=thought)

    def _remember(self, job: Job, part: Part, session: Session, generation: Generation, reader: AnswerReader) -> None:
        """Cache the evaluated conversation with this answer, under each text that a later prompt may render it as.

        A complete answer is cached with its end-of-sequence token.
        """
        turn = part.turn
        if turn.echo:
            return
        # After a stop string, the evaluated tokens hold text that no client will send back.
        if job.finish not in (Finish.STOP, Finish.TOOL_CALLS) or turn.plain or reader.stopped:
            self.sequences.keep(session)
            return
        # A token is evaluated when the next one is requested: the last one is not yet.
        session.sync([*(job.start.tokens if job.start is not None else ()), *generation.tokens])
        if session.pos < self.ctx:
            session.append(self.engine.tokenizer.eos)
        generated = reader.generated
        answer = Message("assistant", reader.text, reader.reasoning, generated.calls, generated.raw_block or None)
        answer = job.remember(answer, part.choice)
        self.sequences.keep(session, self._texts(turn, answer))

    def _texts(self, turn: Turn, answer: Message) -> list[str]:
        """Return how a later prompt will begin that has this turn in its history: with its reasoning, and without."""
        later = (turn.rendered(one, Message("user", "")).text for one in (answer, replace(answer, reasoning="")))
        return [text[: text.rindex(USER)] for text in later]


def _guide_of(demanded: Guide | None, turn: Turn, reader: AnswerReader, think_close: int) -> Any:
    """Return the hook that steers the choice of an answer's tokens (``generate.Guide``), None if nothing is to steer.

    It applies the answer's constraint, ends reasoning at its limit, and decodes tool-call markup greedily.

    demanded     the compiled constraint (``constrain.guide_of``), None for none
    reader       parser of the answer, which knows whether markup is being generated
    think_close  token id of the tag that ends reasoning
    """
    tools, most, constraint = bool(turn.callable), turn.max_thinking, demanded and demanded.fresh()
    if constraint is None and not tools and most is None:
        return None

    def guide(generation: Any, logits: np.ndarray) -> Any:
        if most is not None and generation.thinking and reader.reasoning_tokens >= most:
            return think_close
        wanted = None if constraint is None else constraint(generation, logits)
        if isinstance(wanted, (int, np.integer)):
            return wanted
        if tools and not generation.thinking and reader.greedy:
            return int((logits if wanted is None else wanted).argmax())
        return wanted

    return guide
