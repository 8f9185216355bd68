"""Connects to a Dask scheduler. Dask is an optional dependency: pip install 'ds4ref[fanout]'."""

from __future__ import annotations

import json
import os
from typing import Any

from ..errors import DataError, UsageError


def connect(where: str, **options: Any) -> Any:
    """Return a Dask client of the scheduler at ``where``.

    ``where`` is an address (``tcp://HOST:PORT``, ``tls://...``, or any other that Dask supports) or the path of a
    scheduler file; ``options`` are further ones of ``distributed.Client``. Raise UsageError or DataError if there is no
    such scheduler.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("a cluster needs Dask: pip install 'ds4ref[fanout]'") from None
    address = _address(where)
    try:
        return Client(address, timeout="10s", **options)
    except (OSError, TimeoutError) as error:
        why = " ".join(str(error).split())[:300]
        raise DataError(f"no Dask scheduler answers at {where}: {type(error).__name__}: {why}".rstrip(": ")) from None


def _address(where: str) -> str:
    """Return the address of a scheduler, from an address or a scheduler file; raise UsageError if it is neither."""
    from distributed.comm import parse_address, parse_host_port
    from distributed.comm.registry import get_backend

    try:
        address = where
        if os.path.isfile(where):
            with open(where, encoding="utf-8") as file:
                address = json.load(file)["address"]
        scheme, location = parse_address(address)
        get_backend(scheme)
        if not all(parse_host_port(location)):
            raise ValueError("HOST:PORT is needed")
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UsageError(f"{where} is no address of a Dask scheduler and no scheduler file: {why}") from None
    return address
