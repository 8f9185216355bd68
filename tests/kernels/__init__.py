"""The backends under test; ``cuda.device`` has the one whose arrays live elsewhere."""

from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.reference import Reference

cpu, reference = CPU(), Reference()
