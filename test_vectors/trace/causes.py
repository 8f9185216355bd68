"""What would make our op give their result: a mistake of the library, another tensor, a damaged one.

Faults are tried by running the layer with each of them on *their* inputs: the one that brings the op within its budget
is the mistake. It is then tried in all layers, and named with how many of the wrong ops it explains and how many right
ones it would spoil. Tensors are tried in the same way: in place of each that the op multiplies with, others of the same
shape, and itself rearranged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.variants import LIBRARY, ROUNDING, Fault
from ds4ref.variants.damage import alike, attribute, only_expert, rearranged, tensor_name, with_tensor
from ds4ref.variants.forced import HEAD, LayerWeights, Weights, applicable

from .blame import SUMS, Case, Result, Wrong
from .forcing import Reading
from .ops import CHOICES, OPS, Key
from .patterns import describe, structure

ROTATED = frozenset(("Qcur", "KVrope", "KVcur", "KVcompress", "indexer_KVcompress", "indexer_q", "kqv_out", "kqv_back"))
MOST = 4
"""Causes looked for one after the other, each among the ops that none before explains."""
TIES = 4


@dataclass(frozen=True)
class Cause:
    """One explanation. kind is "fault" or "tensor"; ``names`` are those that explain equally much."""

    kind: str
    names: tuple[str, ...]
    text: str
    explains: tuple[Key, ...]

    def to_json(self) -> dict[str, Any]:
        """For the line of JSON."""
        return {"kind": self.kind, "names": list(self.names), "text": self.text,
                "explains": [list(key) for key in self.explains]}  # fmt: skip


def explain(case: Case, result: Result, search: bool = True) -> None:
    """Fill in where and as if of the wrong ops, and the causes."""
    for wrong in result.wrong:
        wrong.where = _where(case, wrong)
    if search:
        _search(case, result)
    settle(case, result)


def _search(case: Case, result: Result) -> None:
    left = list(result.wrong)
    for _ in range(MOST):
        if not left:
            break
        cause = _fault(case, result, left) or _tensor(case, left[0])
        if cause is None:
            left = left[1:]
            continue
        result.causes.append(cause)
        explained = set(cause.explains)
        for wrong in left:
            if wrong.key in explained:
                wrong.causes.append(cause.text)
        left = [wrong for wrong in left if wrong.key not in explained]


COARSE = {"bf16": 2.0**-6, "": 2.0**-9}
"""Relative differences above are no rounding of a float type: four times what it does to one value. bfloat16 is
believed of an engine whose other ops use it."""
STRUCTURE = 0.2
EVEN = 10.0
"""Rounding errs by as much in all rows, up to this factor between the tenth and the nine tenths."""


def settle(case: Case, result: Result) -> None:
    """Kinds of op that round in a way that no set has are no mistakes: off in every layer, by the same little, without
    any structure, and nothing known explains it. They are told with the size below which a mistake cannot be seen."""
    most = COARSE["bf16" if result.rounding.startswith("bf16") else ""]
    for kind in dict.fromkeys(wrong.key[0] for wrong in result.wrong):
        those = [wrong for wrong in result.wrong if wrong.key[0] == kind]
        sizes = [wrong.judgement.relative for wrong in those]
        spared = [key for key in result.clean if key[0] == kind]
        if kind in CHOICES or spared or len(those) < 2 or any(wrong.causes for wrong in those):
            continue
        if not 0 < min(sizes) <= max(sizes) <= min(most, 4 * min(sizes)):
            continue
        # the structure of one layer's error scatters by chance: the layers together tell
        found = [_structure(case, wrong) for wrong in those]
        if None not in found and np.median([value for value in found if value is not None]) <= STRUCTURE:
            result.coarse[kind] = max(sizes)
            result.clean += [wrong.key for wrong in those]
            result.wrong = [wrong for wrong in result.wrong if wrong.key[0] != kind]


def _structure(case: Case, wrong: Wrong) -> float | None:
    """How much structure the error of a point has; None if it cannot be told, or if rows err unevenly."""
    fits = case.theirs.get(wrong.key, None)
    ours = case.kept(wrong.rounding).ours.get(wrong.key)
    if fits is None or ours is None or len(fits) != 1 or fits[0].partial or fits[0].values.shape[-1] < 8:
        return None
    reading = case.kept(wrong.rounding)
    level = reading.apart[wrong.key] / np.maximum(reading.size[wrong.key], 1e-30)
    low, high = np.quantile(level, (0.1, 0.9))
    if not high <= EVEN * low:
        return None
    return float(structure(ours.reshape(fits[0].values.shape), fits[0].values))


def _where(case: Case, wrong: Wrong) -> list[str]:
    name, layer = wrong.key
    fits = case.theirs.get(wrong.key, None)
    if fits is None:
        return []
    rows = wrong.rows
    if name in CHOICES:
        hit = rows[wrong.judgement.beyond]
        return [f"other {CHOICES[name]} chosen at {len(hit)} of {len(rows)} positions, {hit[0]} first"]
    ours = case.kept(wrong.rounding).ours.get(wrong.key)
    if ours is None:
        return []
    theirs = np.concatenate([fit.values.reshape(len(fit.values), -1) for fit in fits], axis=1)
    axes = OPS[name].axes
    if len(fits) == 1:
        ours = ours.reshape(fits[0].values.shape)
        theirs = theirs.reshape(ours.shape)
    else:
        axes = axes[0] + "F"
    choice = case.theirs.get(("ffn_moe_topk", layer), None) if "S" in axes else None
    experts = choice[0].values if choice is not None and len(choice[0].values) == len(ours) else None
    limit = np.full(len(rows), wrong.judgement.limit)
    told = describe(ours, theirs, limit, rows, axes, _rotary(case, name), experts, fits[0].partial)
    if name == "ffn_moe_out":
        told += _shares(case, wrong, ours, theirs)
    return told


def _rotary(case: Case, name: str) -> int:
    return int(case.engine.shape.rope_dim) if name in ROTATED else 0


# ------------------------------------------------------------------------------------------------- faults


def _fault(case: Case, result: Result, left: list[Wrong]) -> Cause | None:
    """The fault that explains the first of ``left``, and as many of the others as any that does."""
    first = left[0]
    found, near = [], []
    for fault, late in _candidates(case, first):
        reading = case.reading(first.rounding, [fault], case.leading([first.key[1]]), until=first.key, late=late)
        if _explained(case, first, reading):
            found.append((fault, late))
        elif _near(case, first, reading):
            near.append((fault, late))
    layers = case.leading({wrong.key[1] for wrong in left})
    tried = [(fault, late, case.reading(first.rounding, [fault], layers, late=late), _NOTHING) for fault, late in found]
    for fault, late in near if not found else ():
        reading = case.reading(first.rounding, [fault], layers, late=late, keep=True)
        own = case.noise_of(first.rounding, reading, layers, [fault], late)
        if _explained(case, first, reading, own):
            tried.append((fault, late, reading, own))
    if not tried:
        return None
    scored = []
    for fault, _, reading, own in tried:
        explains = tuple(wrong.key for wrong in left if _explained(case, wrong, reading, own))
        spoils = sum(_spoiled(case, key, result, reading) for key in result.clean if key in reading.apart)
        scored.append((len(explains) - spoils, -spoils, explains, fault))
    best = max(score[:2] for score in scored)
    chosen = [(explains, fault) for *score, explains, fault in scored if tuple(score) == best]
    explains = chosen[0][0]
    names = tuple(dict.fromkeys(fault.name for _, fault in chosen))[:TIES]
    says = " or ".join(f"{LIBRARY[name].says} ({name})" for name in names)
    more = f", or {len(chosen) - TIES} others that would do the same here" if len(chosen) > TIES else ""
    many = f"; explains {len(explains)} of {len(left)} ops" if len(left) > 1 else ""
    part = f", but not in all places: {-best[1]} other ops are right that it would spoil" if best[1] else ""
    return Cause("fault", names, f"{says}{more}{many}{part}", explains)


def _candidates(case: Case, wrong: Wrong) -> Iterator[tuple[Fault, bool]]:
    """Faults that can act between the op's inputs and its result, and whether on inputs after they were dumped."""
    formats = {tensor.fmt.name for tensor in case.engine.source.tensors.values()}
    points, inputs = {name for name, _ in wrong.bridged}, {name for name, _ in wrong.inputs}
    multiplies = any(OPS[name].tensors for name in points)
    for fault in applicable(ROUNDING[wrong.rounding].numerics, formats, len(case.ids)):
        if (fault.begin is not None or points & set(fault.edits)) and (not fault.fmt or multiplies):
            yield fault, False
        if inputs & set(fault.edits):
            yield fault, True


_NOTHING: dict[Key, list[np.ndarray]] = {}

NEAR = 0.1
"""What is left of a difference that a fault all but explains. A wrong op may carry on more of its inputs' noise, such
as what storing them lost, than the right one: then its own noise, measured with the fault in place, is its budget."""


def _explained(case: Case, wrong: Wrong, reading: Reading, own: dict[Key, list[np.ndarray]] = _NOTHING) -> bool:
    apart = reading.apart.get(wrong.key)
    if apart is None or len(apart) != len(wrong.judgement.beyond):
        return False
    judged = case.judge(wrong.rounding, wrong.key, apart, own.get(wrong.key))
    return not judged.wrong and reading.sums.get(wrong.key, 0.0) < SUMS


def _near(case: Case, wrong: Wrong, reading: Reading) -> bool:
    """Whether a fault leaves little of the difference, by row where the op is off."""
    apart, rows = reading.apart.get(wrong.key), wrong.judgement.beyond
    if apart is None or len(apart) != len(rows) or not rows.any():
        return False
    before = case.kept(wrong.rounding).apart[wrong.key][rows]
    return bool(np.isfinite(before).all() and np.median(apart[rows] / before) < NEAR)


def _spoiled(case: Case, key: Key, result: Result, reading: Reading) -> bool:
    name = result.exceptions.get(key[0], result.rounding)
    if name != result.rounding:
        return False
    before = case.kept(name).apart[key]
    after = reading.apart[key]
    return not np.array_equal(before, after) and len(before) == len(after) and case.judge(name, key, after).wrong


# ------------------------------------------------------------------------------------------------- tensors


def _tensor(case: Case, wrong: Wrong) -> Cause | None:
    """A tensor whose replacement explains the op."""
    for tensor, says, weights in _replacements(case, wrong):
        layer = HEAD if isinstance(weights, Weights) else wrong.key[1]
        reading = case.reading(wrong.rounding, (), case.leading([wrong.key[1]]), {layer: weights}, until=wrong.key)
        if _explained(case, wrong, reading):
            return Cause("tensor", (tensor,), f"{tensor}: {says}", (wrong.key,))
    named = [_file_name(tensor, layer) for (name, layer) in wrong.bridged for tensor in OPS[name].tensors]
    present = [name for name in named if name in case.engine.source.tensors]
    if len(wrong.bridged) == 1 and len(present) == 1:
        factor = next((text for text in wrong.where if text.startswith("theirs = ") and text.find(" x ours") > 0), None)
        expert = [text for text in wrong.where if "expert" in text and "only" in text]
        if factor or expert:
            says = " and ".join([*([f"scaled ({factor})"] if factor else []), *expert])
            return Cause("tensor", (present[0],), f"{present[0]}: {says}", (wrong.key,))
    return None


def _replacements(case: Case, wrong: Wrong) -> Iterator[tuple[str, str, LayerWeights | Weights]]:
    """(tensor, what it would be, the weights with it)."""
    whole = case.engine.model.weights
    for name, layer in wrong.bridged:
        for tensor in OPS[name].tensors:
            attr, file = attribute(tensor), _file_name(tensor, layer)
            if hasattr(whole, attr) and (layer in (HEAD, 0)):
                held: Any = whole
            elif layer >= 0 and layer == wrong.key[1]:
                held = whole.layers[layer]
            else:
                continue
            own = getattr(held, attr, None)
            if own is None:
                continue
            for says, other in _others(whole, held, attr, own):
                yield file, says, with_tensor(held, attr, other)


def _others(whole: Weights, held: Any, attr: str, own: Any) -> Iterable[tuple[str, Any]]:
    yield from rearranged(own)
    if isinstance(held, LayerWeights):
        for other, value in vars(held).items():
            if other != attr and alike(own, value):
                yield f"equals {_told(other, held, whole)} instead", value
        for other_layer in whole.layers:
            if other_layer is not held and alike(own, getattr(other_layer, attr)):
                value = getattr(other_layer, attr)
                yield f"equals {_told(attr, other_layer, whole)} instead", value


def _told(attr: str, held: LayerWeights, whole: Weights) -> str:
    return tensor_name(attr, next(i for i, other in enumerate(whole.layers) if other is held))


def _file_name(tensor: str, layer: int) -> str:
    return tensor_name(attribute(tensor), -1 if tensor.startswith(("token_embd", "output")) else layer)


# ------------------------------------------------------------------------------------------------- experts

LARGEST = 32
"""Experts whose parts of the sum are looked at one by one."""


def _shares(case: Case, wrong: Wrong, ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    """Of the routed experts' sum: the factor on each expert's part that makes theirs, if some experts' is not 1."""
    count = int(case.engine.shape.n_experts)
    if count > LARGEST or not np.isfinite(theirs).all():
        return []
    layers = case.leading([wrong.key[1]])
    parts = []
    for expert in range(count):
        reading = case.reading(wrong.rounding, [only_expert(expert)], layers, until=wrong.key, keep=True)
        parts.append(reading.ours[wrong.key].reshape(-1).astype(np.float64))
    factors, *_ = np.linalg.lstsq(np.array(parts).T, theirs.reshape(-1).astype(np.float64), rcond=None)
    rest = theirs.reshape(-1) - factors @ np.array(parts)
    apart = np.square(theirs.reshape(-1) - ours.reshape(-1)).mean()
    off = [(e, f) for e, f in enumerate(factors) if abs(f - 1) > 0.05 and np.any(parts[e])]
    if np.square(rest).mean() > 0.01 * apart or not off or len(off) == count:
        return []
    return ["; ".join(f"expert {e} only: {'missing' if abs(f) < 0.01 else f'{f:.4g} x its part'}" for e, f in off)]
