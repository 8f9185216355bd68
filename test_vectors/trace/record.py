"""Record every named intermediate of our own pass in a safetensors file with a manifest.

Tensors are named POINT.LAYER (in the output head: POINT); a point of two arrays becomes two tensors, .0 and .1. The
manifest is the entry "manifest" of the file's metadata, as JSON: model, digest, token ids, numerics, version, and for
each tensor its point, layer, shape, type and meaning.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ds4ref.console.common import atomic_output
from ds4ref.engine import Engine
from ds4ref.errors import DataError, UsageError
from ds4ref.files import file_digest
from ds4ref.variants.forced import HEAD, LATER, NAMES, Recorder, model_of, run_layers
from ds4ref.version import __version__

from .dumps import FORMAT
from .ops import OPS


def record(
    engine: Engine,
    ids: Sequence[int],
    layers: Collection[int] | None = None,
    cancel: Callable[[int], None] | None = None,
    watch: Callable[[set[int]], Recorder] = lambda layers: Recorder(layers=layers),
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Run the pass up to the last requested layer (None: all); return (tensors by name, manifest).

    cancel  called with each layer's number; may raise to end the pass
    watch   returns the hooks that record the given layers

    UsageError for a layer that does not exist, DataError for token ids outside the vocabulary.
    """
    shape = engine.shape
    wanted = {*range(shape.n_layers), HEAD} if layers is None else set(layers)
    outside = [n for n in wanted if not HEAD <= n < shape.n_layers]
    if outside:
        raise UsageError(f"there is no layer {outside[0]}: the model has 0 to {shape.n_layers - 1}, and head")
    if not ids or max(ids) >= shape.vocab:
        raise DataError(f"token ids must be 0 to {shape.vocab - 1}, and at least one")
    recorder = watch(wanted)
    last = shape.n_layers if HEAD in wanted else max(wanted) + 1
    with np.errstate(all="ignore"):
        run_layers(model_of(engine), ids, recorder, [*range(last), *([HEAD] if HEAD in wanted else [])], cancel=cancel)
    tensors: dict[str, np.ndarray] = {}
    entries = []
    for (name, layer), (value,) in recorder.parts.items():
        whole = name if layer < 0 else f"{name}.{layer}"
        parts = {f"{whole}.{i}": part for i, part in enumerate(value)} if isinstance(value, tuple) else {whole: value}
        for key, part in parts.items():
            if part is not None:
                array = tensors[key] = np.array(part, order="C")
                entries.append({"key": key, "name": name, "layer": layer, "shape": list(array.shape),
                                "dtype": array.dtype.name, "axes": OPS[name].axes,
                                "meaning": (NAMES | LATER)[name]})  # fmt: skip
    manifest = {
        "format": FORMAT,
        "engine": f"ds4ref {__version__}",
        "model": {"file": engine.path, "digest": file_digest(engine.path), "name": shape.name},
        "numerics": engine.model.numerics.name,
        "backend": engine.backend,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ids": list(map(int, ids)),
        "tensors": entries,
    }
    return tensors, manifest


def write(path: str, tensors: dict[str, np.ndarray], manifest: dict[str, Any]) -> None:
    """Write tensors and manifest as safetensors, atomically."""
    from safetensors.numpy import save

    data = save(tensors, {"format": FORMAT, "manifest": json.dumps(manifest)})
    with atomic_output(path) as out:
        out.write(data)
