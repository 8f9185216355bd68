"""What a result says about where it came from: model, prompt, machine, software, command."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4ref.cli.model import identity
from ds4ref.environment import commit, machine, versions

if TYPE_CHECKING:
    from ds4ref.engine import Engine
    from reports.store import Store

HASH_LIMIT = 2 << 30  # without a store, larger model files are identified by size and header only


def collect(
    engine: Engine,
    command: Sequence[str],
    prompt_sha256: str,
    store: Store | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Everything but the rows, ready for JSON. A store remembers digests, so that with one any model is hashed once;
    ``progress`` gets bytes."""
    facts = identity(engine)
    path = Path(engine.path)
    if store is not None:
        facts["model"]["sha256"] = store.sha256(path, progress)
    elif path.stat().st_size <= HASH_LIMIT:
        with open(path, "rb") as file:
            facts["model"]["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        **facts,
        "prompt_sha256": prompt_sha256,
        "threads": engine.threads,
        "command": list(command),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
    }
