"""``ds4-eval --replay LOG``: show a run again, on the screen or line by line."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from ds4ref.console.common import Progress, columns, is_tty, say
from ds4ref.errors import DataError, UsageError

from .log import read
from .options import PROG
from .replay import Replay, asked
from .report import report
from .runner import Event
from .signals import Signals
from .view import newest


def replay(args: Namespace) -> int:
    """Play the log, then print its report; return the exit code."""
    if args.resume is not None or args.output is not None or args.json:
        raise UsageError("--replay only shows a log: --resume, --output and --json do not apply")
    log = read(newest(args.replay))
    if log.torn:
        say(PROG, f"{log.path}: the last line is incomplete (a crash?) and was skipped")
    if not log.samples:
        raise DataError(f"{log.path}: no samples yet")
    speed, questions = args.speed or 1.0, asked(log)
    epochs = max([log.header.epochs, *(sample.epoch for sample in log.samples)])
    title = f"{log.header.pack.get('pack')} on {log.header.target.get('name')}, {Path(log.path).name}"

    def make(listen: Callable[[Event], None]) -> Replay:
        return Replay(log, speed, listen)

    with Signals() as signals:
        if is_tty(sys.stdout) and is_tty(sys.stdin) and not args.plain:
            from .tui import show

            show(make, questions, epochs, make(lambda event: None).log, title=title, signals=signals,
                 pause_s=args.pause_ms / 1e3 / speed)  # fmt: skip
        else:
            from .plain import Plain

            with Progress("samples") as progress:
                runner = make(Plain(log.questions, len(log.samples), 0, progress, sys.stdout))
                with signals.does(runner.stop):
                    runner.run()
    print(report(log, columns(sys.stdout) if is_tty(sys.stdout) else 120))
    return signals.code
