"""Ask prompts of ``registers`` alone or at once, and keep what is known of the server that answers them.

loader = Loader(case, "chat")
loader.alone(register)                       while nothing else runs
loader.together(registers, 8)                eight at a time; ``loader.abreast`` of them were generated at once
loader.chain([one, near, one])               one after another: answers that a cached prefix altered
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ds4ref.cancellation import Cancellation
from ds4ref.errors import Ds4Error
from ds4ref.targets import Request
from ds4ref.targets.answer import collect
from ds4ref.text.prompts import prompt_of
from ds4ref.variants import MODE_NAMES, Runner

from ..observation import log_softmax
from .altered import GROSS, LIKELY, MOST_NOISE, Change, Judge, Reply
from .case import ExamContext
from .registers import Register, Registers
from .repeat import ids_of, step_ids
from .yardstick import UNKNOWN, measure

TOKENS, MOST_TOKENS, LASTS = 44, 132, 0.2
"""Tokens of an answer: so many that it takes ``LASTS`` seconds, or answers of a fast server do not overlap."""
TIGHT = 0.02
"""Nats rms at the median position that pass for noise even if the server's own prefill and decode agree with our engine
within a tenth of that."""
ODDS = 100.0
STREAMED = 4
"""Of so many requests that run beside others all but one are streamed."""
BUSY = ("HTTP 429", "HTTP 503", "HTTP 529")


@dataclass
class Baseline:
    """How often answers change alone: ``altered`` of ``answers`` by log probabilities, ``lost`` of ``codes``."""

    altered: int = 0
    answers: int = 0
    lost: int = 0
    codes: int = 0


class Loader:
    """Asks registers alone or at once, and keeps what is known of the server.

    tokens   most tokens of an answer (``pace``)
    errors   messages of requests that failed, by whether others ran meanwhile; ``counts``: the requests
    room     seconds of the stage
    odds     odds against noise from which a condition is called wrong
    drafted  whether the server counts tokens that it drafted for first answers
    most     most requests at once that the server takes; ``busy``: requests that it refused as too many
    streams  whether the server streams
    timed    whether it sends streams as it generates them, so that their times show which answers overlap
    abreast  most answers whose streams showed tokens of each between those of the others
    mode     mode of ours with the server's log probabilities; None: unknown
    strays   first answers that do not have our engine's log probabilities, though others have
    apart    nats rms from our engine's log probabilities at a position that no noise makes
    cold     prompts that were first asked beside others
    trusted  whether prompts of one turn (False) and conversations (True) are known to be rendered as by us
    """

    def __init__(self, case: ExamContext, kind: str):
        self.case = case
        self.made = Registers(kind, time.time_ns())
        self.judge = Judge(self.made.owners)
        self.base, self.room = Baseline(), min(case.limit.seconds_left, 1e6)
        self.errors: dict[bool, list[str]] = {False: [], True: []}
        self.counts = {False: 0, True: 0}
        self.most, self.busy, self.streams, self.tokens = 16, 0, True, TOKENS
        self.timed, self.abreast = False, 0
        self.mode: str | None = None
        self.odds, self.drafted, self.apart = ODDS, False, GROSS
        self.strays: list[Reply] = []
        self.trusted: set[bool] = set()
        self.cold: set[Register] = set()
        if (transport := getattr(case.target, "transport", None)) is not None:
            transport.sessions = True  # a server that is fair to clients runs few requests of one at once
        self._turn = itertools.count()

    # --- asking

    def ask(
        self, register: Register, beside: frozenset[Register] = frozenset(), temperature: float = 0.0,
        seed: int | None = None, stream: bool = False,
    ) -> Reply:  # fmt: skip
        """Ask once, under load mostly as a stream; an error is part of the reply."""
        case, load = self.case, bool(beside)
        span: tuple[float, ...] = ()
        request = Request(register.prompt(case), self.tokens, temperature, seed=seed, top_logprobs=case.top,
                          cancel=case.limit)  # fmt: skip
        self.counts[load] += 1
        try:
            if stream or (load and self.streams and next(self._turn) % STREAMED):
                answer = collect(case.target.stream(request))
                begun = time.monotonic() - answer.seconds
                span = tuple(begun + at for at in answer.arrivals[1:])
            else:
                answer = case.target.complete(request)
        except Ds4Error as error:
            case.limit.check()
            busy = any(each in str(error) for each in BUSY)
            self.busy += busy
            if not busy and not stream:
                self.errors[load].append(str(error))
            return Reply(register, None, str(error), beside)
        case.limit.check()
        return Reply(register, answer, "", beside, span)

    def pace(self) -> Reply:
        """Stream an answer, learn from its times how long answers must be to overlap, and return it."""
        reply = self.ask(self.made.fresh(), stream=True)
        self.streams = reply.answer is not None
        if reply.answer is not None and len(reply.span) > 2:
            lasted = reply.span[-1] - reply.span[0]
            self.timed = lasted > 0.1 * reply.answer.seconds
            self.tokens = int(np.clip(LASTS * len(reply.span) / max(lasted, 1e-6), TOKENS, MOST_TOKENS))
        return reply

    def alone(self, register: Register, learn: bool = False) -> Reply:
        """Ask while nothing else runs; ``learn``: later answers are compared with this one."""
        reply = self.ask(register)
        if learn:
            self.judge.add(reply)
        return reply

    def together(self, registers: Sequence[Register], at_once: int, cut: Sequence[Register] = ()) -> list[Reply]:
        """Ask ``at_once`` at a time; meanwhile streams of ``cut`` begin and break off after some tokens."""
        everyone = frozenset((*registers, *cut))
        return self.run([lambda one=one: self.ask(one, everyone - {one}) for one in registers], at_once, cut)  # type: ignore[misc]

    def run(self, asks: Sequence[Callable[[], Reply]], at_once: int, cut: Sequence[Register] = ()) -> list[Reply]:
        """Call all of ``asks``, ``at_once`` at a time, beside streams that are cut off; return their results."""
        before, done = self.busy, Cancellation()
        pool = ThreadPoolExecutor(at_once + bool(cut))
        try:
            if cut:
                pool.submit(self._cuts, cut, done)
            replies = [each.result() for each in [pool.submit(ask) for ask in asks]]
        finally:
            done.press()
            pool.shutdown(wait=False, cancel_futures=True)
        spans = [reply.span for reply in replies if len(reply.span) > 1]
        self.abreast = max(self.abreast, *(sum(a[0] <= b[0] < a[-1] for a in spans) for b in spans), 0, 0)
        if self.busy > before:
            self.most = max(at_once // 2, 1)
        return replies

    def _cuts(self, registers: Sequence[Register], done: Cancellation) -> None:
        for turn, register in enumerate([*registers] * 4):
            if not done.requested:
                self.cut(register, 1 + turn % 5, done)

    def cut(self, register: Register, after: int, done: Cancellation | None = None) -> None:
        """Begin a stream, and disconnect after some pieces of it."""
        stop, limit = Cancellation(), self.case.limit
        request = Request(register.prompt(self.case), self.tokens, top_logprobs=self.case.top, cancel=stop)
        with suppress(Ds4Error), limit.does(stop.press), (done or limit).does(stop.press):
            for count, _ in enumerate(self.case.target.stream(request), 1):
                if count >= after:
                    stop.press()
        limit.check()

    def chain(self, registers: Sequence[Register]) -> list[Change]:
        """Ask registers that share a prefix, one after another; return the changes that could be judged: of later
        answers to each one, and of first answers that our engine or the other prompts contradict."""
        changes: list[Change] = []
        for register in registers:
            reply, known = self.alone(register), self.judge.alone.get(register, [])
            change = self.judge.changes([reply], [known])
            if not known and any(other.family == register.family for other in self.judge.alone):
                change = [self._first_hit(each) for each in change]
            elif not known and register.longer not in self.trusted:
                self.trusted |= {register.longer} if self._agrees(reply) else set()
            # by codes, first answers count whether they lack some or not: else the rate of losses would look greater
            first = not self.case.logprobs and self.judge.recalls
            changes += [each for each in change if known or first or each.altered or each.source or each.lost]
            self.judge.add(reply)
        return changes

    def near_hits(self, one: Register) -> list[Change]:
        """Ask a register after each of two others that differ from it in one code, at the same place. If its answers
        are altered, and not alike, they depend on the other prompt's content; else the reuse itself is wrong. Then ask
        two prompts that differ from it in one token, at neighbouring places."""
        others = self.made.near(one), self.made.near(one)
        changes = self.chain([one, others[0], one, others[1], one])
        own = [change for change in changes if change.reply.register == one][-2:]
        if len(own) == 2 and any(change.altered for change in own):
            between = self.judge.changes([own[1].reply], [own[0].reply.answers])
            if any(each.altered for each in between):
                evidence = "it changes with the content of the prompt before it, which differs in one code"
                for change, other in zip(own, others, strict=True):
                    if change.altered and change.source is None:
                        changes[changes.index(change)] = replace(change, source=other, evidence=evidence)
        return changes + self.chain([self.made.numbered(one, digit) for digit in (0, 3)])

    def _first_hit(self, change: Change) -> Change:
        """Judge the first answer to a prompt that may have hit another one's rows: by our engine's log probabilities,
        and by those of the answers to other prompts."""
        reply, others = change.reply, self.judge.alone
        twin = next((r for r in others if r != reply.register and self.judge.twin(reply, others[r])), None)
        if twin is not None:
            evidence = "all log probabilities are, to the last digit, those of the answer to another prompt"
            return replace(change, altered=True, gross=True, source=twin, same=False, evidence=evidence)
        moved = self._moved(reply) if reply.register.longer in self.trusted else None
        if moved is not None and np.median(moved) > (self.judge.typical or np.inf):
            return replace(change, altered=True, gross=True, same=False, nats=float(moved.max()),
                           evidence="its log probabilities are no longer those of our engine")  # fmt: skip
        return change

    # --- our engine

    def learn_noise(self, replies: Sequence[Reply]) -> None:
        """If the model is known, find the mode of ours in which first answers of the server have our log probabilities,
        measure what noise makes of them (``yardstick``), and note those that have others."""
        case, judge = self.case, self.judge
        own: tuple[Reply, str] | None = None
        for reply in replies:
            moves = {mode: moved for mode in MODE_NAMES if (moved := self._moved(reply, mode)) is not None}
            best = min(moves, key=lambda mode: float(np.minimum(moves[mode], UNKNOWN).mean()), default="")
            if best and np.median(moves[best]) < TIGHT / 10:
                own = reply, best
                break
        if own is None or own[0].answer is None:
            return
        case.progress("measuring what float noise makes")
        self.mode, ids = own[1], self._ids(own[0]) or []
        yard = measure(case.engine, ids + step_ids(case, own[0].answer.steps), self.mode, case.top or None)
        self.apart = GROSS * max(UNKNOWN, yard.apart)
        judge.limit, self.trusted = max(UNKNOWN, min(yard.apart, MOST_NOISE)), {False}
        judge.typical = max(TIGHT, yard.near(TOKENS))
        self.strays = [reply for reply in replies if self.strays_at(reply) is not None]
        judge.right = self.strays_at if self.strays else None

    def strays_at(self, reply: Reply) -> int | None:
        """Return the first step of an answer whose log probabilities are not those of our engine; None: all are, or it
        is not known."""
        moved, judge = self._moved(reply), self.judge
        if moved is None:
            return None
        steady = judge.typical is None or np.median(moved) <= judge.typical
        beyond = np.flatnonzero(moved > (self.apart if steady else judge.typical))
        return int(beyond[0]) if len(beyond) else None

    def spoilt_alone(self, changes: Sequence[Change]) -> bool | None:
        """Return whether answers first given beside others are nearer to our engine's than those given alone later,
        when their prompts were cached, so that reuse altered these; None: not known."""
        nearer = []
        for reply in (change.reply for change in changes):
            own, alone = self._moved(reply), self._moved(replace(reply, answer=self.judge.alone[reply.register][0]))
            if own is not None and alone is not None:
                nearer.append(np.minimum(own, UNKNOWN).mean() < 0.5 * np.minimum(alone, UNKNOWN).mean())
        return 2 * sum(nearer) > len(nearer) if nearer else None

    def _agrees(self, reply: Reply, mode: str | None = None) -> bool:
        moved = self._moved(reply, mode)
        return moved is not None and float(np.median(moved)) < TIGHT / 10

    def _ids(self, reply: Reply) -> list[int] | None:
        """Return the ids of a reply's prompt as our engine renders it; None if the model is not known."""
        case, prompt = self.case, reply.register.prompt(self.case)
        if case.same_model is not True or case.tokenizer is None or not case.logprobs:
            return None
        if not prompt.messages:
            return ids_of(case, prompt)
        return prompt_of(case.tokenizer.profile, prompt.messages, (), "none", answer=True).encode(case.tokenizer)

    def _moved(self, reply: Reply, mode: str | None = None) -> np.ndarray | None:
        """Return by step the rms distance in nats of an answer's log probabilities from those of our engine; None if
        the model or its mode is not known, or if not all of the answer's tokens are."""
        case, answer, before, mode = self.case, reply.answer, self._ids(reply), mode or self.mode
        if mode is None or answer is None or before is None:
            return None
        spelled = b"".join(step.token.raw for step in answer.steps).startswith(answer.text.encode())
        if not spelled or (answer.usage.completion or 0) > len(answer.steps):  # some are not listed
            return None
        logits = Runner(case.engine).run([*before, *step_ids(case, answer.steps)], mode)[0][len(before) - 1 :]
        out = []
        for lps, step in zip(log_softmax(logits), answer.steps, strict=False):
            ids = [(case.ids_by_bytes.get(t.raw) if t.id is None else t.id, t.logprob) for t in step.top]
            gaps = [lps[number] - value for number, value in ids
                    if number is not None and value is not None and max(lps[number], value) >= LIKELY]  # fmt: skip
            out.append(np.sqrt(np.mean(np.square(gaps))) if gaps else np.inf)
        return np.array(out) if out else None
