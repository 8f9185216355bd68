"""A command run for somebody else: ``python -m ds4ref.cli.unit MODULE ARGUMENTS...``

It ends with whoever asked for it: standard input is a pipe from there, and its end means that nobody waits any more. A
worker that is killed would otherwise leave its measurement behind, to disturb the one that repeats it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence

LINGER = 10.0
"""Seconds to end in order."""


def end_with(pipe: int) -> None:
    """SIGTERM to this process when ``pipe`` ends, and no mercy after ``LINGER``."""
    while os.read(pipe, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(LINGER)
    os._exit(1)


def main(argv: Sequence[str]) -> None:
    """Run the module as a program; its own standard input is empty."""
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=end_with, args=(pipe,), daemon=True, name="lifeline").start()
    module, *rest = argv
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
