"""The plan of a quantizer run: every tensor with its format, the reason for that format, and its source.

The format of a tensor is decided by the first of these that applies: ``--tensor-type``, the option of its family, the
recipe, the template, the source. A format requested for a tensor or its family is binding: it is an error if the tensor
cannot have it. A recipe is a preference: if the rows of a tensor are not a whole number of the format's blocks, Q8_0 is
used, or F16, with a note. An embedding that also serves as the output matrix, because there is none, is treated as the
output matrix unless an option names its own family. Planning reads no tensor data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ds4ref.kernels.cpu.quantize import BLOCKED, QUANTIZERS
from ds4ref.kernels.formats import FORMATS

from ...errors import DataError, UsageError
from ...files import size_text
from ..container import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, TensorSpec
from ..gguf import Metadata as GGUFMetadata
from ..source import Metadata, TensorInfo, TensorSource
from .families import FAMILIES, RECIPES, family_of, layer_of
from .imatrix import Imatrix

INTEGERS = ("I8", "I16", "I32", "I64")
_DROPPED = "quantize.imatrix."
_SPLIT = "split."


@dataclass(frozen=True)
class Choices:
    """The formats that the user requests; "copy" instead of a format means that of the template or source.

    recipe    key of ``RECIPES``, or None
    families  family of tensors -> format
    tensors   (tensor name, or prefix of the names of matrices; format); the first match counts
    """

    recipe: str | None = None
    families: dict[str, str] = field(default_factory=dict)
    tensors: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Item:
    """One tensor to be written.

    spec    name, format and dimensions in the new file
    source  the tensor in the source file
    family  key of ``FAMILIES``
    why     what decided the format: "order" (``Choices.tensors``), "family", "recipe", "template" or "source"; in a
            splice, "base" or "donor"
    note    message for the user, such as that the recipe's format was not possible
    """

    spec: TensorSpec
    source: TensorInfo
    family: str
    why: str
    note: str = ""

    @property
    def copied(self) -> bool:
        """Return whether the stored bytes are copied from the source unchanged."""
        return self.spec.fmt == self.source.fmt.name

    @property
    def experts(self) -> int:
        """Return the number of matrices in a stack of experts, 0 for a plain tensor."""
        return self.spec.dims[2] if len(self.spec.dims) == 3 else 0

    @property
    def weighed(self) -> bool:
        """Return whether an importance matrix affects the quantized bytes."""
        return not self.copied and FORMATS[self.spec.fmt].weighed


@dataclass
class Plan:
    """All tensors and metadata of a file to be written; ``notes`` are lines for the user."""

    items: list[Item]
    metadata: list[tuple[str, str, Any]]
    alignment: int
    notes: list[str]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors, without padding."""
        return sum(item.spec.nbytes for item in self.items)

    @property
    def source_nbytes(self) -> int:
        """Return the bytes that the same tensors have in the source."""
        return sum(item.source.nbytes for item in self.items)

    def parts(self, most: int) -> list[Plan]:
        """Split the plan into one for each file of a split model.

        Each file has at most ``most`` bytes of tensors; a larger tensor has a file of its own. As in llama.cpp's split
        models, the first file has all metadata.
        """
        items: list[list[Item]] = [[]]
        room = most
        for item in self.items:
            if item.spec.nbytes > room and items[-1]:
                items.append([])
                room = most
            items[-1].append(item)
            room -= item.spec.nbytes
        if len(items) == 1:
            return [self]
        whole = [("split.count", "u16", len(items)), ("split.tensors.count", "i32", len(self.items))]
        return [
            Plan(
                own, [*(self.metadata if number == 0 else []), ("split.no", "u16", number), *whole], self.alignment, []
            )
            for number, own in enumerate(items)
        ]

    def groups(self) -> list[tuple[str, str, int, int, int]]:
        """Return a summary: one tuple for each group of tensors with the same family and formats, largest first.

        It is (family, "FROM -> TO" or the format that stays, number of tensors, bytes in the source, bytes in the new
        file).
        """
        rows: dict[tuple[str, str], list[int]] = {}
        for item in self.items:
            formats = item.spec.fmt if item.copied else f"{item.source.fmt.name} -> {item.spec.fmt}"
            sums = rows.setdefault((item.family, formats), [0, 0, 0])
            for at, value in enumerate((1, item.source.nbytes, item.spec.nbytes)):
                sums[at] += value
        return sorted(((*key, *sums) for key, sums in rows.items()), key=lambda row: -row[4])  # type: ignore[misc]

    def outcome(self, path: str) -> Any:
        """Return what the header of the new file will contain, as an object with the attributes of a ``TensorSource``
        that are needed to read a model's shape. ``path`` is its name in error messages."""
        specs = [item.spec for item in self.items]
        tensors = {s.name: TensorInfo(s.name, FORMATS[s.fmt], s.dims, 0, s.nbytes) for s in specs}
        return SimpleNamespace(path=path, size=self.nbytes, metadata=Metadata(self.metadata), tensors=tensors)

    def digest(self, paths: Sequence[str | os.PathLike[str]]) -> str:
        """Return a hash of everything that the bytes of the new file depend on, to decide whether a partial file can be
        continued.

        paths: input files and folders (models, importance), identified by name, size and modification time.
        """
        parts = [repr(self.metadata), repr(self.alignment), *(line for path in paths for line in identity(path))]
        parts += [f"{item.spec} {item.source.fmt.name}" for item in self.items]
        if any(not item.copied and item.spec.fmt in BLOCKED for item in self.items):
            from ds4ref.kernels.cpu.library import cache_key

            parts.append(cache_key("quantize"))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def identity(path: str | os.PathLike[str]) -> list[str]:
    """Return one line with name, size and modification time for the file ``path``, or for each file in that folder."""
    path = os.fspath(path)
    files = [path]
    if os.path.isdir(path):
        files = sorted(entry.path for entry in os.scandir(path) if entry.is_file())
    statuses = [(os.path.basename(file), os.stat(file)) for file in files]
    return [f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in statuses]


def make_plan(source: TensorSource, choices: Choices, template: TensorSource | None = None) -> Plan:
    """Plan a new file with all tensors of ``source``, or, if given, with the tensors, order and metadata of a template.

    Raise UsageError for a requested format that a tensor cannot have, DataError for a source that lacks a tensor of the
    template or has it with other dimensions.
    """
    _check_choices(choices)
    listed = source if template is None else template
    layers = 1 + max((layer_of(name) or 0 for name in listed.tensors), default=0)
    tied = "output.weight" not in listed.tensors
    items = []
    for name, info in listed.tensors.items():
        stored = source.tensors.get(name)
        if stored is None:
            raise DataError(f"{source.path}: has no {name}, which the template lists")
        if _plain(stored.dims) != _plain(info.dims):
            raise DataError(f"{source.path}: {name} has dims {list(stored.dims)}, the template's has {list(info.dims)}")
        items.append(_item(info, stored, choices, layers, template is not None, tied))
    unused = [prefix for prefix, _ in choices.tensors if not any(item.spec.name.startswith(prefix) for item in items)]
    if unused:
        raise UsageError(f"--tensor-type {unused[0]}: no tensor name starts with this")
    notes = [*_notes(items, choices)]
    return Plan(items, list(entries(listed.metadata)), alignment(listed.metadata), notes)


def _check_choices(choices: Choices) -> None:
    if choices.recipe is not None and choices.recipe not in RECIPES:
        raise UsageError(f"unknown recipe {choices.recipe!r}: choose from {', '.join(RECIPES)}")
    for family in choices.families:
        if family not in FAMILIES:
            raise UsageError(f"unknown family {family!r}: choose from {', '.join(FAMILIES)}")


def _plain(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``dims`` without trailing dimensions of 1."""
    while len(dims) > 1 and dims[-1] == 1:
        dims = dims[:-1]
    return dims


def _item(info: TensorInfo, stored: TensorInfo, choices: Choices, layers: int, templated: bool, tied: bool) -> Item:
    name, integers = info.name, stored.fmt.name in INTEGERS
    family = family_of(name, len(_plain(info.dims)), integers)
    counted = "output" if tied and family == "embedding" and family not in choices.families else family
    default = info.fmt.name
    wanted, why = default, "template" if templated else "source"
    recipe = RECIPES[choices.recipe].wanted(counted, layer_of(name), layers) if choices.recipe else None
    # a prefix selects matrices only: vectors such as norms, and integers, must be named in full
    whole = family not in ("vector", "table")
    ordered = next((fmt for begin, fmt in choices.tensors if name == begin or (whole and name.startswith(begin))), None)
    if ordered is not None:
        wanted, why = (default if ordered == "copy" else ordered), "order"
    elif counted in choices.families:
        fmt = choices.families[counted]
        wanted, why = (default if fmt == "copy" else fmt), "family"
    elif recipe is not None:
        wanted, why = recipe, "recipe"
    note = ""
    if integers and wanted != stored.fmt.name:
        if why in ("order", "family") and wanted != "I32":
            raise UsageError(f"{name} holds integers and cannot be stored as {wanted}")
        wanted = "I32"
    if wanted != stored.fmt.name or FORMATS.get(wanted) is None or FORMATS[wanted].ggml_id < 0:
        wanted, note = _possible(name, info, stored, wanted, why)
    return Item(TensorSpec(name, wanted, info.dims), stored, family, why, note)


def _possible(name: str, info: TensorInfo, stored: TensorInfo, wanted: str, why: str) -> tuple[str, str]:
    """Return a format that this tensor can be written in, and a note if that is not ``wanted``.

    Raise UsageError or DataError if there is none; ``why`` is that of ``Item``.
    """
    if wanted == "I32":
        return wanted, ""
    if wanted not in QUANTIZERS:
        if why in ("order", "family", "recipe"):
            raise UsageError(f"{name}: {wanted} cannot be written: choose from {', '.join(QUANTIZERS)}")
        raise UsageError(f"{name} is {wanted}, which GGUF files cannot store: choose a --recipe or a format for it")
    if not stored.fmt.decodes:
        raise DataError(f"{name} is {stored.fmt.name}, which can only be copied, not converted")
    first = wanted
    while info.dims[0] % FORMATS[wanted].block_elems:
        if why in ("order", "family"):
            block = FORMATS[wanted].block_elems
            raise UsageError(f"{name} has rows of {info.dims[0]} weights, {wanted} needs a multiple of {block}")
        wanted = "F16" if wanted == "Q8_0" else "Q8_0"
    return wanted, "" if wanted == first else f"{wanted} instead of {first}: rows of {info.dims[0]} weights"


def entries(metadata: Metadata, without: str = _DROPPED) -> Iterator[tuple[str, str, Any]]:
    """Yield (key, type, value) of a file's metadata, to be copied to a new file.

    Keys about the file's layout (alignment, split) are left out, and keys that start with ``without``, which were added
    by an earlier run.
    """
    for key in metadata:
        kind = metadata.type_of(key)
        if kind is not None and not key.startswith((without, _SPLIT)) and key != ALIGNMENT_KEY:
            # numbers of a config.json are f64; GGUF readers expect f32
            yield key, kind if isinstance(metadata, GGUFMetadata) else kind.replace("f64", "f32"), metadata[key]


def alignment(metadata: Metadata) -> int:
    """Return the alignment of tensor data in bytes: that of a file's metadata, or GGUF's default."""
    return int(metadata[ALIGNMENT_KEY]) if metadata.type_of(ALIGNMENT_KEY) == "u32" else DEFAULT_ALIGNMENT


def about_imatrix(table: Imatrix) -> list[tuple[str, str, Any]]:
    """Return metadata entries that record which importance file was used to make the new file."""
    metadata: list[tuple[str, str, Any]] = [
        (_DROPPED + "file", "string", os.path.basename(table.path)),
        (_DROPPED + "entries_count", "u64", len(table.entries)),
    ]
    if table.datasets:
        metadata.append((_DROPPED + "dataset", "string", ", ".join(table.datasets)))
    if table.chunks > 0:
        metadata.append((_DROPPED + "chunks_count", "u64", table.chunks))
    return metadata


def _notes(items: list[Item], choices: Choices) -> Iterator[str]:
    noted: dict[str, list[str]] = {}
    for item in items:
        if item.note:
            noted.setdefault(item.note, []).append(item.spec.name)
    for note, names in noted.items():
        yield f"{names[0]}{_more(len(names) - 1)}: {note}"
    before, after = (sum(nbytes) for nbytes in zip(*((i.source.nbytes, i.spec.nbytes) for i in items), strict=True))
    if after >= before and not all(item.copied for item in items):
        yield f"warning: nothing is gained: {size_text(after)} of tensors, {size_text(before)} in the source"
    lossy = [item for item in items if not item.copied and item.source.fmt.block_elems > 1]
    if lossy:
        formats = ", ".join(sorted({item.source.fmt.name for item in lossy}))
        yield f"{len(lossy)} tensors are requantized from {formats}: better from the unquantized model"


def check_imatrix(plan: Plan, table: Imatrix, strict: bool) -> list[str]:
    """Return warnings about tensors whose quantization could use importance, but for which ``table`` has none.

    Raise DataError for entries of wrong lengths and, if ``strict``, for missing ones.
    """
    affected = [item for item in plan.items if item.weighed]
    empty = {name for name, entry in table.entries.items() if entry.unmet == len(entry.means)}
    missing = [item.spec.name for item in affected if item.spec.name in empty or not covered(item, table)]
    if missing and strict:
        raise DataError(f"{table.path}: has no importance for {missing[0]}" + _more(len(missing) - 1))
    lines = []
    if missing:
        lines.append(
            f"no importance for {len(missing)} of {len(affected)} tensors: {missing[0]}" + _more(len(missing) - 1)
        )
    unmet = {name: entry.unmet for name, entry in table.entries.items() if entry.unmet}
    if unmet:
        worst = max(unmet, key=lambda name: unmet[name])
        lines.append(
            f"{sum(unmet.values())} experts were never met in {len(unmet)} tensors (most, {unmet[worst]}, in {worst}): "
            "they get the mean of the others"
        )
    return lines


def covered(item: Item, table: Imatrix) -> bool:
    """Return whether ``table`` has importance for a tensor, or for each matrix of a stack of experts."""
    cols, count = item.spec.dims[0], max(1, item.experts)
    return all(
        table.importance(item.spec.name, cols, count, expert if item.experts else None) is not None
        for expert in range(count)
    )


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def to_json(plan: Plan) -> str:
    """Return the plan as one line of JSON."""
    rows = [
        {"name": i.spec.name, "from": i.source.fmt.name, "to": i.spec.fmt, "family": i.family, "why": i.why,
         "dims": list(i.spec.dims), "bytes": i.spec.nbytes} for i in plan.items
    ]  # fmt: skip
    return json.dumps(
        {"tensors": rows, "bytes": plan.nbytes, "source_bytes": plan.source_nbytes, "notes": plan.notes},
        ensure_ascii=False,
    )
