"""Record every named intermediate of our own pass in a safetensors file with a manifest.

Tensors are named POINT.LAYER (those of the head: POINT); points of two arrays end in .0 and .1. The manifest is the
entry "manifest" of the file's metadata, as JSON: model, digest, token ids, numerics, version, and for each tensor its
point, layer, shape, type, meaning and the positions of its rows.
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
from ds4ref.variants import Fault
from ds4ref.variants.forced import HEAD, NAMES, model_of, run_layers
from ds4ref.version import __version__

from .dumps import FORMAT
from .ops import OPS

TOKENS = "T"


class Recorder:
    """Hooks that copy the requested points, at the requested positions."""

    def __init__(
        self,
        names: Collection[str],
        layers: Collection[int],
        positions: Sequence[int] | None = None,
        faults: Sequence[Fault] = (),
    ):
        self.names, self.layers, self.positions = set(names), set(layers), positions
        self.parts = [fault.hooks() for fault in faults]
        self.tensors: dict[str, np.ndarray] = {}
        self.entries: list[dict[str, Any]] = []

    def begin(self, chunk: Any) -> None:
        """Apply the faults' changes to a new chunk."""
        for part in self.parts:
            part.begin(chunk)

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Copy an intermediate if it was requested; return it with the faults' edits."""
        for part in self.parts:
            value = part.tap(name, layer, value, chunk)
        if name in self.names and layer in self.layers and value is not None:
            arrays = value if isinstance(value, tuple) else (value,)
            for i, array in enumerate(arrays):
                key = (name if layer < 0 else f"{name}.{layer}") + (f".{i}" if isinstance(value, tuple) else "")
                self._keep(key, name, layer, np.asarray(array))
        return value

    def _keep(self, key: str, name: str, layer: int, values: np.ndarray) -> None:
        positions = None
        if OPS[name].axes[0] == TOKENS and self.positions is not None:
            values, positions = values[list(self.positions)], list(self.positions)
        self.tensors[key] = np.array(values, order="C")  # a copy
        self.entries.append(
            {
                "key": key, "name": name, "layer": layer, "shape": list(values.shape), "dtype": values.dtype.name,
                "axes": OPS[name].axes, "meaning": NAMES[name], "positions": positions,
            }
        )  # fmt: skip


def record(
    engine: Engine,
    ids: Sequence[int],
    names: Collection[str] = (),
    layers: Collection[int] | None = None,
    positions: Sequence[int] | None = None,
    faults: Sequence[Fault] = (),
    cancel: Callable[[int], None] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Run the pass up to the last requested layer; return (tensors by name, manifest).

    Empty ``names``, and None for ``layers`` or ``positions``, mean all. UsageError for a name, layer or position that
    does not exist, DataError for token ids outside the vocabulary.
    """
    shape = engine.shape
    unknown = [name for name in names if name not in OPS]
    if unknown:
        raise UsageError(f"no point of the pass is called {', '.join(unknown)} (docs/reference/trace.md lists them)")
    wanted = {*range(shape.n_layers), HEAD} if layers is None else set(layers)
    outside = [n for n in wanted if not HEAD <= n < shape.n_layers]
    if outside:
        raise UsageError(f"there is no layer {outside[0]}: the model has 0 to {shape.n_layers - 1}, and head")
    if positions is not None and not all(0 <= p < len(ids) for p in positions):
        raise UsageError(f"positions must lie inside the {len(ids)} tokens")
    if not ids or max(ids) >= shape.vocab:
        raise DataError(f"token ids must be 0 to {shape.vocab - 1}, and at least one")
    recorder = Recorder(names or OPS, wanted, positions, faults)
    last = shape.n_layers if HEAD in wanted else max(wanted) + 1
    with np.errstate(all="ignore"):
        run_layers(model_of(engine), ids, recorder, [*range(last), *([HEAD] if HEAD in wanted else [])], cancel=cancel)
    if not recorder.tensors:
        raise UsageError("nothing to record: these layers have none of these points")
    manifest = {
        "format": FORMAT,
        "engine": f"ds4ref {__version__}",
        "model": {"file": engine.path, "digest": file_digest(engine.path), "name": shape.name},
        "numerics": engine.model.numerics.name,
        "backend": engine.backend,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ids": list(map(int, ids)),
        "tensors": recorder.entries,
    }
    return recorder.tensors, manifest


def write(path: str, tensors: dict[str, np.ndarray], manifest: dict[str, Any]) -> None:
    """Write tensors and manifest as safetensors, atomically."""
    from safetensors.numpy import save

    data = save(tensors, {"format": FORMAT, "manifest": json.dumps(manifest)})
    with atomic_output(path) as out:
        out.write(data)
