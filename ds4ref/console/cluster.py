"""Options of a model whose layers lie on several machines, the same in every command that opens one."""

from __future__ import annotations

import logging
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import UsageError
from .common import say
from .flags import Group, add

if TYPE_CHECKING:
    from ..cluster.open import ClusterSettings


def add_cluster(group: Group) -> None:
    """Add the options that choose a cluster."""
    add(group, "--cluster")
    add(group, "--layers", help="with --cluster: layers per worker, 0-20@a,21-42@b (by bytes and measured speed)")
    add(group, "--stream-format")


def clustering(args: Namespace) -> ClusterSettings | None:
    """Return the cluster that the options of ``add_cluster`` name, None without.

    Raise UsageError for options of a cluster without one.
    """
    if args.cluster is None:
        for name in ("layers", "stream_format"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} needs --cluster")
        return None
    from ..cluster.open import ClusterSettings

    _quiet()
    return ClusterSettings(
        args.cluster, args.layers, args.stream_format or "f32", tell=lambda line: say("cluster", line)
    )


def _quiet() -> None:
    """Silence Dask in this process: a lost worker is our one line, not its many."""
    with suppress(ImportError):  # which ``connect`` tells
        import distributed  # noqa: F401 - it sets its level when it is imported

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
