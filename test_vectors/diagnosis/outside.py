"""Mistakes outside the forward pass: tokenizer, chat template, BOS token, shifted rows and columns of the output.

Each mistake is a function from our correct log probabilities to those that an engine with this mistake would report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ds4ref.variants.families import FAMILIES

from ..observation import Observation, log_softmax
from .prompts import MISTAKES, PromptBug, places
from .signatures import Pass, Signatures

COVERED = 0.8
"""A mistake in the prompt is a candidate only if it predicts at least this share of the observed rows."""


Make = Callable[[Signatures, str, Observation], np.ndarray]


@dataclass(frozen=True)
class OutsideBug:
    """A mistake of an engine outside its forward pass, such as a missing BOS token or shifted output rows.

    make  returns log probabilities (T, V) for the observed tokens, given library, rounding set and observation; rows
          that cannot be predicted are NaN
    runs  whether that takes a run on other tokens
    """

    name: str
    says: str
    make: Make
    runs: bool = False


def _prepended(token: int, name: str) -> Make:
    return lambda library, mode, seen: library.on(name, mode, [token, *library.ids.tolist()]).logprobs[1:]


def _first_dropped(library: Signatures, mode: str, seen: Observation) -> np.ndarray:
    if len(library.ids) < 2:
        return np.full((len(library.ids), 1), np.nan)
    rest = library.on("first_dropped", mode, library.ids[1:].tolist()).logprobs
    return np.concatenate((np.full_like(rest[:1], np.nan), rest))


def _shifted(by: int) -> Make:
    def make(library: Signatures, mode: str, seen: Observation) -> np.ndarray:
        out = np.roll(library.get(mode).logprobs, by, axis=0)
        out[0 if by > 0 else -1] = np.nan
        return out

    return make


def _columns(by: int) -> Make:
    def make(library: Signatures, mode: str, seen: Observation) -> np.ndarray:
        out = np.roll(library.get(mode).logprobs, by, axis=1)
        if library.columns is not None:
            out[:, library.columns - np.roll(library.columns, by) != by] = np.nan
        return out

    return make


def _scaled(library: Signatures, mode: str, seen: Observation) -> np.ndarray:
    """Log probabilities of our logits times the factor that fits best, as if a temperature had been applied."""
    rows = library.get(mode).logprobs
    mine = rows[seen.rows].astype(np.float64)
    theirs = seen.logprobs
    if seen.support is not None:
        mine = np.take_along_axis(mine, np.maximum(seen.support, 0), axis=1)
        mine = np.where(seen.support >= 0, mine, np.nan)
    use = np.isfinite(mine) & np.isfinite(theirs)
    count = np.maximum(use.sum(axis=1, keepdims=True), 1)
    # least squares on centred rows, so that the constant that normalises log probabilities drops out
    mine, theirs = np.where(use, mine, 0.0), np.where(use, theirs, 0.0)
    mine = np.where(use, mine - mine.sum(axis=1, keepdims=True) / count, 0.0)
    theirs = np.where(use, theirs - theirs.sum(axis=1, keepdims=True) / count, 0.0)
    slope = float((mine * theirs).sum() / max((mine**2).sum(), 1e-9)) if use.any() else 1.0
    if not 0.1 < slope < 10 or abs(slope - 1) < 0.01:
        return np.full_like(rows, np.nan)
    if library.columns is not None:
        fault = FAMILIES["logit_scale"].fault(round(slope, 4))
        return library.of(Pass(mode, (fault,), fault.name)).logprobs
    return log_softmax(rows * slope).astype(np.float32)


def _misread(mistake: PromptBug) -> Make:
    """Return a function that predicts an engine which was fed other ids for the same prompt.

    It predicts nothing unless at least ``COVERED`` of the observed rows have a counterpart after the other ids.
    """

    def make(library: Signatures, mode: str, seen: Observation) -> np.ndarray:
        nothing = np.full((len(library.ids), 1), np.nan)
        tokenizer, ids = library.engine.tokenizer, library.ids.tolist()
        # rows that do not begin at 0 are of generated tokens: the prompt ends where they begin
        end = int(seen.rows[0]) + 1 if seen.rows[0] else len(ids)
        wrong = mistake.make(tokenizer, ids[:end])
        if not wrong or wrong == ids[:end]:
            return nothing
        wrong += ids[end:]
        at = places(tokenizer, ids, wrong)
        if (at[seen.rows] >= 0).mean() < COVERED:
            return nothing
        rows = library.on(mistake.name, mode, wrong).logprobs[at]
        rows[at < 0] = np.nan
        return rows

    return make


def _after(make: Make) -> Make:
    """Return a function that predicts only tokens generated after a prompt, which was sent as text."""

    def generated(library: Signatures, mode: str, seen: Observation) -> np.ndarray:
        return make(library, mode, seen) if seen.rows[0] else np.full((len(library.ids), 1), np.nan)

    return generated


def outside_bugs(library: Signatures, bos: int | None) -> list[OutsideBug]:
    """Return the mistakes that are possible for this model and these tokens; ``bos``: id of the BOS token, None if the
    file has no tokenizer."""
    every = [OutsideBug(bug.name, bug.says, _after(_misread(bug))) for bug in library.prompt_keys]
    every += [
        OutsideBug("first_token_dropped", "first token of the prompt missing", _first_dropped, True),
        OutsideBug("rows_late", "each row holds the distribution of the token before", _shifted(1)),
        OutsideBug("rows_early", "each row holds the distribution of the token after", _shifted(-1)),
        OutsideBug("ids_up", "token ids one too high in the output", _columns(1)),
        OutsideBug("ids_down", "token ids one too low in the output", _columns(-1)),
        OutsideBug("scaled", "logits scaled by a constant (a temperature was applied)", _scaled),
    ]
    if bos is not None and library.ids[0] != bos:
        every.append(OutsideBug("bos_added", "a beginning-of-sentence token was put before the prompt",
                             _prepended(bos, "bos_added"), True))  # fmt: skip
    if bos is not None:
        every += [OutsideBug(mistake.name, mistake.says, _misread(mistake), True) for mistake in MISTAKES]
    doubled = _prepended(int(library.ids[0]), "first_doubled")
    every.append(OutsideBug("first_token_doubled", "first token of the prompt twice (double BOS)", doubled, True))
    return every
