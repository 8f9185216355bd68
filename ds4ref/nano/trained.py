"""The embedded model: its weights (in the folder ``weights``, laid out as DeepSeek publishes a model), and the model
files made from them.

Files are made at first use, by the quantizer of ``ds4-quantize``, and kept in the user's cache; their names contain a
digest of the weights. On every use a file is compared with a digest stored next to it, and made again if it does not
match. DS4_NANO_WEIGHTS can name another folder of weights, such as a checkpoint in training.

    embedded_path("q4")      return the path of nano-q4-0123456789ab.gguf in the cache
    mtp_path("f16")          return the path of its block for multi-token prediction, in a file of its own
    dspark_path()            return the path of its DSpark drafter, which is in the repository as it is
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError, UsageError, did_you_mean
from ..files import atomic_write, file_digest
from .cache import cache_dir, kept

if TYPE_CHECKING:
    from ..weights.quantize.imatrix import Imatrix
    from ..weights.source import TensorSource

RECIPES = {
    "f16": "every matrix F16: the weights as they were trained",
    "q4": "routed experts Q4_K, as ds4's files",
    "q2": "routed experts IQ2_XXS and Q2_K, weighed by importance",
    "q2-plain": "the same without importance",
    "fp8": "a folder in DeepSeek's FP8 and FP4",
}
"""Kinds of files that can be made from the weights, by recipe name -> description."""

DEFAULT_RECIPE = "f16"
"""Recipe of the file that commands use without -m."""

ABOUT = "a test instrument trained on generated tasks, not an assistant"

FOLDER = Path(__file__).with_name("weights")
FOLDER_KEY = "DS4_NANO_WEIGHTS"
"""Environment variable that names another folder of weights."""

WAIT_SECONDS = 600.0
"""Maximum time to wait while another process makes the file; it may have to compile kernels first."""

MAKING = 1
"""Version of how files are made, part of their names: raise it when the same weights give other files."""


def weights_folder() -> Path:
    """Return the folder of the embedded model's weights; raise DataError if it contains no model."""
    from ..weights.safetensors import CONFIG

    folder = Path(os.environ.get(FOLDER_KEY) or FOLDER)
    if not (folder / CONFIG).is_file():
        hint = "" if os.environ.get(FOLDER_KEY) else f"; {FOLDER_KEY} can name another folder"
        raise DataError(f"the embedded model's weights are missing: no {CONFIG} in {folder}{hint}")
    return folder


def embedded_path(recipe: str = DEFAULT_RECIPE) -> str:
    """Return the path of the embedded model as a file, or as a folder for recipe "fp8"; it is made first if it is
    absent or damaged.

    Raise UsageError for an unknown recipe, DataError or ModelFileError if the file cannot be made.
    """
    check_recipe(recipe)
    if recipe == "fp8":
        return _kept("nano-fp8", "", _make_published)
    return _kept(f"nano-{recipe}", ".gguf", lambda path, folder: _make_file(path, folder, recipe))


def mtp_path(recipe: str = DEFAULT_RECIPE) -> str:
    """Return the path of the embedded model's block for multi-token prediction, a GGUF file, made first if it is absent
    or damaged.

    It has no importance matrix: "q2" is the same as "q2-plain". Raise the errors of ``embedded_path``.
    """
    check_recipe(recipe)
    if recipe == "fp8":
        raise UsageError("the block for multi-token prediction is a GGUF file: no recipe fp8")
    plain = recipe.removesuffix("-plain")
    return _kept(f"nano-mtp-{plain}", ".gguf", lambda path, folder: _make_mtp(path, folder, plain))


def dspark_path() -> str:
    """Return the path of the embedded model's DSpark drafter, a GGUF file (``train.drafter``); raise DataError if it is
    missing."""
    path = Path(__file__).with_name("dspark.gguf")
    if not path.is_file():
        raise DataError(f"the embedded model's drafter is missing: no {path}")
    return str(path)


def check_recipe(recipe: str) -> None:
    """Raise UsageError, listing the known recipes, unless ``recipe`` is one of them."""
    if recipe not in RECIPES:
        raise UsageError(f"unknown recipe {recipe!r}: choose from {', '.join(RECIPES)}{did_you_mean(recipe, RECIPES)}")


def _kept(name: str, suffix: str, make: Callable[[Path, Path], None]) -> str:
    """Return the path of a file or folder in the cache; if it is absent or damaged, call ``make(path, weights)``
    first."""
    folder = weights_folder()
    try:
        key = hashlib.sha256(f"{MAKING} {file_digest(folder)}".encode()).hexdigest()[:12]
    except OSError as error:
        raise DataError(f"cannot read the weights in {folder}: {error.strerror or error}") from None

    def made(path: Path) -> None:
        if sys.stderr.isatty():
            print(f"ds4ref: making {path.name} from the embedded model's weights (once)", file=sys.stderr)
        scratch = tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        with scratch as unfinished:
            make(Path(unfinished, path.name), folder)
            shutil.rmtree(path, ignore_errors=True)
            Path(unfinished, path.name).replace(path)
        with atomic_write(_digest_path(path)) as out:
            out.write(file_digest(path).encode())

    path = cache_dir() / f"{name}-{key}{suffix}"
    try:
        return kept(path, _intact, made, WAIT_SECONDS)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.digest")


def _intact(path: Path) -> bool:
    """Return whether a file or folder still has the digest that was stored when it was made."""
    try:
        return file_digest(path) == _digest_path(path).read_text()
    except (OSError, ValueError):
        return False


def _make_file(path: Path, folder: Path, recipe: str) -> None:
    from ..weights import open_source
    from .importance import measure

    table = measure(folder) if recipe == "q2" else None
    with open_source(folder) as source:
        _quantize(source, path, recipe.removesuffix("-plain"), table)


def _make_mtp(path: Path, folder: Path, recipe: str) -> None:
    from ..weights.published import PublishedSource

    with PublishedSource.open(folder, mtp=True) as source:
        _quantize(source, path, recipe)


def _quantize(source: TensorSource, path: Path, recipe: str, table: Imatrix | None = None) -> None:
    from ds4ref.kernels.system import available_cores

    from ..weights.quantize.part import PartFile
    from ..weights.quantize.plan import Choices, about_imatrix, make_plan
    from ..weights.quantize.run import run

    plan = make_plan(source, Choices(recipe=recipe))
    if table is not None:
        plan.metadata += about_imatrix(table)
    specs = [item.spec for item in plan.items]
    with PartFile(path, plan.metadata, specs, plan.alignment, digest="", fresh=True) as out:
        run(plan, source, out, table, threads=available_cores())


def _make_published(path: Path, folder: Path) -> None:
    from ..weights import open_source
    from .checkpoint import write_checkpoint

    with open_source(folder) as source:
        write_checkpoint(source, path)
