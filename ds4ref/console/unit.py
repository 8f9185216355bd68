"""Runs one unit of a job as a process: ``python -m ds4ref.console.unit MODULE ARGUMENTS...``

The process ends with its parent: standard input is a pipe from the parent, and end of file means that the parent has
ended. Otherwise the measurement of a killed worker would go on and disturb its own repetition.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence

LINGER = 10.0
"""Seconds between SIGTERM and a forced exit."""


def end_with(pipe: int) -> None:
    """Send SIGTERM to this process at the end of file of ``pipe`` (a descriptor); exit ``LINGER`` seconds later."""
    while os.read(pipe, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(LINGER)
    os._exit(1)


def main(argv: Sequence[str]) -> None:
    """Run a module as a program with empty standard input; ``argv``: the module and its arguments."""
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=end_with, args=(pipe,), daemon=True, name="lifeline").start()
    module, *rest = argv
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
