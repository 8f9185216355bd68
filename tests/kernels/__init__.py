"""The backends under test."""

from kernels.cpu import CPU
from kernels.reference import Reference

cpu, reference = CPU(), Reference()
