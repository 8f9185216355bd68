"""Collecting importance: prompts through the pass, squares of what every matrix reads added up on the way.

A prompt file is text. Lines that start with ``===== DS4_IMATRIX_PROMPT`` part it into prompts, as in ds4's data sets; a
file without one is a single text. A prompt longer than the context is read in pieces of that length, each from an
empty timeline. Control tokens that stand in the text are recognised.

    table = collect(engine, prompts(engine, text), ctx=2048)
    write_imatrix("importance.gguf", table)
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .archs import ARCHS, architecture
from .errors import BackendError, DataError
from .weights.quantize.imatrix import Entry, Imatrix

if TYPE_CHECKING:
    from .engine import Engine

MARKER = "===== DS4_IMATRIX_PROMPT"
BACKENDS = ("cpu", "reference")
"""Backends whose intermediates are NumPy arrays."""


def split(text: str) -> list[str]:
    """The prompts of a file, trimmed, without empty ones."""
    parts = re.split(rf"^{re.escape(MARKER)}.*$", text, flags=re.MULTILINE)
    return [part.strip() for part in parts if part.strip()]


def prompts(engine: Engine, text: str, ctx: int, most_prompts: int | None, most_tokens: int | None) -> list[list[int]]:
    """Token ids of pieces of at most ``ctx`` tokens, of at most so many prompts and tokens in all.

    DataError if there is nothing to read.
    """
    found: list[list[int]] = []
    left = most_tokens
    for prompt in split(text)[:most_prompts]:
        ids = engine.tokenizer.encode_rendered(prompt)
        if left is not None:
            ids = ids[:left]
            left -= len(ids)
        found += [ids[at : at + ctx] for at in range(0, len(ids), ctx)]
        if left == 0:
            break
    if not found:
        raise DataError("the prompt file has no text")
    return found


def collect(
    engine: Engine,
    pieces: Iterable[list[int]],
    progress: Callable[[int], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Imatrix:
    """Mean squares over all tokens of ``pieces``; ``progress`` is told how many are done.

    After ``cancel()`` turned true, what was measured until then is returned. BackendError for a backend or a family
    whose pass cannot be listened to.
    """
    if engine.backend not in BACKENDS:
        raise BackendError(f"importance is collected on {' or '.join(BACKENDS)}, not on {engine.backend}")
    name = architecture(engine.source)
    family: Any = importlib.import_module(ARCHS[name])
    if not hasattr(family, "collector"):
        raise BackendError(f"the pass of {name} has no points at which importance could be collected")
    collector = family.collector(engine.shape)
    done = 0
    for ids in pieces:
        if cancel is not None and cancel():
            break
        session = engine.session(len(ids) + 1)
        session.hooks = collector
        session.sync(ids)
        done += len(ids)
        if progress is not None:
            progress(done)
    return table(collector.sums, done)


def table(sums: dict[str, tuple[np.ndarray, np.ndarray]], tokens: int) -> Imatrix:
    """Sums and counts as an importance table."""
    entries = {}
    for name, (squares, counts) in sums.items():
        means = squares / np.where(counts > 0, counts, 1)[:, None]
        entries[name] = Entry(means.astype(np.float32), counts)
    return Imatrix(entries, chunks=tokens)


def unmet(found: Imatrix) -> Iterator[tuple[str, int, int]]:
    """(tensor, experts never met, experts) where there are some."""
    for name, entry in found.entries.items():
        if entry.unmet:
            yield name, entry.unmet, len(entry.means)
