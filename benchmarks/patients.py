"""Simulated engines ("patients") for measuring the diagnosis: clean, with a known mistake, or with an unknown one.

    patient = draw(engine, trial)       everything follows from the trial's number
    patient.truth                       the names of its mistakes; empty if it is clean
    patient.seen                        its observed logits
    patient.library                     signatures: the effect of each known mistake on its prompt

The mistakes of ``OUTSIDE`` have a strength and must never enter the diagnosis's library: a diagnosis may call them
unknown or undecided, or clean if they are below the detection limit, but must not name them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import DIAGNOSTIC
from ds4ref.test_vectors.diagnosis import Pass, Signatures
from ds4ref.test_vectors.diagnosis.search import NO_MISTAKE
from ds4ref.test_vectors.observation import Observation, from_logits, log_softmax
from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.faults import Fault, _op, _value

LENGTHS = (48, 120)
TOPS = (None, 20)
STORED = ("", "", "float16", "4 decimals")
KINDS = ("clean", "library", "family", "outside")
"""Kinds of patients, drawn equally often; the diagnosis's priors follow from that (``benchmarks.calibration
priors``)."""
MODES_ALONE = 0.6
"""Share of patients in one of the three numerics modes; the others use any of the rounding sets (choices of which
values to round)."""
LOUDNESS = (0.5, 1.0, 2.0)
"""Factors by which a patient's float noise may differ from the usual amplitude."""
SAME = 1e-3
"""Two mistakes count as the same if log probabilities differ by at most this."""
PROMPT_SEEDS = 1
"""Number of prompts of each length; signatures are computed once per prompt."""


# --- mistakes that the library does not have, each with a strength s


def _powered(s: float) -> Callable:
    """Raise routing weights to a power before normalising them again."""

    def make(route: Callable) -> Callable:
        def wrong(*args: Any) -> tuple:
            probs, ids, w = route(*args)
            power = w ** np.float32(1 + s)
            return probs, ids, (power / power.sum(1, keepdims=True) * w.sum(1, keepdims=True)).astype(np.float32)

        return wrong

    return make


def _flattened(s: float) -> Callable:
    """Flatten the scores of compressors."""
    flat = np.float32(1 - min(s, 1.0))
    return lambda op: lambda kv, score: op(kv, np.where(score < -1e29, score, score * flat))


def _gains(count: int, every: int, gain: float) -> np.ndarray:
    """Return ``count`` factors: ``gain`` for each ``every``-th value, 1 for the others."""
    return np.where(np.arange(count) % every == 0, np.float32(gain), np.float32(1))


OUTSIDE: dict[str, Callable[[float], Fault]] = {
    # logits capped as c tanh(x / c); smaller c is stronger
    "softcap": lambda s: Fault("softcap", "", edits={
        "result_output": _value(lambda x: np.float32(30 / s) * np.tanh(x / np.float32(30 / s)))}),
    # one head's output attenuated
    "head_fades": lambda s: Fault("head_fades", "", edits={
        "kqv_back": _value(lambda x: x * _gains(x.shape[1], x.shape[1], 1 - min(s, 1.0))[:, None])}),
    # the steepness of the experts' sigmoid
    "gate_steep": lambda s: Fault("gate_steep", "", _op(
        "swiglu", lambda op: lambda g, *rest: op(g * np.float32(1 + s), *rest))),
    "weights_power": lambda s: Fault("weights_power", "", _op("route", _powered(s))),
    # a little of the previous token in every block output
    "leak": lambda s: Fault("leak", "", edits={
        "ffn_out": _value(lambda x: x + np.float32(s) * np.concatenate((0 * x[:1], x[:-1])))}),
    # one channel in sixteen of the attention input
    "channels_off": lambda s: Fault("channels_off", "", edits={
        "attn_norm": _value(lambda x: x * _gains(x.shape[1], 16, 1 + s))}),
    # sinks pulled towards the first head's
    "sink_shared": lambda s: Fault("sink_shared", "", edits={
        "attn_sinks": _value(lambda x: x + np.float32(min(s, 1.0)) * (x[:1] - x))}),
    "pool_flat": lambda s: Fault("pool_flat", "", _op("pool", _flattened(s))),
    # queries scaled with the logarithm of the position
    "query_grows": lambda s: Fault("query_grows", "", edits={"Qcur": lambda value, layer, chunk, taps: value * (
        1 + s * np.log1p(chunk.positions / 100))[:, None, None].astype(np.float32)}),
    # the FFN of one layer
    "layer_off": lambda s: Fault("layer_off", "", edits={
        "ffn_out": lambda value, layer, chunk, taps: value * np.float32(1 + s) if layer == 3 else value}),
}  # fmt: skip
"""Mistakes that the library does not have, by name: functions that make the injected mistake from its strength (1e-3
to 1)."""


@dataclass(frozen=True)
class Patient:
    """One simulated engine.

    truth     names of its mistakes, () for a clean one
    kind      "clean", "library", "family" or "outside"
    size      strength of the mistake, if it has one
    effect    root mean square by which the mistake changes log probabilities, in nats
    flips     whether the mistake changes the best token anywhere by a margin above noise
    library   signatures of the known mistakes on its prompt
    seen      its observed logits
    """

    trial: int
    kind: str
    mode: str
    truth: tuple[str, ...]
    size: float | None
    effect: float
    flips: bool
    library: Signatures
    seen: Observation

    def __str__(self) -> str:
        what = ", ".join(self.truth) or "clean"
        size = "" if self.size is None else f" {self.size:.4g}"
        return f"trial {self.trial}: {what}{size} in {self.mode}, effect {self.effect:.2g}"


_LIBRARIES: dict[tuple[int, int], Signatures] = {}


def library_of(engine: Engine, length: int, seed: int) -> Signatures:
    """Return the signatures of the random prompt ``(length, seed)``, shared by all patients on it."""
    key = length, seed
    if key not in _LIBRARIES:
        ids = np.random.default_rng([seed, length, 5]).integers(0, DIAGNOSTIC.vocab, length).tolist()
        _LIBRARIES[key] = Signatures(engine, ids)
    return _LIBRARIES[key]


def draw(engine: Engine, trial: int, kinds: Sequence[str] = KINDS) -> Patient:
    """Return patient number ``trial``.

    The number determines everything: which values it rounds, its mistake and its strength, the prompt, float noise, the
    precision in which its logits are stored, and how many of them are observed.
    """
    rng = np.random.default_rng([trial, 6])

    def one(choices: Sequence[Any]) -> Any:
        return choices[int(rng.integers(len(choices)))]

    library = library_of(engine, one(LENGTHS), one(range(PROMPT_SEEDS)))
    kind, top, stored, loud = one(kinds), one(TOPS), one(STORED), one(LOUDNESS)
    mode = one(MODE_NAMES) if rng.random() < MODES_ALONE else one(tuple(ROUNDING))
    faults, truth, size = _mistake(engine, library, kind, mode, rng)
    noise = np.random.default_rng([trial, 7])
    logits = library.runner.run(library.ids.tolist(), mode, faults, noise, louder=loud)[0]
    effect, flips = 0.0, False
    if faults:
        plain = library.runner.run(library.ids.tolist(), mode, (), np.random.default_rng([trial, 7]), louder=loud)[0]
        effect, flips = moved(logits, plain, library, mode)
    seen = from_logits(library.ids, kept_as(logits, stored))
    return Patient(trial, kind, mode, truth, size, effect, flips, library, seen if top is None else seen.top(top))


def _mistake(
    engine: Engine, library: Signatures, kind: str, mode: str, rng: np.random.Generator
) -> tuple[list[Fault], tuple[str, ...], float | None]:
    if kind == "library":
        names = [f.name for f in library.faults(mode) if f.name not in NO_MISTAKE and not f.quiet]
        name = names[int(rng.integers(len(names)))]
        return [LIBRARY[name]], (name,), None
    if kind == "family":
        family = list(FAMILIES.values())[int(rng.integers(len(FAMILIES)))]
        grid = family.grid(engine.shape)
        value = grid[int(rng.integers(len(grid)))]
        if not family.whole:
            value *= float(np.exp(rng.uniform(-0.3, 0.3)))
        return [family.fault(value)], (family.name, *_also(library, family.fault(value))), float(value)
    if kind == "outside":
        name = list(OUTSIDE)[int(rng.integers(len(OUTSIDE)))]
        strength = float(10 ** rng.uniform(-3, 0))
        return [OUTSIDE[name](strength)], (name,), strength
    return [], (), None


def _also(library: Signatures, fault: Fault) -> list[str]:
    """Return the library's names for all mistakes whose effect on this prompt is that of ``fault``: a clamp that no
    value reaches, for example, has the same effect (none) as another."""
    member = library.of(Pass("exact", (fault,), fault.name)).logprobs
    names = [f.name for f in library.faults("exact") if f.name not in NO_MISTAKE]
    return [n for n in names if np.abs(library.of(Pass("exact", (LIBRARY[n],), n)).logprobs - member).max() < SAME]


def moved(wrong: np.ndarray, right: np.ndarray, library: Signatures, mode: str) -> tuple[float, bool]:
    """Return (rms difference of log probabilities in nats, whether the best token changes by a margin above noise)."""
    a, b = log_softmax(wrong), log_softmax(right)
    noise = max(float(np.abs(r.logprobs - library.get(mode).logprobs).max()) for r in library.noisy(Pass(mode)))
    rows = np.arange(len(a))
    margin = np.minimum(b.max(axis=1) - b[rows, a.argmax(axis=1)], a.max(axis=1) - a[rows, b.argmax(axis=1)])
    return float(np.sqrt(np.mean((a - b) ** 2))), bool((margin > 2 * noise).any())


def kept_as(logits: np.ndarray, stored: str) -> np.ndarray:
    """Return logits rounded to ``stored``, the precision of the file in which a patient's logits are kept."""
    if stored == "float16":
        with np.errstate(over="ignore"):
            return logits.astype(np.float16).astype(np.float32)
    if stored == "bfloat16":
        return ((logits.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    if stored.endswith("decimals"):
        return np.round(logits.astype(np.float64), int(stored.split()[0]))
    return logits
