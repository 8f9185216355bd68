"""Cross-compile the kernels, and run a share of the suite on them under emulation: ``make arm TIER=N``.

    python -m tests.arm C                                      the files of ``suite``
    python -m tests.arm N --tests tests/kernels -- -k rope     what follows -- is pytest's
    python -m tests.arm N --mach-o                             the kernels as a Mac has them (``mach_o``)

Nothing compiles under emulation but what a test asks Numba for itself. The user space, the kernels and the drawn
models are kept in out/arm.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import os
import subprocess
import sys
from pathlib import Path

from . import suite, userland
from .userland import MACHINES, ROOT, UserlandError

FOLDER = ROOT / "out/arm"
TRIPLE = "aarch64-unknown-linux-gnu"
MACS = {"C": "apple-m1", "N": "apple-m1", "I": "apple-m4"}
"""Apple's processors, by tier, that Mach-O objects are compiled for."""

ASK_KEYS = """
from ds4ref.kernels.cpu import library
print(*(f"{group}={library.cache_key(group)}" for group in library.GROUPS))
"""
BUILD = """
import sys
from pathlib import Path
from ds4ref.kernels.cpu import library
target = Path(sys.argv[2])
library.build(target, sys.argv[1], lambda line: None)
"""


def compiled(group: str, target: str, tier: str, folder: Path) -> None:
    """Compile a group of kernels for ``target`` here, into ``folder``, unless that was done."""
    from ds4ref.kernels.cpu import library

    if library.complete(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"arm: compiling the {library.GROUPS[group]} for {target}, tier {tier}", file=sys.stderr)
    here = {**os.environ, "DS4_CROSS_TARGET": target, "DS4_SIMD_TIER": tier}
    userland.run([sys.executable, "-c", BUILD, group, str(folder)], f"compiling the {group}", here)


def kernels(python: Path, environment: dict[str, str], tier: str, mach_o: bool) -> None:
    """Compile the kernels of a tier to where the engine, or the plugin ``mach_o``, looks for them there."""
    home = Path(environment["DS4_CACHE_DIR"]) / "kernels"
    for word in userland.run([str(python), "-c", ASK_KEYS], "asking for the names of kernels", environment).split():
        group, key = word.split("=")
        if mach_o:
            folder = FOLDER / "mach_o" / tier / group
            compiled(group, f"arm64-apple-macosx:{MACS[tier]}", tier, folder / key)
            (folder / "newest").unlink(missing_ok=True)
            (folder / "newest").symlink_to(key)
        else:
            compiled(group, f"{TRIPLE}:{MACHINES[tier].cpu}", tier, home / key)


def logits() -> str:
    """Return the folder of drawn models with the logits that this machine computes."""
    folder = FOLDER / "drawn"
    here = {**os.environ, "DS4_CACHE_DIR": os.environ.get("DS4_TEST_CACHE_DIR", str(ROOT / "out/test-cache"))}
    userland.run([sys.executable, "-m", "tests.arm.drawn", str(folder)], "logits of this machine", here)
    return str(folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.arm", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tier", choices=sorted(MACHINES), help="instructions that the kernels may use (simd/tiers.py)")
    parser.add_argument("--mach-o", action="store_true", help="kernels as object files of macOS, of its processors")
    parser.add_argument("--tests", nargs="+", help="instead of those of tests/arm/suite.py")
    own = [*itertools.takewhile(lambda word: word != "--", sys.argv[1:])]
    args, further = parser.parse_args(own), sys.argv[len(own) + 2 :]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # one processor at a time: root/proc/cpuinfo
        except OSError:
            print(f"arm: another make arm uses {FOLDER}", file=sys.stderr)
            return 1
        return run(args, further)


def run(args: argparse.Namespace, further: list[str]) -> int:
    """Make what is missing and run pytest under emulation; return its exit code."""
    try:
        python = userland.make(FOLDER)
        environment = userland.enter(FOLDER, args.tier)
        cache = str(FOLDER / "cache")
        environment |= {"DS4_CACHE_DIR": cache, "DS4_TEST_CACHE_DIR": cache, "MPLBACKEND": "Agg"}
        kernels(python, environment, args.tier, args.mach_o)
        environment["DS4_TEST_ARM_LOGITS"] = logits()
    except UserlandError as error:
        print(f"arm: {error}", file=sys.stderr)
        return 1
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=3000", *further]
    if args.mach_o:
        environment["DS4_TEST_MACH_O"] = str(FOLDER / "mach_o" / args.tier)
        environment["QEMU_CPU"] = MACHINES["I"].qemu  # Apple's have more than the Linux machine of a lesser tier
        command += ["-p", "tests.arm.mach_o"]
    command += args.tests or suite.arguments()
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
