"""Options of directional steering, those of ds4, the same in every command that opens a model."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from ..errors import UsageError
from .common import say
from .flags import Group, add

if TYPE_CHECKING:
    from ..archs.steering import Steering
    from ..engine import Engine

FLAGS = "--dir-steering-file", "--dir-steering-ffn", "--dir-steering-attn"


def add_steering(group: Group) -> None:
    """Add the options that name a file of directions and its scales."""
    for name in FLAGS:
        add(group, name)


def steering(args: Namespace) -> Steering | None:
    """Return what the options of ``add_steering`` ask for, None for no steering.

    As in ds4 a file without a scale has the scale 1 after the feed-forward half. Raise UsageError for a scale without a
    file.
    """
    file, ffn, attn = (getattr(args, name.removeprefix("--").replace("-", "_")) for name in FLAGS)
    if file is None:
        for name, scale in zip(FLAGS[1:], (ffn, attn), strict=True):
            if scale:
                raise UsageError(f"{name} needs {FLAGS[0]}")
        return None
    from ..archs.steering import Steering

    return Steering(file, attn=attn or 0.0, ffn=1.0 if ffn is None and attn is None else ffn or 0.0)


def only_local(args: Namespace, kind: str) -> None:
    """Raise UsageError if the options ask for steering of a target of another kind than "local"."""
    if kind != "local" and steering(args) is not None:
        raise UsageError(
            f"{FLAGS[0]} works only with a local engine, not a target of kind {kind}: set steering in that engine"
        )


def announce(prog: str, engine: Engine | None) -> None:
    """Say on stderr what the engine is steered with, if it is; None: the engine is not here."""
    s = None if engine is None else engine.steering
    if s is not None:
        say(prog, f"directional steering enabled: {s.file} attn={s.attn:g} ffn={s.ffn:g}")
