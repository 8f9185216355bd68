"""Collect weight importance for quantization: the mean square of each input channel of every weight matrix, over the
tokens of a text.

A prompt file is text. Lines that start with ``===== DS4_IMATRIX_PROMPT`` separate prompts, as in ds4's data sets; a
file without such a line is a single prompt. A prompt longer than the context is evaluated in pieces of that length,
each from an empty sequence. Control tokens written in the text are encoded as such.

    table = collect(engine, prompts(engine, text, 2048, None, None))
    write_imatrix("importance.gguf", table)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from .archs import arch_of
from .errors import BackendError, DataError
from .weights.quantize.imatrix import Imatrix, TensorImportance

MARKER = "===== DS4_IMATRIX_PROMPT"
BACKENDS = ("cpu", "reference")
"""Backends whose intermediates are NumPy arrays."""


def split(text: str) -> list[str]:
    """Return the prompts of a file, stripped, without empty ones."""
    parts = re.split(rf"^{re.escape(MARKER)}.*$", text, flags=re.MULTILINE)
    return [part.strip() for part in parts if part.strip()]


def prompts(engine: Any, text: str, ctx: int, most_prompts: int | None, most_tokens: int | None) -> list[list[int]]:
    """Return the prompts in ``text`` as token ids, in pieces of at most ``ctx`` tokens; raise DataError if there are
    none.

    ``most_prompts``, ``most_tokens``: limits on the whole text; None for no limit.
    """
    pieces: list[list[int]] = []
    budget = most_tokens
    for prompt in split(text)[:most_prompts]:
        ids = engine.tokenizer.encode_rendered(prompt)
        if budget is not None:
            ids = ids[:budget]
            budget -= len(ids)
        pieces += [ids[at : at + ctx] for at in range(0, len(ids), ctx)]
        if budget == 0:
            break
    if not pieces:
        raise DataError("the prompt file has no text")
    return pieces


def collect(
    engine: Any,
    pieces: Iterable[list[int]],
    progress: Callable[[int], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Imatrix:
    """Evaluate ``pieces`` and return the mean squares of every weight matrix's inputs over all their tokens.

    ``progress`` is called with the number of tokens done after every chunk of a piece; if ``cancel()`` returns true
    there, the means so far are returned. Raise BackendError for a backend whose matrix inputs cannot be observed.
    """
    if engine.backend not in BACKENDS:
        raise BackendError(f"importance is collected on {' or '.join(BACKENDS)}, not on {engine.backend}")
    collector = arch_of(engine.source).collector(engine.shape)
    done = 0
    for ids in pieces:
        session = None
        while session is None or session.pos < len(ids):
            if cancel is not None and cancel():
                return table(collector.sums, done)
            if session is None:
                session = engine.session(len(ids) + 1)
                session.hooks = collector
            before = session.pos
            session.sync(ids[: before + session.chunk])
            done += session.pos - before
            if progress is not None:
                progress(done)
    return table(collector.sums, done)


def table(sums: dict[str, tuple[np.ndarray, np.ndarray]], tokens: int) -> Imatrix:
    """Return the importance table of ``tokens`` tokens from (sums of squares, counts of tokens) by tensor name."""
    entries = {}
    for name, (squares, counts) in sums.items():
        means = squares / np.where(counts > 0, counts, 1)[:, None]
        entries[name] = TensorImportance(means.astype(np.float32), counts)
    return Imatrix(entries, chunks=tokens)


def unmet(importance: Imatrix) -> Iterator[tuple[str, int, int]]:
    """Yield (tensor, number of experts that no token was routed to, number of experts) for each tensor with such
    experts."""
    for name, entry in importance.entries.items():
        if entry.unmet:
            yield name, entry.unmet, len(entry.means)
