"""``ds4 agent``: a model that works in a folder through tools (docs/reference/agent.md).

This module reads the command line and connects target, workspace, permissions and transcript. What the user sees is
printed by agent_view.py; the agent itself is the package ``ds4ref.agent``.

    ds4 agent -p "Which of these files is the largest?" --allow read
    ds4 agent --target http://127.0.0.1:8000/v1 --root project "Fix the failing test"
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..agent.log import Log
from ..agent.loop import DEFAULT_SYSTEM, Agent, Outcome, Settings
from ..agent.permit import GROUPS, TOOLS, Permit, tools_of
from ..agent.shell import Shell, scrubbed
from ..agent.tools import Toolbox
from ..agent.workspace import Workspace
from ..backends import BACKENDS
from ..console.common import EXIT_INTERRUPTED, Interrupt, read_text, say
from ..console.flags import add
from ..console.model import add_engine, open_engine, threads
from ..console.options import SEED_MAX, Parser, integer, parsed, printable
from ..console.tool import target_of
from ..errors import UsageError
from ..targets import Ability, Target
from ..version import __version__
from .agent_view import AgentView
from .prompt import think_mode
from .talk import Talk

PROG = "ds4 agent"
PROMPT = "ds4-agent> "
HISTORY = ".ds4ref_agent_history"
CTX, TOKENS, HTTP_TOKENS, TURNS = 100_000, 50_000, 8192, 50

USAGE = """ds4 agent [options] [PROMPT]                  interactive session; PROMPT is the first message
       ds4 agent [options] -p TEXT | --prompt-file FILE    one task without questions"""

EPILOG = """\
examples:
  ds4 agent                                        work in this folder, on the local model
  ds4 agent --target http://127.0.0.1:8000/v1      the same with a server's model
  ds4 agent -p "What is in here?" --allow read     read only
  ds4 agent -p "Fix the test" --yes --root proj    allow everything, in proj
  ds4 agent -p "..." --allow read,edit --log l.jsonl

tools: read, list, search (group read); edit, write (group edit); bash (group bash). In a session on a
terminal reading is allowed, anything else asks first: y, n, or a for always. Without a terminal, and
with -p, tools not named by --allow are denied.
File tools cannot leave --root. bash can: there is no sandbox.

stdout carries the model's text; tools, questions and notes go to stderr. Ctrl-C stops the answer or
the command; the session continues.

environment:
  DS4_API_KEY=K      API key of an HTTP target (--key-env names another variable); hidden from commands
  DS4_THREADS=N, DS4_LOCK_FILE=F, DS4_DEBUG=1, NO_COLOR=1    as in ds4 --help

exit codes: 0 done, 1 failure or limit reached, 2 usage, 130 Ctrl-C ended a -p task"""

HELP = """\
/help         this list
/allow NAMES  allow tools without asking: read, edit, bash, or tool names
/think        think before answering
/think-low    think briefly (checkpoints since July 2026)
/think-max    think without limit
/nothink      answer without thinking
/clear        clear the conversation; files are not changed
/quit, /exit  quit (or Ctrl-D)
Enter sends, Alt-Enter starts a new line. Ctrl-C stops an answer or a command;
the work so far is kept."""

_UNAVAILABLE = {
    "--metal": f"no Metal backend (available: {', '.join(BACKENDS)}); use --target for a server",
    "--quality": "choose the rounding mode with --numerics",
    "--trace": "use --log FILE for the transcript",
}


def build_parser() -> Parser:
    """Return the parser with every flag of the command."""
    parser = Parser(
        PROG,
        usage=USAGE,
        description="A small coding agent that works in a folder.",
        epilog=EPILOG,
        unavailable=_UNAVAILABLE,
    )
    parser.add_argument("first", metavar="PROMPT", nargs="?", help="first message of a session")

    g = parser.add_argument_group("task")
    add(g, "--prompt", "-p", help="run this task without asking, then exit")
    add(g, "--prompt-file", help="read the task from a file (- is stdin)")
    g.add_argument("--root", metavar="DIR", default=".", help="working folder (.)")
    g.add_argument("--allow", metavar="NAMES", default="",
                   help="tools to allow without asking: the groups read,edit,bash, or tool names")  # fmt: skip
    g.add_argument("--yes", action="store_true", help="allow all tools without asking")
    g.add_argument("--max-turns", metavar="N", type=integer(1, 10_000), default=TURNS,
                   help=f"maximum model turns per message ({TURNS})")  # fmt: skip
    g.add_argument("--log", metavar="FILE", help="append the transcript as JSON lines")
    add(g, "--system", help='system prompt, added to the tool instructions; "" for none')
    add(g, "--think", default="high")
    add(g, "--think-low")
    add(g, "--think-max", help="think without limit; a local model needs --ctx >= 393216")
    add(g, "--nothink")

    g = parser.add_argument_group("model")
    add(g, "--target", default="local", help="local[:MODEL.gguf] or http(s)://HOST/v1 (local)")
    add(g, "--model", help="GGUF file of the local engine (./ds4flash.gguf if it exists, else the embedded model)")
    add(g, "--ctx", help=f"local: context size in tokens ({CTX})")
    add_engine(parser, "drafts")
    add(g, "--model-name")
    add(g, "--key-env")
    add(g, "--dialect")
    add(g, "--timeout", default=600.0, help="HTTP: read timeout in seconds (600)")

    g = parser.add_argument_group("sampling")
    add(g, "--tokens", help=f"maximum tokens per answer ({TOKENS}; HTTP: {HTTP_TOKENS})")
    add(g, "--temp", default=1.0, help="temperature; 0 is greedy (1)")
    add(g, "--top-p", default=1.0)
    add(g, "--min-p", help="drop tokens less likely than F times the best (0.05; HTTP: 0)")
    add(g, "--seed", type=integer(1, SEED_MAX), help="random seed (from the clock)")

    g = parser.add_argument_group("help")
    add(g, "--help")
    return parser


def body(argv: Sequence[str]) -> int:
    """Run one task or an interactive session as the command line says; return the exit code."""
    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    task, view = _task(args), AgentView(PROG)
    permit = Permit(TOOLS if args.yes else tools_of(args.allow))
    if task is None and view.can_ask:
        permit = Permit({*permit.allowed, *GROUPS["read"]}, view.ask)
    workspace, log = Workspace(args.root), Log(args.log)
    with _target(args) as target:
        session = Session(_agent(args, target, workspace, permit, view, log), permit, view, args)
        return session.task(task) if task is not None else session.read_lines(PROMPT, HISTORY, args.first)


def _task(args: Namespace) -> str | None:
    """Return the task of -p or --prompt-file, None for an interactive session. Raise UsageError if the flags contradict
    each other."""
    flags = {"PROMPT": args.first, "-p": args.prompt, "--prompt-file": args.prompt_file}
    named = [flag for flag, value in flags.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"choose one prompt source: {' or '.join(named)}")
    text: str | None = args.prompt if args.prompt_file is None else read_text(args.prompt_file, "prompt file")
    if any(prompt is not None and not prompt.strip() for prompt in (args.first, text)):
        raise UsageError("the prompt is empty")
    return text


@contextmanager
def _target(args: Namespace) -> Iterator[Target]:
    """Context manager: open the target that the flags name. Raise UsageError if it cannot hold a conversation with
    tools."""
    if args.target == "local":
        from ..targets.local import LocalTarget

        with open_engine(PROG, args) as engine:
            yield LocalTarget(engine, args.ctx or CTX)
        return
    if args.model is not None:
        raise UsageError("-m works only with --target local; use --model-name for a server's model")
    args.threads = threads(PROG, args.threads)
    with target_of(args, args.target, ctx=args.ctx or CTX) as target:
        target.require(Ability.CHAT, Ability.TOOLS, Ability.STREAM, needed_for="an agent")
        yield target


def _agent(args: Namespace, target: Target, workspace: Workspace, permit: Permit, view: AgentView, log: Log) -> Agent:
    """Return the agent that the flags describe; write the first line of the transcript."""
    local = target.kind == "local"
    settings = Settings(
        system=DEFAULT_SYSTEM if args.system is None else args.system,
        thinking=_thinking(args, target),
        max_tokens=args.tokens or (TOKENS if local else HTTP_TOKENS),
        temperature=args.temp,
        top_p=args.top_p,
        min_p=args.min_p if args.min_p is not None else 0.05 if local else 0.0,
        seed=args.seed,
        max_turns=args.max_turns,
    )
    tools = Toolbox(workspace, permit, Shell(workspace.root, scrubbed(os.environ, args.key_env)))
    log("session", version=__version__, target=target.kind, name=target.name, root=workspace.root,
        allowed=sorted(permit.allowed), settings=vars(settings))  # fmt: skip
    return Agent(target, tools, settings, view, log)


def _thinking(args: Namespace, target: Target) -> str:
    """Return the thinking mode to use: that of the flags, or for a local model a lower one if its context is too
    small."""
    from ..targets.local import LocalTarget

    if not isinstance(target, LocalTarget):
        return str(args.think)
    return think_mode(PROG, Namespace(think=args.think, ctx=args.ctx or CTX), target.engine.tokenizer)


class Session(Talk):
    """An interactive session with the agent."""

    def __init__(self, agent: Agent, permit: Permit, view: AgentView, args: Namespace):
        super().__init__(PROG, HELP)
        self.agent, self.permit, self.view, self.args = agent, permit, view, args

    def task(self, text: str) -> int:
        """Run one task and return the exit code."""
        outcome = self.turn(text)
        return EXIT_INTERRUPTED if outcome is None or outcome.ending == "interrupted" else self.code

    def commands(self) -> dict[str, Callable[[str], None]]:
        return {
            "/allow": self.allow,
            "/clear": self.clear,
        }

    def turn(self, text: str) -> Outcome | None:
        """Answer one message of the user; None if a second Ctrl-C aborted it."""
        self.code = 1
        outcome = None
        with suppress(KeyboardInterrupt), Interrupt() as interrupt:
            self.view.cancel = interrupt
            outcome = self.agent.turn(text, interrupt)
        if outcome is None:
            say(PROG, "interrupted")
            return None
        if outcome.why:
            back = "; your message was removed" if outcome.taken_back else ""
            say(PROG, printable(outcome.why, 400) + back)
        self.code = 0 if outcome.ending in ("done", "interrupted") else 1
        return outcome

    # --- commands

    def allow(self, names: str) -> None:
        """Run /allow NAMES: allow tools without asking for the rest of the session."""
        self.permit.allowed |= tools_of(names)
        say(PROG, f"allowed without asking: {', '.join(sorted(self.permit.allowed)) or 'nothing'}")

    def think(self, mode: str) -> None:
        """Run /think and the like: set the thinking mode of later answers."""
        self.args.think = mode
        self.agent.settings.thinking = _thinking(self.args, self.agent.target)

    def clear(self, _: str) -> None:
        """Run /clear: start a new conversation; allowed tools stay allowed."""
        self.agent.clear()
        say(PROG, "conversation cleared")
