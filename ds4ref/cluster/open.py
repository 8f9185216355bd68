"""Opens a model on a cluster: chooses workers and their layers, and checks that all have the same model file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..archs import arch_of
from ..archs.deepseek4.dimensions import Dimensions
from ..engine_options import ClusterSettings, EngineOptions
from ..errors import ClusterError, UsageError
from ..numerics import numerics
from ..version import __version__
from ..weights.source import TensorSource
from .connect import connect
from .layout import balanced, parse
from .model import ClusterModel
from .stage import StageSpec, check_family, part_digest
from .workers import Place, Workers


def open_cluster(options: EngineOptions, source: TensorSource, shape: Dimensions) -> ClusterModel:
    """Open a model on the cluster that ``options.cluster`` names.

    ``source`` is the coordinator's model file and ``shape`` its dimensions. Raise UsageError or DataError if the
    cluster cannot be used or reached, ClusterError if a worker cannot load its layers, ModelFileError if models of this
    architecture cannot be distributed.
    """
    check_family(source)
    arch_of(source).check_numerics(numerics(options.numerics))
    if options.backend not in ("cpu", "reference"):
        raise UsageError(f"a cluster's workers compute with backend cpu or reference, not {options.backend}")
    where = options.cluster
    settings = where if isinstance(where, ClusterSettings) else ClusterSettings(where)
    spec = StageSpec(os.path.abspath(os.fspath(source.path)), range(0), replace(options, cluster=None))
    connection = _Connection(settings, source, shape, spec)
    return ClusterModel(shape, numerics(options.numerics), connection)


class _Connection:
    """Connects to the workers of a cluster and loads the stages; may be called again after a worker was lost.

    Which worker has which layers is decided at the first call and then kept.
    """

    def __init__(self, settings: ClusterSettings, source: TensorSource, shape: Dimensions, spec: StageSpec):
        self.settings, self.source, self.shape, self.spec = settings, source, shape, spec
        self._layout = None if settings.layers is None else parse(settings.layers, shape.n_layers, shape.starts)
        self._told = False
        self._digests: dict[range, str] = {}
        self._client: Any = None

    def __call__(self) -> Workers:
        client = self._connected()
        workers = Workers(client, self._places(client), self.settings.patience)
        try:
            workers.load(self.spec)
            self._check(workers)
        except BaseException:
            workers.close()
            raise
        if self.settings.tell is not None and not self._told:
            self._tell(workers, self.settings.tell)
            self._told = True
        return workers

    def _connected(self) -> Any:
        if self._client is None or self._client.status != "running":
            self.close()
            where, options = self.settings.where, {}
            if hasattr(where, "scheduler"):  # a Dask client; we need our own, with direct connections to workers
                where, options = where.scheduler.address, {"security": where.security}
            self._client = connect(where, set_as_default=False, **options)
        return self._client

    def close(self) -> None:
        """Close the connection to the scheduler."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(OSError):  # the scheduler may have ended
                client.close(timeout=2)

    def _places(self, client: Any) -> list[Place]:
        """Return which available worker has which layers, waiting for workers that are missing.

        If the user did not choose the layout, another worker may take the place of a missing one. Raise ClusterError if
        a worker is still missing after ``patience`` seconds.
        """
        deadline = time.monotonic() + self.settings.patience
        while True:
            known = known_workers(client)
            if self._layout is None and known:
                costs = layer_bytes(self.source, self.shape)
                starts = self.shape.starts
                names = sorted(known)[: len(starts)]
                self._layout = list(zip(names, balanced(costs, len(names), starts), strict=True))
            places = _placed(self._layout or [], known, strict=self.settings.layers is not None)
            missing = [name for place, (name, _) in zip(places, self._layout or [], strict=True) if place is None]
            if places and not missing:
                return [place for place in places if place is not None]
            if time.monotonic() > deadline:
                there = ", ".join(sorted(known)) or "none"
                raise ClusterError(f"worker {missing[0] if missing else 0} is not there (there are: {there})")
            time.sleep(0.1)

    def _check(self, workers: Workers) -> None:
        """Raise ClusterError if a worker has another model file or another version of ds4ref."""
        for place, facts in zip(workers.places, workers.facts, strict=True):
            if facts.version != __version__:
                raise ClusterError(f"{place} has ds4ref {facts.version}, this is {__version__}")
            if place.layers not in self._digests:
                self._digests[place.layers] = part_digest(self.source, self.shape, place.layers)[0]
            if facts.digest != self._digests[place.layers]:
                raise ClusterError(
                    f"{place} has another file: {self.spec.path} differs in shape or these layers' tensors"
                )

    def _tell(self, workers: Workers, tell: Callable[[str], None]) -> None:
        parts = [
            f"{place.name} has layers {place.layers.start}-{place.layers.stop - 1} ({facts.nbytes / 2**30:.2f} GiB)"
            for place, facts in zip(workers.places, workers.facts, strict=True)
        ]
        tell(", ".join(parts))
        kernels = dict.fromkeys(facts.kernels for facts in workers.facts)
        if len(kernels) > 1:
            tell(f"workers compute differently ({', '.join(kernels)}): results are not one machine's to the bit")


def known_workers(client: Any) -> dict[str, str]:
    """Return the workers that the scheduler knows: name -> address."""
    try:
        info = client.scheduler_info(n_workers=-1)
    except TypeError:  # older versions of Dask, which always return all workers
        info = client.scheduler_info()
    except (OSError, TimeoutError):
        return {}
    return {str(worker["name"]): address for address, worker in info["workers"].items()}


def _placed(layout: Sequence[tuple[str, range]], known: dict[str, str], strict: bool) -> list[Place | None]:
    """Return the worker for each part of a layout, None if it is missing; ``known`` are those available.

    Unless ``strict``, an unused worker takes the place of a missing one.
    """
    addresses = {address: name for name, address in known.items()}
    names = [name if name in known else addresses.get(name) for name, _ in layout]
    spare = sorted(known.keys() - set(names)) if not strict else []
    places: list[Place | None] = []
    for name, (_, layers) in zip(names, layout, strict=True):
        chosen = name if name is not None else spare.pop(0) if spare else None
        places.append(None if chosen is None else Place(chosen, known[chosen], layers))
    return places


def layer_bytes(source: TensorSource, shape: Dimensions) -> list[int]:
    """Return, for each layer, the bytes of weights that are read to compute one token.

    The embedding is counted in the first layer, the output head in the last.
    """
    costs = [0] * shape.n_layers
    for slot in arch_of(source).part("weights").slots(shape):
        info = source.tensors.get(slot.name)
        if info is not None:
            layer = slot.layer if slot.layer is not None else 0 if slot.attr == "token_embd" else shape.n_layers - 1
            costs[layer] += slot.bytes_per_token(info.nbytes, shape)
    return costs
