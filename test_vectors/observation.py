"""Another engine's log probabilities in one form (an Observation), made from full logits or from top-k lists.

If the shape or the scale of a table shows that its numbers are not logits (``tables``), it is converted or rejected; a
conversion is recorded as a finding of the observation. ``reading`` reads files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ds4ref.errors import DataError

from .finding import Finding
from .storage import SILENT, decimals, variance, written
from .tables import BASES, BROKEN, REFUSE, TELLING, WARN, broken, examine, padding, repeated, scale, shape_problem

Ids = Sequence[int] | np.ndarray
MAX_ID = 2**31 - 1
DEGENERATE = SILENT
"""A log probability at or below this means "no value", as APIs that send -9999 do."""
TOP_SUM = 1e-3
"""The probabilities of a top-k list may sum to 1 plus this, and plus the rounding of their decimals."""


class OtherModel(DataError):
    """Raised for valid data of another model: it does not fit this model's vocabulary."""


@dataclass(frozen=True)
class Observation:
    """Log probabilities of next tokens after the positions ``rows`` of the token list ``ids``.

    ids       int32 (T,), the tokens the engine was given
    rows      int64 (R,), ascending positions in ids; row r is the distribution after token ids[rows[r]]
    support   None for the whole vocabulary, else int64 (R, K) token ids, -1 where there are fewer
    logprobs  float64 (R, V) or (R, K); NaN where support is -1
    raw       whether logits were given, which unlike log probabilities have an offset that can be compared
    table     the table (R, V) as read, in its own dtype, which shows its storage precision; None if there was none
    findings  what was repaired or dropped while reading
    stored    inferred storage precision of the numbers ("" for float32 and finer)
    storage   float64, the shape of logprobs: mean square of the storage rounding; None if there is none
    shared    (R,) the part of ``storage`` that all values of a row share through the softmax normaliser
    """

    ids: np.ndarray
    rows: np.ndarray
    support: np.ndarray | None
    logprobs: np.ndarray
    raw: bool = False
    table: np.ndarray | None = None
    findings: tuple[Finding, ...] = ()
    stored: str = ""
    storage: np.ndarray | None = None
    shared: np.ndarray | None = None

    @property
    def full(self) -> bool:
        """Return whether the log probabilities of the whole vocabulary are known."""
        return self.support is None

    def top(self, k: int) -> Observation:
        """Return the observation reduced to the ``k`` best tokens of each row, as an API would report it."""
        order = np.argsort(-self.logprobs, axis=1, kind="stable")[:, :k]
        support = order if self.support is None else np.take_along_axis(self.support, order, axis=1)
        values = np.take_along_axis(self.logprobs, order, axis=1)
        storage = None if self.storage is None else np.take_along_axis(self.storage, order, axis=1)
        return Observation(
            self.ids, self.rows, support, values, findings=self.findings, stored=self.stored, storage=storage,
            shared=self.shared,
        )  # fmt: skip

    def part(self, rows: slice | np.ndarray) -> Observation:
        """Return the observation reduced to some of its rows, without the table as read."""
        return replace(
            self, rows=self.rows[rows], logprobs=self.logprobs[rows], table=None,
            support=None if self.support is None else self.support[rows],
            storage=None if self.storage is None else self.storage[rows],
            shared=None if self.shared is None else self.shared[rows],
        )  # fmt: skip

    @property
    def quantum(self) -> float:
        """Return the rounding step of the values if they were rounded to a few decimals, else 0."""
        places = decimals(self.logprobs if self.table is None else self.table)
        return 0.0 if places is None else 10.0**-places


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log probabilities (T, V) float64 of logits; a row with a NaN becomes all NaN."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def from_logits(ids: Ids, logits: np.ndarray, rows: Ids | None = None, vocab: int | None = None) -> Observation:
    """Make an observation from logits (T, V) after each of ``ids``, or (R, V) at the positions ``rows``.

    Probabilities, and log probabilities to base e, 2 or 10, are recognised and converted. ``vocab``: size of the
    model's vocabulary. DataError if the shapes do not match, OtherModel if they do not fit the vocabulary.
    """
    tokens = np.asarray(ids, np.int32)
    at = np.arange(len(tokens)) if rows is None else np.asarray(rows)
    if at.ndim != 1 or at.dtype.kind not in "iu":
        raise DataError(f"positions of the logits must be a list of integers, not {at.dtype} of shape {at.shape}")
    if logits.ndim == 3 and 1 in (logits.shape[0], logits.shape[2]):
        logits = logits[0] if logits.shape[0] == 1 else logits[:, :, 0]  # one batch, or a last axis of one
    problem = shape_problem(logits.shape, len(tokens), len(at), vocab)
    if problem is not None:
        raise DataError(problem)
    if not logits.size:
        raise DataError(f"empty logits: shape {logits.shape}")
    if not (0 <= at[0] and np.all(at[1:] > at[:-1]) and at[-1] < len(tokens)):
        raise DataError("positions of the logits must ascend and lie inside the token list")
    if logits.dtype.kind not in "fiu":
        hint = " (NumPy has no bfloat16: save float32)" if logits.dtype.kind == "V" else ""
        raise DataError(f"logits are of type {logits.dtype}, not numbers{hint}")
    findings: list[Finding] = []
    if vocab is not None:
        if int(tokens.max()) >= vocab:
            raise OtherModel(f"token id {int(tokens.max())} is outside the vocabulary of {vocab}: another model?")
        width = logits.shape[1]
        if width > vocab and padding(logits, vocab):
            findings.append(Finding("padded", f"{width - vocab} padding columns beyond the vocabulary ignored", WARN))
            logits = logits[:, :vocab]
        if logits.shape[1] != vocab:
            raise OtherModel(f"the logits are {width} wide, the model's vocabulary is {vocab}: another model?")
    return _scaled(Observation(tokens, at.astype(np.int64), None, logits, raw=True, table=logits), findings)


def to_logprobs(table: np.ndarray) -> tuple[np.ndarray, str]:
    """Return (log probabilities (R, V) float64, name of the table's scale); -inf for masks and probabilities of 0."""
    kind = scale(table)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if kind == "probabilities":
            return np.log(np.asarray(table, np.float64)), kind
        x = np.asarray(table, np.float64) * BASES.get(kind, 1.0)
        floor = x.max(axis=1, keepdims=True) + SILENT
        if (x <= floor).any():
            x = np.where(x <= floor, -np.inf, x)  # masked tokens may have a large negative number instead
        return log_softmax(x), kind


def _scaled(observation: Observation, findings: list[Finding]) -> Observation:
    """Convert the values (R, V) in ``logprobs``, of any scale, to log probabilities, and add their storage rounding.

    ``findings``: those so far; a conversion is added.
    """
    logs, kind = to_logprobs(observation.logprobs)
    if kind == "probabilities":
        return _of_probabilities(observation, logs, findings)
    if kind in ("log10", "log2"):
        says = f"these are logarithms to base {kind[3:]} of probabilities, not logits: converted"
        findings.append(Finding(kind, says, WARN))
    storage, shared = variance(observation.logprobs), None
    if storage is not None:
        storage = storage * BASES.get(kind, 1.0) ** 2
        if kind == "logits":  # normalising spreads the rounding error of the likely tokens over the whole row
            shared = np.nansum(np.exp(2 * logs) * storage, axis=1)
            storage = storage + shared[:, None]
    return replace(
        observation,
        logprobs=logs,
        raw=kind == "logits",
        findings=tuple(findings),
        stored=written(observation.logprobs)[0],
        storage=storage,
        shared=shared,
    )


def _of_probabilities(observation: Observation, logs: np.ndarray, findings: list[Finding]) -> Observation:
    """Return the observation with ``logs``, the logarithms of its probabilities.

    A probability of 0 underflowed when it was stored, so that token is unknown (NaN), not impossible.
    """
    findings.append(Finding("probabilities", "these are probabilities, not logits: their logarithm was taken", WARN))
    lost = observation.logprobs == 0
    if lost.any():
        says = f"{int(lost.sum())} of {lost.size} probabilities are 0: these tokens are not compared"
        findings.append(Finding("underflow", says, WARN))
    return replace(observation, logprobs=np.where(lost, np.nan, logs), raw=False, findings=tuple(findings))


def from_top(
    ids: Ids, entries: Sequence[tuple[int, Sequence[tuple[int, float | None]]]], vocab: int | None = None
) -> Observation:
    """Make an observation of ``entries``: (position, [(token id, logprob), ...]) in any order.

    Values that mean "no value" (``DEGENERATE``) are dropped; None, NaN or +infinity is recorded as a finding. Lists of
    probabilities are converted. ``vocab``: size of the model's vocabulary. DataError without usable values, OtherModel
    for ids beyond the vocabulary.
    """
    listed = {int(position): [(int(i), p) for i, p in top] for position, top in entries}
    usable = {
        position: [(i, float(p)) for i, p in top if p is not None and DEGENERATE < p < np.inf]
        for position, top in listed.items()
    }
    ids_seen = [i for top in listed.values() for i, _ in top]
    if any(not 0 <= i <= MAX_ID for i in ids_seen):
        raise DataError(f"token ids of the log probabilities must be 0 to {MAX_ID}")
    tokens = np.asarray(ids, np.int32)
    worst = max([int(tokens.max(initial=0)), *ids_seen])
    if vocab is not None and worst >= vocab:
        raise OtherModel(f"token id {worst} is outside the vocabulary of {vocab}: another model?")
    rows = np.array(sorted(p for p, top in usable.items() if top), np.int64)
    findings = _not_numbers(listed)
    if not len(rows):
        raise DataError("no position has usable log probabilities" + (f": {findings[0].says}" if findings else ""))
    if rows[0] < 0 or rows[-1] >= len(ids):
        raise DataError(f"position {rows[-1] if rows[0] >= 0 else rows[0]} lies outside the {len(ids)} tokens")
    width = max(len(usable[int(r)]) for r in rows)
    support = np.full((len(rows), width), -1, np.int64)
    values = np.full((len(rows), width), np.nan)
    for r, position in enumerate(rows):
        for k, (token, logprob) in enumerate(usable[int(position)]):
            support[r, k], values[r, k] = token, logprob
    logprobs = np.where(support >= 0, values, 0.0)
    # log probabilities are never positive, probabilities never negative
    if (logprobs >= 0).all() and (logprobs > 1e-3).any() and (logprobs.sum(axis=1) <= 1 + 1e-3).all():
        says = "these are probabilities, not log probabilities: converted"
        findings.append(Finding("probabilities", says, WARN))
        with np.errstate(divide="ignore"):
            values = np.log(values)
        support = np.where(np.isneginf(values), -1, support)
        values = np.where(support < 0, np.nan, values)
    return Observation(
        tokens, rows, support, values, findings=tuple(findings), stored=written(values)[0], storage=variance(values)
    )


def _not_numbers(listed: dict[int, list[tuple[int, float | None]]]) -> list[Finding]:
    """Return a finding if positions have None, NaN or +infinity; -infinity (an impossible token) is valid.

    ``listed``: by position, (token id, log probability) of its alternatives.
    """
    bad = sorted(
        position for position, top in listed.items() if any(p is None or np.isnan(p) or p == np.inf for _, p in top)
    )
    if not bad:
        return []
    says = f"NaN log probabilities at {len(bad)} of {len(listed)} positions, first at {bad[0]}"
    return [Finding("nan", says, BROKEN, tuple(bad))]


def preflight(seen: Observation) -> list[Finding]:
    """Return all defects of an observation as findings, worst first, including those found while reading it."""
    findings = list(seen.findings)
    values = seen.logprobs if seen.table is None else seen.table
    if seen.support is None:
        findings += [*examine(values, seen.rows), *repeated(values, seen.rows, seen.ids)]
    else:
        findings += _listed(seen, seen.support)
        if seen.support.shape[1] >= TELLING:
            findings += repeated(np.concatenate((seen.support, seen.logprobs), axis=1), seen.rows, seen.ids)
    name, step = written(values)
    if name:
        says = f"the values were written as {name}: smaller differences than {step / 2:g} are not detectable"
        if "float" in name:
            says = f"the values are rounded to {name}: relative differences below {step:.1g} are not detectable"
        findings.append(Finding("storage", says, WARN))
    order = (REFUSE, BROKEN, WARN)
    unique = [f for i, f in enumerate(findings) if f not in findings[:i]]
    return sorted(unique, key=lambda f: order.index(f.outcome))


def _listed(seen: Observation, support: np.ndarray) -> list[Finding]:
    """Return findings about top-k lists: sums above 1, tokens listed twice, no distribution at all."""
    listed, findings = support >= 0, []
    values = np.where(listed, seen.logprobs, -np.inf)
    if (np.where(listed, seen.logprobs, 0.0) == 0).all():
        says = "every listed log probability is 0: the source reports only the chosen token, not a distribution"
        return [Finding("degenerate", says, REFUSE)]
    with np.errstate(over="ignore"):
        sums, tens = np.exp(values).sum(axis=1), np.exp(values * BASES["log10"]).sum(axis=1)
    over = sums > 1 + TOP_SUM + seen.quantum
    if over.any():
        hint = "; they look like base-10 logarithms" if (tens <= 1 + TOP_SUM).all() and (values <= 0).all() else ""
        says = (f"the listed tokens alone have probabilities summing to {sums.max():.3g} at {{at}}: these are not "
                f"natural log probabilities{hint}")  # fmt: skip
        finding = broken("sum", says, seen.rows, over)
        findings.append(Finding("sum", finding.says, REFUSE) if over.all() else finding)
    twice = np.array([len(np.unique(row[on])) < on.sum() for row, on in zip(support, listed, strict=True)])
    if twice.any():
        findings.append(broken("twice", "a token is listed twice at {at}", seen.rows, twice))
    return findings
