"""Decode of a slice in DeepSeek's published layout, read in place, against the bandwidth bound of its bytes.

The slice has 4 layers and 8 experts, all of whose weights a few tokens read. The GGUF slice takes turns with it, so
that the share of either's bound is measured in the same minutes.
"""

from __future__ import annotations

import numpy as np

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.engine import Engine
from ds4ref.kernels.formats import ApartRows
from ds4ref.kernels.formats.matrix import Matrix
from ds4ref.nano.cache import published_slice_path

from .context import Context
from .matvec import reading
from .timing import interleave, ratios
from .whole import decoding

POSITION = 1024


def dense(engine: Engine) -> tuple[list[np.ndarray], int]:
    """Return the bytes of all dense matrices of the layers, as arrays, and by how much their rows as a storage format
    would be larger: what ``Costs`` counts too much."""
    arrays, more = [], 0
    for layer in engine.model.weights.layers:
        for value in vars(layer).values():
            if not isinstance(value, Matrix) or value.data.ndim != 2:
                continue
            data = value.data
            arrays.append(data.codes[0] if isinstance(data, ApartRows) else data)
            more += value.rows * value.row_bytes - data.nbytes
    return arrays, more


def decode(context: Context) -> None:
    """Measure the rows "published ..." of the CPU table."""
    gguf, tokens = context.engine, 2 if context.quick else 3
    with Engine.open(published_slice_path(4, 8, 4096), numerics="exact", threads=context.threads) as engine:
        for _ in engine.source.touch():
            pass
        arms, bounds = {}, {}
        for name, some in (("published", engine), ("gguf", gguf)):
            arrays, more = dense(some)
            read = sum(array.nbytes for array in arrays)
            bounds[name] = (Costs.of_file(some.source, some.shape).decode(POSITION).bytes - more) / read
            arms |= {f"read {name}": reading(context.threads, *arrays), name: decoding(some, POSITION, tokens)}
        samples = interleave(arms, 2 * context.rounds + 1)
        shares = {name: ratios(samples[f"read {name}"], samples[name], bounds[name]) for name in bounds}
        size = bounds["published"] * sum(array.nbytes for array in dense(engine)[0])
        note = f"{size / 1e6:.0f} MB a token at position {POSITION}, {context.threads} threads, mode exact"
        context.add("published", shares["published"], note)
        context.add("published ms", [1e3 * seconds for seconds in samples["published"]])
        pairs = zip(shares["published"], shares["gguf"], strict=True)
        context.add("published vs", [one / other for one, other in pairs])
