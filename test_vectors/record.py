"""Record runs of ``ds4-vectors`` in the run store.

Each case of a run is a row of the store: verdict, tokens and, if the engine gave every log probability, the summed
negative log likelihood by which ``ds4-report compare`` compares two runs.
"""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import Progress, say
from ds4ref.console.flags import add
from ds4ref.console.options import Parser
from ds4ref.errors import UsageError
from ds4ref.runs.provenance import engine_facts, stamp
from ds4ref.targets import Target

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

PROG = "ds4-vectors"


def add_store(flags: Parser) -> None:
    """Add the options --store, --no-store and --label to a command whose runs are stored."""
    add(flags, "--store")
    add(flags, "--no-store")
    add(flags, "--label", help="name of the run in the store (that of the vectors)")


@contextmanager
def opened(args: Namespace) -> Iterator[Store | None]:
    """Open the store that ``args`` name, before the work starts; None with --no-store."""
    if args.store is not None and args.no_store:
        raise UsageError("choose one of --store and --no-store")
    if args.no_store:
        yield None
        return
    from ds4ref.runs.store import Store

    with Store.open(args.store) as store:
        yield store


def describe(target: Target, store: Store | None) -> dict[str, Any]:
    """Return model, engine and numerics of a target, to be stored with a run.

    A local model's file is hashed; ``store`` caches the hash.
    """
    from ds4ref.targets.local import LocalTarget

    about = target.identity()
    if not isinstance(target, LocalTarget):
        model = {"name": about.get("model") or about.get("name"), "file": target.name}
        return {"target": about, "engine": target.name, "backend": target.kind, "numerics": None, "model": model}
    with Progress("hashing the model, once") as progress:
        return {"target": about, **engine_facts(target.engine, store, progress)}


def text_digest(texts: Iterable[str]) -> str:
    """Return the SHA-256 of all scored texts, in order."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def keep(
    store: Store | None,
    argv: Sequence[str],
    facts: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    prompt_sha256: str,
    label: str,
    status: str = "complete",
) -> None:
    """Add a run to the store with its environment, and print its number on stderr; do nothing without a store.

    argv           arguments of the command
    facts          what describes the run: target, model, settings
    rows           one row per case
    prompt_sha256  digest of the prompts, so that only runs on equal prompts are compared
    label          name of the run
    status         "complete", "stopped" or "failed"
    """
    if store is None:
        return
    everything = {**stamp([PROG, *argv]), **facts, "prompt_sha256": prompt_sha256}
    number = store.add("vectors", everything, rows, label=label, status=status)
    say(PROG, f"saved as run {number}; {store.show(number)}")
