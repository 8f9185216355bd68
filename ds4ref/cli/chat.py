"""Interactive chat: a growing conversation in one session (docs/reference/ds4.md).

Reasoning stays in the conversation, and so does a partial answer after Ctrl-C. Ctrl-C before the first token removes
the turn and invalidates the session. A wrong /command prints one line, and the chat goes on.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ..console.common import Interrupt, Progress, read_text, say
from ..console.model import open_engine
from ..console.options import integer, printable
from ..errors import Cancelled, ContextError, Ds4Error, SessionError, TransientError, UsageError
from ..generate import Timing, check_fits, prefill
from ..sampling import fresh_seed
from .oneshot import generation_of, report
from .printer import Printer
from .prompt import think_mode, warn_of_system
from .talk import Talk
from .transcript import Transcript

if TYPE_CHECKING:
    from ..engine import Engine

PROG = "ds4"
PROMPT = "ds4> "

HELP = """\
/help         this list
/think        think before answering
/think-low    think briefly (checkpoints since July 2026)
/think-max    think without limit (needs a context of at least 393216)
/nothink      answer without thinking
/system TEXT  set the system prompt ("" for none); alone: show it
/regen        regenerate the last answer
/undo         remove your last message and its answer
/clear        clear the conversation
/ctx N        set the context size to N tokens, keeping the conversation
/read FILE    send the content of FILE as your next message
/quit, /exit  quit (or Ctrl-D)
Enter sends, Alt-Enter starts a new line. Ctrl-C stops an answer; what it said
so far stays."""


def chat(args: Namespace) -> int:
    """Run the chat; return the exit code of the last turn: 0, or 1 if it failed."""
    with open_engine(PROG, args) as engine:
        return Chat(engine, args).read_lines(PROMPT)


class Chat(Talk):
    """A conversation with a local model, and its /commands."""

    def __init__(self, engine: Engine, args: Namespace):
        super().__init__(PROG, HELP)
        self.engine, self.args = engine, args
        warn_of_system(engine.tokenizer, args.system)
        self.transcript = Transcript(engine.tokenizer, args.system, think_mode(PROG, args, engine.tokenizer))
        self.session = engine.session(args.ctx)

    def commands(self) -> dict[str, Callable[[str], None]]:
        """Return the chat's /commands by name."""
        return {
            "/system": self.system,
            "/regen": self.regenerate,
            "/undo": self.undo,
            "/clear": self.clear,
            "/ctx": self.resize,
            "/read": self.read,
        }

    def think(self, mode: str) -> None:
        """Run /think and the like: set the thinking mode of later turns; "max" becomes "high" in a small context."""
        self.args.think = mode
        self.transcript.mode = think_mode(PROG, self.args, self.engine.tokenizer)

    def system(self, text: str) -> None:
        """Run /system TEXT: change the start of the conversation, so that the next turn evaluates everything again."""
        if text:
            self.transcript.system = "" if text == '""' else text
            warn_of_system(self.engine.tokenizer, self.transcript.system)
        say(PROG, f"system: {printable(self.transcript.system, 200)}" if self.transcript.system else "no system prompt")

    def regenerate(self, _: str) -> None:
        """Run /regen: generate another answer to the last message; the old one stays if that fails."""
        before = self.transcript.take_back()
        if self.args.temp <= 0:
            say(PROG, "temperature 0 gives the same answer again")
        mode, self.transcript.mode = self.transcript.mode, before.mode
        try:
            answered = self.turn(before.user, fresh_seed())
        finally:
            self.transcript.mode = mode
        if not answered:
            self.transcript.turns.append(before)
            say(PROG, "the previous answer stays")

    def undo(self, _: str) -> None:
        """Run /undo: remove the last message and its answer."""
        turn = self.transcript.take_back()
        say(PROG, f"removed: {printable(turn.user, 60)} ({_turns(len(self.transcript.turns))} left)")

    def clear(self, _: str) -> None:
        """Run /clear: start a new conversation; system text and settings stay."""
        self.transcript.turns.clear()
        say(PROG, "conversation cleared")

    def resize(self, text: str) -> None:
        """Run /ctx N: open a session of N tokens; the next turn evaluates the conversation again."""
        try:
            ctx = integer()(text)
        except Exception:
            raise UsageError(f"expected an integer >= 1, not {printable(text) or 'nothing'}") from None
        if len(self.transcript.ids) >= ctx:
            raise UsageError(f"the conversation has {len(self.transcript.ids)} tokens already; choose a larger context")
        self.session = self.engine.session(ctx)
        self.args.ctx = ctx
        self.think(self.args.think)
        say(PROG, f"context {ctx}")

    def read(self, path: str) -> None:
        """Run /read FILE: send the file's text as a message."""
        if not path:
            raise UsageError("give a file name")
        text = read_text(path, "file")
        if not text:
            raise UsageError(f"{path} is empty")
        self.turn(text)

    def turn(self, text: str, seed: int | None = None) -> bool:
        """Answer one message, printing the answer; return whether there is one.

        Generation ends at EOS, the limit, Ctrl-C or a failure, which sets the exit code. A partial answer stays and is
        closed with EOS; a turn without a single token is removed. ``seed``: seed of the sampler, None for that of the
        flags.
        """
        transcript = self.transcript
        transcript.open_turn(text)
        timing, generation, failure = Timing(), None, ""
        try:
            with Interrupt() as interrupt:
                self.prefill(timing, interrupt)
                seed = seed or self.args.seed or fresh_seed()
                thinking = transcript.thinking
                generation = generation_of(self.engine, self.session, self.args, seed, thinking, interrupt, timing)
                with Printer() as show:
                    for piece in generation:
                        show(piece)
        except Cancelled:
            pass
        except ContextError as error:
            failure = f"{error}; enlarge it with /ctx N"
        except (Ds4Error, MemoryError) as error:
            failure = str(error) or "not enough memory"
            if not isinstance(error, TransientError):
                self.session.invalidate()
        except KeyboardInterrupt:  # a second Ctrl-C may have interrupted any step, so the session's state is unknown
            self.session.invalidate()
        self.code = 1 if failure else 0
        answered = generation is not None and bool(generation.tokens or generation.finish == "stop")
        if generation is not None and answered:
            transcript.close_turn(generation.tokens)
        else:
            transcript.take_back()
            if not failure:
                self.session.invalidate()
                failure = "stopped before the first token; your message was removed"
        if failure:
            say(PROG, failure)
        report(timing, self.engine)
        return answered

    def prefill(self, timing: Timing, interrupt: Interrupt) -> None:
        """Evaluate the part of the conversation that the session has not evaluated yet."""
        ids, session = self.transcript.ids, self.session
        check_fits(len(ids), session.ctx, room=2)
        known = session.common_prefix(ids)
        if 0 < known < session.pos:
            with suppress(SessionError):  # too far back: then everything is evaluated again
                session.rewind(known)
        new = len(ids) - (known if known == session.pos else 0)
        with Progress(f"processing {new} input tokens") as progress:
            prefill(session, ids, timing, progress=progress, cancel=interrupt, chunk=self.args.prefill_chunk)


def _turns(count: int) -> str:
    return f"{count} turn{'' if count == 1 else 's'}"
