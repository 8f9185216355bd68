"""What other engines say of wrong model files: archives for the diagnosis (``tests.badfiles`` makes the files).

    python -m tests.oracle.wrong_files OUT hf                       Hugging Face, exact
    python -m tests.oracle.wrong_files OUT llama [--one-by-one]     llama.cpp, its own roundings

writes OUT/ENGINE.files.npz: ids (T,), names and says (n,), logits (n, T, V) float32, effect (n,) rms against ``clean``
(T, V), the same engine on the good file, ``changed`` (n,) the first tensor or key that differs and ``refused`` the
names of the files that the engine does not load.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.environment import usable_cores
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from tests.badfiles import BAD, LLAMA_ONLY, BadFile, write_bad

Run = Callable[[str], np.ndarray]
"""path of a model file -> logits (T, V); ValueError if the engine does not load it."""


def hugging_face(ids: Sequence[int]) -> Run:
    """Float32, gguf-py's reading of the file."""
    from .hf import Oracle

    def run(path: str) -> np.ndarray:
        try:
            oracle = Oracle.load(path, threads=usable_cores())
        except RuntimeError as error:  # torch's, when a tensor has no place
            raise ValueError(str(error)) from None
        return oracle.logits(ids)

    return run


def llama_cpp(ids: Sequence[int], one_by_one: bool = False, **options: Any) -> Run:
    """llama.cpp on a CPU; ``options`` as ``llama.Llama``."""
    from .llama import Llama

    def run(path: str) -> np.ndarray:
        with Llama(path, **options) as engine:
            return engine.logits(ids, one_by_one)

    return run


def archive(run: Run, model: str, files: Sequence[BadFile], ids: Sequence[int]) -> dict[str, Any]:
    """The arrays of one archive (see above)."""
    clean = run(model)
    kept, changed, logits, refused = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for bad in files:
            path = Path(folder) / f"{bad.name}.gguf"
            differs = write_bad(model, path, bad)
            try:
                found = run(str(path))
            except ValueError:
                refused.append(bad.name)
                continue
            finally:
                path.unlink()
            kept.append(bad)
            changed.append(differs[0])
            logits.append(found)
    stacked = np.stack(logits)
    return {
        "ids": np.array(ids, np.int32),
        "names": np.array([bad.name for bad in kept]),
        "says": np.array([bad.says for bad in kept]),
        "changed": np.array(changed),
        "refused": np.array(refused, dtype=str),
        "logits": stacked,
        "clean": clean,
        "effect": np.sqrt(np.square(stacked - clean, dtype=np.float64).mean(axis=(1, 2))),
    }


def main() -> None:
    """Write one archive."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.wrong_files", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("engine", choices=("hf", "llama"))
    parser.add_argument("--prompt", default="mixed", choices=sorted(PROMPTS))
    parser.add_argument("--one-by-one", action="store_true", help="llama.cpp: token by token")
    options = parser.parse_args()
    ids = PROMPTS[options.prompt]()
    run = hugging_face(ids) if options.engine == "hf" else llama_cpp(ids, options.one_by_one)
    files = [*BAD.values(), *(LLAMA_ONLY if options.engine == "llama" else [])]
    arrays = archive(run, diagnostic_path(), files, ids)
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(options.out / f"{options.engine}.files.npz", **arrays)
    for name, effect, changed in zip(arrays["names"], arrays["effect"], arrays["changed"], strict=True):
        print(f"{name:28} rms {effect:.2e} {changed}", flush=True)
    print("refused:", *arrays["refused"])


if __name__ == "__main__":
    main()
