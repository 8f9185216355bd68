"""Report on a model file and the cost of running it, from the file's header alone.

No tensor data is read, so a report on an 81 GiB file takes no longer than on a small one. It lists, as in model.md 13,
the bytes of weights that decoding one token reads, by component, and the bytes of cache. What differs between families
is in each one's module ``report``: ``accounts``, ``PARTS``, ``facts``, ``about`` and ``shape_rows``.

    print(inspect_text("model.gguf"))
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import one_line
from ..files import size_text
from ..weights import open_source
from ..weights.accounting import Account, shown
from ..weights.published import PublishedSource
from ..weights.source import files_of
from . import arch_of

if TYPE_CHECKING:
    from ..weights.source import TensorInfo, TensorSource

MOST_NAMES = 8
"""Number of names that are printed for each reason; of the others only the count is given."""
CONTEXTS = (4096, 32768, 131072, 1048576)
TOKENS_KEY, MERGES_KEY = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"

Accounts = Mapping[str, Account]
"""For each part of a model ("config.json", "metadata", "tensors"): which of its keys or tensors are used, have no
effect or are refused."""


def accounts_of(source: TensorSource, metadata: Account, tensors: Account) -> Accounts:
    """Return the ``Accounts`` of a GGUF file from those of its metadata and tensors; for a published folder, return
    those of its config.json and its own tensors instead."""
    if isinstance(source, PublishedSource):
        return {"config.json": source.config_account(), "tensors": source.tensor_account()}
    return {"metadata": metadata, "tensors": tensors}


def accounts(source: TensorSource) -> Accounts:
    """Return which keys and tensors of a model are used, have no effect or are refused; raise ModelFileError if one
    that is used has a wrong type, value or size."""
    parts: Accounts = _family(source).accounts(source)
    return parts


def _family(source: TensorSource) -> Any:
    """Return the module ``report`` of a file's family."""
    return arch_of(source).part("report")


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the report on a model file as a JSON-ready dict; raise ModelFileError or ShapeError if this engine cannot
    run the file."""
    with open_source(path) as source:
        return _described(source)[0]


def _described(source: TensorSource) -> tuple[dict[str, Any], Any]:
    """Return the report as a dict, and the model's shape."""
    shape, family = arch_of(source).read_shape(source), _family(source)
    used = family.check_tensors(source, shape)
    per_token = shape.kv_values_per_token()
    return {
        "path": os.fspath(source.path),
        "file_bytes": source.size,
        "alignment": getattr(source, "alignment", None),
        "metadata_keys": len(source.metadata),
        "tokens": _count(source, TOKENS_KEY),
        "merges": _count(source, MERGES_KEY),
        "name": shape.name,
        "shape": {field: _plain(value) for field, value in vars(shape).items() if field not in ("name", "family")},
        "tensors": by_type([info for _, info in used]),
        "computed_with": used_line(source, (info.nbytes for _, info in used)),
        "accounts": {part: vars(account) for part, account in accounts(source).items()},
        "kv_bytes_per_token": {"f32": per_token * 4, "f16": per_token * 2},
        "kv": [
            {
                "context": n,
                "f32": shape.kv_bytes(n),
                "f16": shape.kv_bytes(n, 2),
                "read_f32": shape.kv_read_bytes(n),
                "read_f16": shape.kv_read_bytes(n, 2),
            }
            for n in CONTEXTS
        ],
        **family.facts(source, shape, used),
    }, shape


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else list(value) if isinstance(value, tuple) else value


def inspect_text(path: str | os.PathLike[str]) -> str:
    """Return the report of ``describe`` as text for a terminal."""
    with open_source(path) as source:
        (facts, shape), family, parts = _described(source), _family(source), len(files_of(source))
    vocabulary = "none" if facts["tokens"] is None else f"{facts['tokens']:,} tokens, {facts['merges'] or 0:,} merges"
    container = f"GGUF v3, alignment {facts['alignment']}" if facts["alignment"] else ""
    container += f", in {parts} files" if parts > 1 else ""
    return "\n".join(
        [
            f"file        {facts['path']}",
            f"            {facts['file_bytes']:,} bytes ({size_text(facts['file_bytes'])}), {container}".rstrip(", "),
            f"model       {one_line(facts['name']) or '(unnamed)'}",
            *(f"{label:<12}{text}" for label, text in family.about(facts)),
            f"vocabulary  {vocabulary}",
            "\nshape",
            *(f"  {label:<12}{text}" for label, text in family.shape_rows(shape)),
            f"\n{'tensors':<16}{'count':>6}{'parameters':>18}{'bytes':>18}{'size':>12}",
            *_tensor_lines(facts["tensors"]),
            facts["computed_with"] + "\n",
            *account_lines({part: Account(**values) for part, values in facts["accounts"].items()}),
            *_decode_lines(facts, family.PARTS),
            *_cache_lines(facts),
        ]
    )


def _tensor_lines(groups: list[dict[str, Any]]) -> list[str]:
    total = {"type": "total"} | {
        part: sum(group[part] for group in groups) for part in ("count", "parameters", "bytes")
    }
    return [
        f"  {row['type']:<14}{row['count']:>6}{row['parameters']:>18,}{row['bytes']:>18,}{size_text(row['bytes']):>12}"
        for row in (*groups, total)
    ]


def _decode_lines(facts: dict[str, Any], names: Mapping[str, str]) -> list[str]:
    read = facts["decode_read"]
    total = sum(read.values())
    lines = [f"\n{'weights read per decoded token':<40}{'bytes':>18}{'share':>9}"]
    for part, nbytes in sorted(read.items(), key=lambda item: -item[1]):
        lines.append(f"  {names[part]:<38}{nbytes:>18,}{nbytes / total:>9.1%}")
    lines.append(f"  {'total':<38}{total:>18,}{size_text(total):>12}")
    if read.get("indexer"):
        start = facts["indexer_from_tokens"]
        lines.append(f"  {f'total below {start} tokens (no indexer)':<38}{total - read['indexer']:>18,}")
    return lines


def _cache_lines(facts: dict[str, Any]) -> list[str]:
    per_token = facts["kv_bytes_per_token"]
    lines = [
        f"\nKV cache per token: {per_token['f32']:,.10g} bytes in f32, {per_token['f16']:,.10g} in f16",
        f"  {'context':>9}{'f32 bytes':>18}{'f16 bytes':>18}{'read/token, f32':>20}{'f16':>16}",
    ]
    for row in facts["kv"]:
        sizes = f"{row['f32']:>18,}{row['f16']:>18,}{row['read_f32']:>20,}{row['read_f16']:>16,}"
        lines.append(f"  {row['context']:>9}{sizes}")
    return lines


def _count(source: TensorSource, key: str) -> int | None:
    return source.metadata.count(key) if source.metadata.type_of(key) == "string[]" else None


def refused(accounts: Accounts) -> list[str]:
    """Return one sentence for each key or tensor that is refused."""
    return [f"{part}: {problem}" for part, account in accounts.items() for problem in account.problems()]


def account_lines(accounts: Accounts) -> list[str]:
    """Return lines of text: how many keys and tensors of each part are used, have no effect or are refused, and the
    names of the latter two."""
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
    """Return a line about how many bytes of the file the model uses.

    used: bytes of each tensor that is used. A source that converts tensors counts the original bytes itself.
    """
    nbytes = getattr(source, "used_bytes", None)
    total = sum(used) if nbytes is None else nbytes
    return f"computed with: {total:,} of {source.size:,} bytes ({total / source.size:.1%})"


def by_type(infos: Iterable[TensorInfo]) -> list[dict[str, Any]]:
    """Return number of tensors, parameters and bytes for each storage format, most bytes first."""
    groups: dict[str, dict[str, Any]] = {}
    for info in infos:
        group = groups.setdefault(info.fmt.name, {"type": info.fmt.name, "count": 0, "parameters": 0, "bytes": 0})
        group["count"] += 1
        group["parameters"] += info.nbytes // info.fmt.block_bytes * info.fmt.block_elems
        group["bytes"] += info.nbytes
    return sorted(groups.values(), key=lambda group: -group["bytes"])


def _several(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
