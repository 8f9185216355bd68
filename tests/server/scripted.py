"""An engine that says what it is told to, behind the real worker: real queue, sequences, decode loop and reader.

    engine = ScriptedEngine(tokenizer)
    engine.say("<think>hm</think>Hello", "<think></think>" + CALL)    # the next two answers
    worker = ScriptedWorker(engine, ctx=4096)

What is not scripted is answered with DEFAULT. Tokens of a script are the tokenizer's; control strings in it are control
tokens. ``hold()`` stops the engine before its next step, a token or a chunk of a prefill; ``step(n)`` lets n happen,
``release()`` all.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import numpy as np

from ds4ref import sampling
from ds4ref.errors import Cancelled, ContextError, SessionError
from ds4ref.server.mailbox import is_last
from ds4ref.server.worker import Worker
from ds4ref.targets.answer import Delta

DEFAULT = "Hello there, friend."
CHUNK = 64


class ScriptedEngine:
    """``chunk`` tokens are one step of a prefill. ``fail`` is raised at the next step."""

    source = None
    """No file behind it."""

    def __init__(self, tokenizer, chunk=CHUNK):
        self.tokenizer, self.chunk = tokenizer, chunk
        self.fail: Exception | None = None
        self.evaluated = 0
        """Tokens, prefilled and decoded."""
        self.picked = 0
        self._scripts: deque[list[int]] = deque()
        self._changed = threading.Condition()
        self._allowed: int | None = None
        self.waiting = False

    def session(self, ctx):
        return ScriptedSession(self, ctx)

    def together(self):
        return Alone()

    def say(self, *scripts):
        """What is answered next. A script that is a list is taken as token ids."""
        for script in scripts:
            self._scripts.append(self.tokenizer.encode_rendered(script) if isinstance(script, str) else list(script))

    def script(self):
        return self._scripts.popleft() if self._scripts else self.tokenizer.encode_rendered(DEFAULT)

    # --- time

    def hold(self):
        """Stop before the next step."""
        with self._changed:
            self._allowed = 0

    def step(self, n=1):
        """Let ``n`` steps happen, and wait until they have and the engine stands still again, or has nothing to do."""
        with self._changed:
            self._allowed = n
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: not self._allowed, 60)

    def release(self):
        """Go on."""
        with self._changed:
            self._allowed = None
            self._changed.notify_all()

    def held(self):
        """Wait until the engine stands before a step that it may not do."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.waiting, 60)

    def tick(self, cancel=None):
        with self._changed:
            self.waiting = self._allowed == 0
            self._changed.notify_all()
            while self._allowed == 0:
                self._changed.wait(0.01)
                if cancel is not None and cancel():
                    break
            self.waiting = False
            if self._allowed:
                self._allowed -= 1
                self._changed.notify_all()
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error


class Alone:
    """A pass serves one session."""

    most = 1

    def forget(self, session):
        pass


class Snapshot:
    """Tokens."""

    own_bytes = 1000
    shared = (0, 0)

    def __init__(self, tokens):
        self.tokens = tuple(tokens)


class ScriptedSession:
    """As much of a session as worker, sequences and generation use."""

    def __init__(self, engine, ctx):
        self.engine, self.ctx = engine, ctx
        self.script: list[int] = []
        self.at = 0
        self._tokens: list[int] = []

    @property
    def tokens(self):
        return list(self._tokens)

    @property
    def pos(self):
        return len(self._tokens)

    @property
    def valid(self):
        return bool(self._tokens)

    @property
    def logits(self):
        """The next token of the script is e**30 times as likely as all others, which are equally likely."""
        if not self.valid:
            raise SessionError("empty")
        found = np.zeros(len(self.engine.tokenizer), np.float32)
        found[self.script[self.at] if self.at < len(self.script) else self.engine.tokenizer.eos] = 30.0
        return found

    def common_prefix(self, tokens):
        if list(tokens[: self.pos]) == self._tokens:
            return self.pos
        n = 0
        while n < min(len(tokens), self.pos) and tokens[n] == self._tokens[n]:
            n += 1
        return n

    def invalidate(self):
        self._tokens = []

    def sync(self, tokens, progress=None, cancel=None, chunk=None):
        if len(tokens) > self.ctx - 1:
            raise ContextError(f"{len(tokens)} tokens do not fit")
        if not tokens:
            raise SessionError("the prompt is empty: it needs at least one token")
        if self.common_prefix(tokens) < self.pos:
            self.invalidate()
        while self.pos < len(tokens):
            if cancel is not None and cancel():
                raise Cancelled("cancelled")
            self.engine.tick(cancel)
            if cancel is not None and cancel():
                raise Cancelled("cancelled")
            more = tokens[self.pos : self.pos + self.engine.chunk]
            self.engine.evaluated += len(more)
            self._tokens += more
            if progress is not None:
                progress(self.pos, len(tokens))

    def argmax(self, exclude=None):
        return sampling.argmax(self.logits, exclude)

    def ranked(self, k):
        return None

    def logit(self, token):
        return float(self.logits[token])

    def append(self, token):
        self.engine.tick()
        self.engine.evaluated += 1
        self._tokens.append(token)
        self.at += 1

    def snapshot(self):
        return Snapshot(self._tokens)

    def restore(self, snapshot):
        self._tokens = list(snapshot.tokens)


class Asked:
    """A turn that was submitted: its job, and what was told of it, with the seconds since then."""

    def __init__(self, worker, turn, listen=lambda event: None):
        self.told, self.listen, self.ended = [], listen, threading.Event()
        self.begun = time.perf_counter()
        self.job = worker.submit(turn, self._told)

    def _told(self, event):
        self.told.append((time.perf_counter() - self.begun, event))
        self.listen(event)
        if is_last(event):
            self.ended.set()

    def wait(self):
        assert self.ended.wait(300)
        return self

    @property
    def events(self):
        return [event for _, event in self.told]

    @property
    def deltas(self):
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def tokens(self):
        return [step.token.id for delta in self.deltas for step in delta.steps]


class ScriptedWorker(Worker):
    """The worker; each answer is the engine's next script."""

    def _generate(self, job, part, stream, start):
        stream.session.script, stream.session.at = self.engine.script(), 0
        yield from super()._generate(job, part, stream, start)
