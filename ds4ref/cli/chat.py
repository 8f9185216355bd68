"""Interactive chat: a growing conversation in one session (docs/ds4.md).

Reasoning stays in the conversation, and so does a partial answer after Ctrl-C. Ctrl-C before the first token takes
the turn back and invalidates the session. A bad /command is answered with a line, never with the end of the chat.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import Cancelled, ContextError, Ds4Error, UsageError
from ..generate import Generation, Timing, check_fits, prefill
from ..sampling import fresh_seed
from .common import Interrupt, Progress, is_tty, read_text, say
from .lineedit import line_reader
from .model import open_engine
from .oneshot import make_sampler, report
from .options import integer, printable
from .printer import Printer
from .prompt import Transcript, think_mode

if TYPE_CHECKING:
    from ..engine import Engine

PROG = "ds4"
PROMPT = "ds4> "

HELP = """\
/help        this list
/think       think before answering
/think-max   think without limit (needs a context of at least 393216)
/nothink     answer at once
/ctx N       a context of N tokens; the conversation is kept
/read FILE   the content of FILE as your next message
/quit, /exit leave (so does Ctrl-D)
Enter sends, Alt-Enter starts a new line. Ctrl-C stops an answer; what it said so far stays."""

COMMANDS = ("/help", "/think", "/think-max", "/nothink", "/ctx", "/read", "/quit", "/exit")


def chat(args: Namespace) -> int:
    """Run the chat; the exit code is the last turn's: 0, or 1 if it failed."""
    with open_engine(PROG, args) as engine:
        talk = Chat(engine, args)
        read = line_reader(PROMPT, COMMANDS)
        if is_tty(sys.stdin):
            print(HELP, file=sys.stderr)
        while not talk.done:
            try:
                line = read()
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                continue  # Ctrl-C while typing only clears the line
            if line is None:
                break
            talk.line(line)
        return talk.code


class Chat:
    """The conversation and what the user may do to it."""

    def __init__(self, engine: Engine, args: Namespace):
        self.engine, self.args = engine, args
        self.transcript = Transcript(engine.tokenizer, args.system, think_mode(PROG, args))
        self.session = engine.session(args.ctx)
        self.done, self.code = False, 0

    def line(self, line: str) -> None:
        """Obey a command or answer a message."""
        text = line.strip()
        if not text:
            return
        if not text.startswith("/"):
            self.turn(line)
            return
        name, _, rest = text.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda rest: print(HELP, file=sys.stderr),
            "/think": lambda rest: self.think("high"),
            "/think-max": lambda rest: self.think("max"),
            "/nothink": lambda rest: self.think("none"),
            "/ctx": self.resize,
            "/read": self.read,
            "/quit": self.leave,
            "/exit": self.leave,
        }
        if name not in commands:
            say(PROG, f"unknown command: {printable(name)} (/help lists them)")
            return
        try:
            commands[name](rest.strip())
        except (Ds4Error, MemoryError) as error:
            say(PROG, f"{name}: {error or 'not enough memory'}")

    def leave(self, _: str) -> None:
        self.done = True

    def think(self, mode: str) -> None:
        """Thinking mode of the turns to come; "max" falls back to "high" in a small context."""
        self.args.think = mode
        self.transcript.set_mode(think_mode(PROG, self.args))

    def resize(self, text: str) -> None:
        """/ctx N: a new session; the conversation is evaluated again with the next turn."""
        try:
            ctx = integer()(text)
        except Exception:
            raise UsageError(f"an integer >= 1 is needed, not {printable(text) or 'nothing'}") from None
        if len(self.transcript.ids) >= ctx:
            raise UsageError(f"the conversation has {len(self.transcript.ids)} tokens already; choose more than that")
        self.session = self.engine.session(ctx)
        self.args.ctx = ctx
        self.think(self.args.think)
        say(PROG, f"context {ctx}")

    def read(self, path: str) -> None:
        """/read FILE: the file's text as a message."""
        if not path:
            raise UsageError("a file name is needed")
        text = read_text(path, "file")
        if not text:
            raise UsageError(f"{path} is empty")
        self.turn(text)

    def turn(self, text: str) -> None:
        """One message and its answer, until EOS, the limit, Ctrl-C or a failure, which sets the exit code.

        What was said stays and is closed with EOS. Without a single token the turn is taken back.
        """
        transcript = self.transcript
        mark = transcript.open_turn(text)
        timing, generation, failure = Timing(), None, ""
        try:
            with Interrupt() as interrupt:
                self.prefill(timing, interrupt)
                generation = Generation(
                    self.session,
                    self.engine.tokenizer,
                    make_sampler(self.args, self.args.seed or fresh_seed()),
                    limit=self.args.tokens,
                    thinking=transcript.thinking,
                    cancel=interrupt,
                    timing=timing,
                )
                with Printer() as show:
                    for piece in generation:
                        show(piece)
        except Cancelled:
            pass
        except ContextError as error:
            failure = f"{error}; /ctx N makes room"
        except (Ds4Error, MemoryError) as error:
            failure = str(error) or "not enough memory"
            self.session.invalidate()
        except KeyboardInterrupt:  # a second Ctrl-C may strike in the middle of anything
            self.session.invalidate()
        self.code = 1 if failure else 0
        if generation is not None and (generation.tokens or generation.finish == "stop"):
            transcript.close_turn(generation.tokens)
        else:
            transcript.rollback(mark)
            if not failure:
                self.session.invalidate()
                failure = "stopped before the first token; your message is taken back"
        if failure:
            say(PROG, failure)
        report(timing)

    def prefill(self, timing: Timing, interrupt: Interrupt) -> None:
        """Bring the session to the whole conversation."""
        ids, session = self.transcript.ids, self.session
        check_fits(len(ids), session.ctx, room=2)
        new = len(ids) - session.common_prefix(ids)
        with Progress(f"processing {new} input tokens") as progress:
            prefill(session, ids, timing, progress=progress, cancel=interrupt, chunk=self.args.prefill_chunk)
