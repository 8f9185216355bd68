"""Compile the kernels of a GPU check where there is no GPU, to bring them to a machine that has one.

    python -m benchmarks.gpu_carry carried --arch 9.0          some minutes a compute capability
    DS4_CUBINS=carried python -m benchmarks.gpu_check          there: what is in the folder is not compiled again

The timed parts of ``gpu_check`` run on the stand-in for the driver (``tests/kernels/cuda/stub``): nothing is computed,
but all is compiled for the device that it plays. Machine code is valid for the sources it was made from: after a change
under ``kernels`` make it anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ds4ref.kernels.cuda.driver import cubins
from tests.kernels.cuda.stubbed import build, no_compiler

PARTS = "basics", "kernels", "products", "speed"
MULTIPROCESSORS = {"8.0": 108, "8.9": 128, "9.0": 132, "10.0": 148, "12.0": 170, "12.1": 48}
"""Of A100, RTX 4090, H100 and H200, B200, RTX 5090, GB10, by compute capability. Layouts depend on them."""


def compile_for(arch: str, stub: Path, seconds: float, parts: Sequence[str]) -> dict[str, str]:
    """Run parts of the check on the stand-in, so that their kernels are kept; return how each ended."""
    with tempfile.TemporaryDirectory(prefix="ds4-carry-") as folder:
        out = Path(folder, "check.json")
        playing = {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(stub), os.environ.get("LD_LIBRARY_PATH", "")))),
            "STUB_CUDA_CAPABILITY": arch, "STUB_CUDA_SMS": str(MULTIPROCESSORS[arch]),
            "STUB_CUDA_MEMORY": str(80 << 30),
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.gpu_check", "--seconds", str(seconds), "-o", out, "--only", *parts]
        subprocess.run(command, env=os.environ | playing, stdout=subprocess.DEVNULL, check=False)
        ended = json.loads(out.read_text())["parts"]
    return {name: part["state"] for name, part in ended.items() if name in parts}


def main(argv: Sequence[str] | None = None) -> int:
    """Compile and copy; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_carry", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="gets sm_90/*.cubin and the like")
    parser.add_argument("--arch", nargs="+", choices=[*MULTIPROCESSORS], default=["9.0"], help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=900.0, help="for each of them at most (%(default)s)")
    args = parser.parse_args(argv)
    if reason := no_compiler():
        parser.exit(1, f"{reason}\n")
    code = 0
    with tempfile.TemporaryDirectory(prefix="ds4-stub-") as made:
        stub = build(Path(made))
        for arch in args.arch:
            ended = compile_for(arch, stub, args.seconds, args.only)
            name, kept = "sm_" + arch.replace(".", ""), cubins.kept()
            source = None if kept is None else kept / name
            if source is None or not source.is_dir():
                parser.exit(1, f"{name}: nothing was kept: {ended}\n")
            shutil.copytree(source, args.folder / name, dirs_exist_ok=True)
            sizes = [path.stat().st_size for path in (args.folder / name).glob("*.cubin")]
            print(f"{name}: {len(sizes)} kernels, {sum(sizes) / 2**20:.1f} MiB; {ended}")
            code = code or int(any(not state.startswith("done") for state in ended.values()))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
