"""The backends under test."""

from typing import Any

from kernels.cpu import CPU
from kernels.reference import Reference

from .device import OnDevice


def _open_cuda() -> Any:
    from kernels.cuda import CUDA

    return CUDA()


cpu, reference, cuda = CPU(), Reference(), OnDevice(_open_cuda)
