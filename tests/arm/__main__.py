"""Cross-compile the kernels, and run the op table and the golden models on them under emulation: ``make arm TIER=N``.

    python -m tests.arm C                                      the files of ``FILES``
    python -m tests.arm N --tests tests/kernels -- -k rope     what follows -- is pytest's

Nothing compiles under emulation but what a test asks Numba for itself. The user space and the kernels are kept in
out/arm.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from pathlib import Path

from . import userland
from .userland import MACHINES, ROOT, UserlandError

FOLDER = ROOT / "out/arm"
FILES = ("tests/kernels/test_ops.py", "tests/archs/test_golden.py")
ASK_KEYS = """
from ds4ref.kernels.cpu import library
print(*(f"{group}={library.cache_key(group)}" for group in (*library.GROUPS, library.QUANTIZE)))
"""
BUILD = """
import sys
from pathlib import Path
from ds4ref.kernels.cpu import library
library.build({sys.argv[1]: Path(sys.argv[2])}, lambda line: None)
"""


def kernels(python: Path, environment: dict[str, str], tier: str) -> None:
    """Compile the kernels of a tier here, to where the engine looks for them there, unless that was done."""
    from ds4ref.kernels.cpu import library

    here = {**os.environ, "DS4_CROSS_TARGET": f"aarch64-unknown-linux-gnu:{MACHINES[tier].cpu}", "DS4_SIMD_TIER": tier}
    for word in userland.run([str(python), "-c", ASK_KEYS], "asking for the names of kernels", environment).split():
        group, key = word.split("=")
        folder = Path(environment["DS4_CACHE_DIR"]) / "kernels" / key
        if not library.complete(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            print(f"arm: compiling the {library.label([group])}, tier {tier}", file=sys.stderr)
            userland.run([sys.executable, "-c", BUILD, group, str(folder)], f"compiling the {group}", here)


def main() -> int:
    """Make what is missing and run pytest under emulation; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.arm", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tier", choices=sorted(MACHINES), help="instructions that the kernels may use (simd/tiers.py)")
    parser.add_argument("--tests", nargs="+", default=FILES, help="default: %(default)s")
    own = [*itertools.takewhile(lambda word: word != "--", sys.argv[1:])]
    args, further = parser.parse_args(own), sys.argv[len(own) + 2 :]
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        python = userland.make(FOLDER)
        environment = userland.enter(FOLDER, args.tier)
        cache = str(FOLDER / "cache")
        environment |= {"DS4_CACHE_DIR": cache, "DS4_TEST_CACHE_DIR": cache, "MPLBACKEND": "Agg"}
        kernels(python, environment, args.tier)
    except UserlandError as error:
        print(f"arm: {error}", file=sys.stderr)
        return 1
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=3000", *further, *args.tests]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
