"""What reports on model files of every family share: what becomes of keys and tensors, and text fit for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..weights.accounting import Account, shown
from ..weights.published import PublishedSource

if TYPE_CHECKING:
    from ..weights.source import TensorInfo, TensorSource

MOST_NAMES = 8
"""Names printed of each reason; the others are counted."""

Accounts = Mapping[str, Account]
"""Part of a model ("config.json", "metadata", "tensors") -> what becomes of its names."""


def accounts_of(source: TensorSource, metadata: Account, tensors: Account) -> Accounts:
    """Return the accounts of a file, given those of its metadata and tensors; a folder has its own of both."""
    if isinstance(source, PublishedSource):
        return {"config.json": source.config_account(), "tensors": source.tensor_account()}
    return {"metadata": metadata, "tensors": tensors}


def refused(accounts: Accounts) -> list[str]:
    """Return one sentence for each name that is refused."""
    return [f"{part}: {problem}" for part, account in accounts.items() for problem in account.problems()]


def account_lines(accounts: Accounts) -> list[str]:
    """Return how many names of each part are computed, without effect and refused, and the latter two by name."""
    lines = [f"{'keys and tensors':<18}{'computed':>10}{'no effect':>11}{'refused':>9}"]
    for part, account in accounts.items():
        counts = len(account.computed), len(account.inert), len(account.refused)
        lines.append(f"  {part:<16}{counts[0]:>10}{counts[1]:>11}{counts[2]:>9}")
    for part, account in accounts.items():
        reasons: dict[str, list[str]] = {}
        for name, reason in account.inert.items():
            reasons.setdefault(reason, []).append(shown(name))
        lines += [f"  no effect, {part}: {_several(names)} ({reason})" for reason, names in reasons.items()]
    return lines + [f"  refused, {problem}" for problem in refused(accounts)]


def used_line(source: TensorSource, used: Iterable[int]) -> str:
    """Return how much of the file is computed with; ``used`` are the bytes of the tensors that are, unless the source
    knows what it converts them from."""
    nbytes = getattr(source, "used_bytes", None)
    total = sum(used) if nbytes is None else nbytes
    return f"computed with: {total:,} of {source.size:,} bytes ({total / source.size:.1%})"


def by_type(infos: Iterable[TensorInfo]) -> list[dict[str, Any]]:
    """Return count, parameters and bytes by storage format, largest first."""
    groups: dict[str, dict[str, Any]] = {}
    for info in infos:
        group = groups.setdefault(info.fmt.name, {"type": info.fmt.name, "count": 0, "parameters": 0, "bytes": 0})
        group["count"] += 1
        group["parameters"] += info.nbytes // info.fmt.block_bytes * info.fmt.block_elems
        group["bytes"] += info.nbytes
    return sorted(groups.values(), key=lambda group: -group["bytes"])


def line(text: str) -> str:
    """Return text from a file fit for a terminal: control characters made visible."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _several(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
