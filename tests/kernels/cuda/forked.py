"""Runs ``ds4`` many times with compiled kernels, each time with another fault of the driver.

    python -m tests.kernels.cuda.forked FOLDER FAULT... -- ARGUMENTS OF DS4

The command runs once, which compiles its kernels; then a fork of this process runs it again for every fault
(``STUB_CUDA_FAIL``; "none"), to its very end: what Python destroys last can fail, too. Output, error lines, calls and
exit code of each go to FOLDER/NUMBER.out, .err, .calls and .code. Forking a process that uses a GPU is possible only on
the stand-in.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

from ds4ref.cli.ds4 import main
from ds4ref.kernels.cuda.driver import memory

PATIENCE = 60
"""Seconds until a process that does not end is ended."""


def wait(child: int) -> str:
    """The exit code of a child, or "hangs"."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"


def redirect(number: int, path: Path) -> None:
    """Let a standard stream be a file."""
    to = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(to, number)
    os.close(to)


split = sys.argv.index("--")
folder, faults, argv = Path(sys.argv[1]), sys.argv[2:split], sys.argv[split + 1 :]
memory.KEPT = 0  # every block is given back to the driver at once, as large ones are
assert main(argv) == 0
for number, fault in enumerate(faults):
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        redirect(1, folder / f"{number}.out")
        redirect(2, folder / f"{number}.err")
        os.environ["STUB_CUDA_FAIL"] = "" if fault == "none" else fault
        os.environ["STUB_CUDA_LOG"] = str(folder / f"{number}.calls")
        ctypes.CDLL("libcuda.so.1").stub_restart()
        sys.exit(main(argv))
    (folder / f"{number}.code").write_text(wait(child))
