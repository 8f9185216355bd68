"""Runs of ``ds4-vectors`` in the run store: what was checked or scored, on what, by which command.

A row is a case: verdict and tokens and, where the engine told every log probability, the summed NLL, by which
``ds4-report compare`` judges two runs.
"""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ds4ref.cli.common import Progress, say
from ds4ref.cli.options import Parser
from ds4ref.errors import UsageError
from ds4ref.runs.provenance import engine_facts, stamp
from ds4ref.targets import Target

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

PROG = "ds4-vectors"


def add_store(made: Parser) -> None:
    """Options of commands whose runs are kept."""
    made.add_argument("--store", metavar="FILE", help="run store (the user's own)")
    made.add_argument("--no-store", action="store_true", help="keep no record of this run")
    made.add_argument("--label", metavar="TEXT", help="name of the run in the store (that of the vectors)")


@contextmanager
def opened(args: Namespace) -> Iterator[Store | None]:
    """The store that ``args`` name, opened before hours of work and not after."""
    if args.store is not None and args.no_store:
        raise UsageError("choose one of --store and --no-store")
    if args.no_store:
        yield None
        return
    from ds4ref.runs.store import Store

    with Store.open(args.store) as store:
        yield store


def describe(target: Target, store: Store | None) -> dict[str, Any]:
    """What is known about an engine; a local model's file is hashed, once, if there is a store to remember it."""
    from ds4ref.targets.local import LocalTarget

    about = target.identity()
    if not isinstance(target, LocalTarget):
        model = {"name": about.get("model") or about.get("name"), "file": target.name}
        return {"target": about, "engine": target.name, "backend": target.kind, "numerics": None, "model": model}
    with Progress("hashing the model, once") as progress:
        return {"target": about, **engine_facts(target.engine, store, progress)}


def text_digest(texts: Iterable[str]) -> str:
    """SHA-256 of all texts that were scored, in order."""
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
) -> None:
    """A finished run with its environment; says its number on stderr."""
    if store is None:
        return
    everything = {**stamp([PROG, *argv]), **facts, "prompt_sha256": prompt_sha256}
    number = store.add("vectors", everything, rows, label=label)
    say(PROG, f"kept as run {number}; {store.show(number)}")
