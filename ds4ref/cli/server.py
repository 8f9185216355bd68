"""``ds4-server``: one model behind OpenAI's and Anthropic's APIs, for agents on this machine (server.md).

This module reads the command line and assembles the server of ``ds4ref.server``. Flags, port and trace file are checked
before the model is loaded.

    ds4-server -m model.gguf -c 65536
    ds4-server --host 0.0.0.0 --key-env DS4_SERVER_KEY --trace trace.txt
"""

from __future__ import annotations

import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends import BACKENDS
from ..console.common import has_colour, run
from ..console.flags import add
from ..console.model import add_engine, open_engine
from ..console.options import Parser, choice, integer, parsed
from ..console.tool import key_of
from .ds4 import UNAVAILABLE as DS4_UNAVAILABLE

if TYPE_CHECKING:
    from ..engine import Engine
    from ..server.service import Service, Settings
    from ..server.trace import Trace
    from ..session.store import Store

    GuideOf = Callable[..., Any]

PROG = "ds4-server"
MODEL = "deepseek-v4-flash"
TOKENS = 393216
CONTEXTS = (65536, 32768)
"""Default context sizes in tokens; the first one that fits into memory is used. An agent's first prompt may have 40,000
tokens."""
SHARE = 16
"""A context fits if its caches take at most 1/``SHARE`` of memory: there are several of them, and snapshots."""
STREAMS = 16
EMBEDDED_TOKENS = 512
"""Maximum tokens of an answer of the embedded model if the request sets no limit."""

USAGE = "ds4-server [options]\n       ds4-server smoke [options]    test real clients against this or any server"

EPILOG = """\
examples:
  ds4-server                                  the embedded model on http://127.0.0.1:8000
  ds4-server -m model.gguf -c 65536 --port 8080
  ds4-server --host 0.0.0.0 --key-env DS4_SERVER_KEY   reachable by others, with the API key in that variable
  ds4-server --trace trace.txt                log every prompt and answer to a file
  ds4-server --kv-disk-dir ~/.cache/ds4-kv    keep conversations across restarts

clients:
  OPENAI_BASE_URL=http://127.0.0.1:8000/v1    OpenAI's SDKs, Codex (wire_api = "responses"), opencode, pi
  ANTHROPIC_BASE_URL=http://127.0.0.1:8000    Anthropic's SDKs, Claude Code
  http://127.0.0.1:8000/                      a page to chat, in the browser

The first SIGINT or SIGTERM lets running answers finish (for 30 seconds), the second stops at once.

environment:
  DS4_THREADS=N      default for --threads
  DS4_LOCK_FILE=F    allow one process at a time: exits 2 while another holds F
  DS4_DEBUG=1        show the traceback behind an error

exit codes: 0 stopped by a signal, all requests answered; 1 failure, 2 usage or lock, 130 second signal"""

FIXED = (
    "--kv-cache-cold-max-tokens", "--kv-cache-continued-interval-tokens", "--kv-cache-boundary-trim-tokens",
    "--kv-cache-boundary-align-tokens", "--kv-cache-reject-different-quant", "--disable-exact-dsml-tool-replay",
    "--tool-memory-max-ids",
)  # fmt: skip
"""Flags of ds4's own server that are refused here: they are fixed at their defaults."""
UNAVAILABLE = {
    "--metal": f"no Metal backend (available: {', '.join(BACKENDS)})",
    "--quality": DS4_UNAVAILABLE["--quality"],
    "--chdir": "start the server in that folder",
    **dict.fromkeys(FIXED, "fixed at ds4's default"),
}


def build_parser() -> Parser:
    """Return the parser with every flag of the command."""
    from ..session.boundaries import Policy

    parser = Parser(
        PROG,
        usage=USAGE,
        description="Serve a DeepSeek V4 model to agents: OpenAI's chat completions, completions and responses, "
        "Anthropic's messages.",
        epilog=EPILOG,
        unavailable=UNAVAILABLE,
    )
    g = parser.add_argument_group("model and engine")
    add(g, "--model", help="GGUF file (default: ./ds4flash.gguf if it exists, else the small embedded model)")
    add(g, "--ctx", help="context size in tokens (65536, or 32768 if memory is low)")
    add(g, "--tokens", default=TOKENS, help=f"maximum tokens per answer, limited by the context ({TOKENS})")
    add_engine(parser, "cluster", "steering", "drafts", group=g)
    add(g, "--model-name", default=MODEL, help=f"model id reported to clients ({MODEL})")

    g = parser.add_argument_group("access")
    g.add_argument("--host", metavar="HOST", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    g.add_argument("--port", metavar="N", type=integer(0, 65535), default=8000, help="port; 0 picks a free one (8000)")
    add(g, "--key-env", default=None, help="environment variable with the API key")
    g.add_argument("--insecure", action="store_true", help="accept remote clients without a key")
    g.add_argument("--allow-host", metavar="NAMES", default="", help="other Host header names to accept, comma-"
                   "separated; IP addresses, localhost and --host are always accepted")  # fmt: skip
    g.add_argument("--cors", action="store_true", help="allow requests from web pages of any origin")

    g = parser.add_argument_group("limits")
    g.add_argument("--streams", metavar="N", type=integer(1, 1024), default=STREAMS, help="concurrent answers "
                   f"({STREAMS})")  # fmt: skip
    g.add_argument("--memory-mb", metavar="N", type=integer(0, 1 << 24), default=1024, help="memory for cached "
                   "conversations, MiB (1024)")  # fmt: skip
    g.add_argument("--form-thinking", metavar="N", type=integer(0), help="maximum reasoning tokens before a forced "
                   "tool call or JSON answer; needed with random weights (no limit)")  # fmt: skip

    g = parser.add_argument_group("conversations on disk")
    g.add_argument("--kv-disk-dir", metavar="DIR", help="save conversations in this folder across restarts; "
                   "can be shared with other servers and ds4 (ds4-kv lists it)")  # fmt: skip
    g.add_argument("--kv-disk-space-mb", metavar="N", type=integer(1, 1 << 30), default=4096, help="maximum size of "
                   "that folder, MiB (4096)")  # fmt: skip
    g.add_argument("--kv-cache-min-tokens", metavar="N", type=integer(1, Policy.cold_max), default=Policy.min_tokens,
                   help=f"shortest conversation to save, in tokens ({Policy.min_tokens})")  # fmt: skip

    g = parser.add_argument_group("logging")
    g.add_argument("--trace", metavar="FILE", help="log every prompt and answer, including secrets; the file "
                   "is truncated first and readable only by you")  # fmt: skip
    g.add_argument("--log-format", metavar="FORM", type=choice("text", "json"), default="text",
                   help="format of log lines on stderr: text, json (text)")  # fmt: skip

    g = parser.add_argument_group("help")
    add(g, "--help")
    add(g, "--version")
    return parser


def settings(args: Namespace, key: str) -> Settings:
    """Return the server's settings from the options and the API key."""
    from ..server.auth import Access, host_name
    from ..server.limits import Limits
    from ..server.listen import most_connections
    from ..server.service import Settings

    names = {host_name(name) for name in (args.host, *args.allow_host.split(",")) if name.strip()}
    limits = Limits(connections=most_connections(Limits.connections))
    return Settings(
        args.model_name, max_tokens=args.tokens, access=Access(key, frozenset(names), args.cors), limits=limits
    )


def make_service(
    engine: Engine, args: Namespace, how: Settings, trace: Trace | None = None, constrain: GuideOf | None = None
) -> Service:
    """Assemble the server for an open engine; ``how``: its settings.

    ``constrain``: function that returns the constraint on the answer to a request, by default ``constrain.guide_of``.
    """
    from ..server.app import apis
    from ..server.constrain import guide_of
    from ..server.sequences import Sequences
    from ..server.service import Service
    from ..server.tools import Memory
    from ..server.vocabulary import vocabulary
    from ..server.worker import Worker

    vocabulary(engine.tokenizer)  # takes a second or two: now, so that no answer has to wait for it
    if constrain is None:
        constrain = partial(guide_of, max_reasoning=args.form_thinking)
    disk = checkpoints(engine, args)
    calls = Memory(store=disk)
    sequences = Sequences(engine.tokenizer, args.memory_mb << 20, disk)
    ctx = args.ctx or default_ctx(engine)
    worker = Worker(engine, ctx=ctx, sequences=sequences, streams=args.streams, constrain=constrain)
    return Service(worker, apis(), how, tools=calls, trace=trace)


def default_ctx(engine: Engine) -> int:
    """Return the context in tokens if the user gives none: the first of CONTEXTS that fits into memory, else the
    last."""
    from ..environment import memory_bytes

    device = getattr(engine.model.ops, "memory", None)
    room = device.room() if device is not None else memory_bytes() or 0
    return next((ctx for ctx in CONTEXTS if SHARE * engine.shape.kv_bytes(ctx) <= room), CONTEXTS[-1])


def checkpoints(engine: Engine, args: Namespace) -> Store | None:
    """Open the store of checkpoints in the folder --kv-disk-dir; return None without that flag."""
    if args.kv_disk_dir is None:
        return None
    from ..session.boundaries import Policy
    from ..session.store import Store

    policy = Policy(args.kv_cache_min_tokens)
    return Store.open(engine, args.kv_disk_dir, args.kv_disk_space_mb << 20, policy)


def body(argv: Sequence[str], constrain: GuideOf | None = None) -> int:
    """Check the command line, then serve until SIGINT or SIGTERM; return the exit code."""
    if argv and argv[0] == "smoke":
        from .smoke import body as smoke

        return smoke(argv[1:])
    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    key = key_of(args)
    from ..server.auth import check_binding
    from ..server.listen import bind
    from ..server.trace import Trace

    check_binding(args.host, key, args.insecure)
    sock = bind(args.host, args.port)
    try:
        trace = None if args.trace is None else Trace(args.trace)
        return serve(args, settings(args, key), sock, trace, constrain)
    finally:
        sock.close()


def serve(
    args: Namespace, how: Settings, sock: socket.socket, trace: Trace | None, constrain: GuideOf | None = None
) -> int:
    """Load the model and serve on ``sock`` with the settings ``how`` until SIGINT or SIGTERM; return the exit code."""
    from ..server import listen, logs

    with open_engine(PROG, args) as engine:
        logs.listen(sys.stderr, args.log_format, has_colour(sys.stderr))
        how = facts(how, engine)
        service = make_service(engine, args, how, trace, constrain)
        listen.log.info("serving %s under the id %s", how.title, how.model)
        if how.usual_tokens is not None:
            listen.log.info("an answer has at most %d tokens unless its request names a limit", how.usual_tokens)
        if trace is not None:
            listen.log.warning("tracing to %s: every prompt and answer, whatever secrets they hold", args.trace)
        if args.insecure and not how.access.key and args.host not in ("127.0.0.1", "localhost", "::1"):
            listen.log.warning("everybody who can reach %s may use this server", args.host)
        listen.serve(service, sock)
    return 0


def facts(how: Settings, engine: Engine) -> Settings:
    """Return the settings ``how`` with the values that depend on the model: the name to display, and the default token
    limit."""
    from dataclasses import replace

    from ..nano import embedded_path
    from ..weights.source import display_name

    embedded = Path(engine.path) == Path(embedded_path())
    return replace(how, title=display_name(engine.source), usual_tokens=EMBEDDED_TOKENS if embedded else None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command as a console script; return the exit code."""
    return run(PROG, body, argv)


if __name__ == "__main__":
    sys.exit(main())
