"""GPUs by the name that their driver reports: what to predict for them, and for no other.

Cards of one architecture differ: an H200 is an H100 with faster memory. A name that is not listed has no prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest import mock

from . import cuda_code


class Card(NamedTuple):
    """One model of GPU, from its data sheet; ``bandwidth`` of its memory in GB/s."""

    architecture: str
    bandwidth: float
    multiprocessors: int


CARDS = {
    "NVIDIA A100-SXM4-80GB": Card("sm_80", 2039, 108),
    "NVIDIA H100 80GB HBM3": Card("sm_90", 3350, 132),
    "NVIDIA H200": Card("sm_90", 4800, 132),
    "NVIDIA GeForce RTX 5090": Card("sm_120", 1792, 170),
}


def device_named(name: str, capability: Sequence[int]) -> cuda_code.Device | None:
    """Return the GPU of this name and compute capability as the prediction sees it; None for one not known."""
    card = CARDS.get(name)
    if card is None or cuda_code.DEVICES[card.architecture].cc != tuple(capability):
        return None
    known = cuda_code.DEVICES[card.architecture]
    return known._replace(name=name, bandwidth=card.bandwidth, multiprocessors=card.multiprocessors)


def architecture(device: cuda_code.Device) -> str:
    """Return the key of a device's rows in the stored table."""
    return "sm_" + "".join(map(str, device.cc))


def token(device: cuda_code.Device, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return ``cuda_code.token`` of a device with its own figures instead of its architecture's."""
    arch = architecture(device)
    with mock.patch.dict(cuda_code.DEVICES, {arch: device}):
        return cuda_code.token(arch, rows)
