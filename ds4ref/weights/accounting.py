"""Sorts every key and tensor of a model file into three groups: used, known to have no effect, or refused by name.

A name is "computed" if the code that builds the model used it: ``Config`` and ``Reads`` record every value that they
return, and binding tensors to a model records the tensors. Names without effect are listed in tables of ``Inert``
entries, each with its reason; an architecture may add some. Any other name is refused: ignoring it could mean computing
another model than the one in the file.

    account = settle(values, read, COMMON)
    account.check(path)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ..errors import ModelFileError
from .cursor import quote
from .source import Metadata

MOST_NAMED = 3
UNKNOWN = "unknown here, it may change the model"
LIST = ...
"""Stands for the value of an array in GGUF metadata, because decoding it is slow and not needed to judge its key."""


class Inert(NamedTuple):
    """Keys or tensors without effect on the logits.

    reason  why they have none, in a few words
    names   names of keys or tensors, or patterns with ``*``
    values  values for which a key has no effect; None: whatever its value
    """

    reason: str
    names: tuple[str, ...]
    values: tuple[Any, ...] | None = None


def inert(reason: str, names: str, *values: Any) -> Inert:
    """Return the ``Inert`` entry for ``names``, separated by spaces; without ``values`` it applies to any value."""
    return Inert(reason, tuple(names.split()), values or None)


@dataclass(frozen=True)
class Account:
    """All keys, or all tensors, of a model file in three groups.

    computed  names whose values are used
    inert     name -> reason why it has no effect
    refused   name -> what is wrong with it
    """

    computed: list[str]
    inert: dict[str, str]
    refused: dict[str, str]

    def problems(self) -> list[str]:
        """Return one sentence for each refused name."""
        return [f"{shown(name)} {wrong}" for name, wrong in self.refused.items()]

    def check(self, path: str | os.PathLike[str]) -> None:
        """Raise ModelFileError for the file ``path``, naming the first refused names, if there are any."""
        problems = self.problems()
        if problems:
            raise ModelFileError(path, named(problems))


def named(problems: Sequence[str], most: int = MOST_NAMED) -> str:
    """Return the first ``most`` problems on one line, and how many were left out."""
    more = f", and {len(problems) - most} more" if len(problems) > most else ""
    return "; ".join(problems[:most]) + more


def settle(values: Mapping[str, Any], computed: Collection[str], known: Sequence[Inert]) -> Account:
    """Sort the keys of a config into three groups.

    values    value of each key, nested keys by their dotted path
    computed  keys that the code building the model has read
    known     entries for keys without effect
    """
    return _settle(values, values.__getitem__, computed, known, lambda name: f"is {brief(values[name])}: {UNKNOWN}")


def settle_tensors(names: Collection[str], bound: Collection[str], known: Sequence[Inert], family: str) -> Account:
    """Sort the tensors of a file into three groups.

    names   names of all tensors
    bound   names of those that are weights of the model
    known   entries for tensors without effect
    family  name of the model family, for messages
    """
    return _settle(names, lambda _: None, bound, known, lambda _: f"has no place in a {family} model here")


def _settle(
    names: Iterable[str],
    value_of: Callable[[str], Any],
    computed: Collection[str],
    known: Sequence[Inert],
    unknown: Callable[[str], str],
) -> Account:
    """Sort names into groups; ``value_of`` is called only where the value matters, since some are costly to read."""
    account = Account([], {}, {})
    for name in names:
        if name in computed:
            account.computed.append(name)
            continue
        fitting = [entry for entry in known if any(fnmatchcase(name, pattern) for pattern in entry.names)]
        if not fitting:
            account.refused[name] = unknown(name)
            continue
        entry = fitting[0]  # the first match decides: it may be narrower than a later pattern
        if entry.values is None or any(same(value_of(name), value) for value in entry.values):
            account.inert[name] = entry.reason
        else:
            wanted = " or ".join(json.dumps(item) for item in entry.values)
            account.refused[name] = f"is {brief(value_of(name))}, only {wanted} is computed here"
    return account


def same(got: Any, wanted: Any) -> bool:
    """Return whether two JSON values are equal; True and 1, or False and 0, are not."""
    return got == wanted and isinstance(got, bool) is isinstance(wanted, bool)


def brief(value: Any) -> str:
    """Return a short text for a value from a file, fit for a one-line message."""
    if value is LIST:
        return "an array"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return quote(value, 40) if isinstance(value, str) else json.dumps(value, default=str)[:40]


def shown(name: str) -> str:
    """Return a name unchanged if it is short and of letters, digits, ``.``, ``_`` and ``-``, else quoted."""
    return name if len(name) <= 100 and all(c.isalnum() and c.isascii() or c in "._-" for c in name) else quote(name)


def leaves(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of all values of a JSON object, nested ones too; nulls are left out.

    where: prefix of all paths.
    """
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{where}{key}.")
        elif value is not None:
            yield where + key, value


class Reads(Metadata):
    """View of a file's metadata that records which keys are read (``read``), to report the keys that nobody used."""

    def __init__(self, metadata: Metadata):
        self._metadata, self._entries = metadata, metadata._entries
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self._metadata[key]

    def count(self, key: str) -> int:
        self.read.add(key)
        return self._metadata.count(key)

    def first(self, key: str, count: int | None) -> Any:
        self.read.add(key)
        return self._metadata.first(key, count)

    def account(self, known: Sequence[Inert]) -> Account:
        """Sort every key of the file into used, without effect (``known``) or refused."""

        def value_of(key: str) -> Any:
            return LIST if (self.type_of(key) or "").endswith("[]") else self._metadata[key]

        unknown = lambda key: f"is {brief(value_of(key))}: {UNKNOWN}"  # noqa: E731
        return _settle(self._metadata, value_of, self.read, known, unknown)
