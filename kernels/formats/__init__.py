"""Storage formats of weights: the size of every ggml type, and dequantizers for those that the engine computes with.

``FORMATS`` maps names and ``BY_ID`` maps ggml type ids to ``Format``. A format that GGUF does not have (our own layouts
of weights as they were published) has a negative id and no entry in ``BY_ID``. Only NumPy is needed. The fast kernels
are tested against these readable dequantizers, which are tested bit for bit against gguf-py or ml_dtypes.
"""

from __future__ import annotations

from .apart import APART, ApartRows
from .blocks_32 import IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from .blocks_256 import IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TQ1_0, TQ2_0
from .codebooks import IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS
from .f8_e4m3 import F8_E4M3, F8_E4M3_32, F8_E4M3_ROW264
from .format import Format, block_format, size_only
from .fp4 import MXFP4, NVFP4
from .matrix import Matrix
from .scalars import BF16, F16, F32, I32, I64

_SIZE_ONLY = (
    size_only("Q8_1", 9, 32, 40),
    size_only("Q8_K", 15, 256, 292),
    size_only("I8", 24, 1, 1),
    size_only("I16", 25, 1, 2),
    size_only("F64", 28, 1, 8),
    size_only("Q1_0", 41, 128, 18),
)

_DECODED = (
    F32, F16, BF16, I32, I64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ4_NL, IQ4_XS,
    MXFP4, F8_E4M3, IQ1_S, IQ1_M, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, TQ1_0, TQ2_0, NVFP4,
    F8_E4M3_32, F8_E4M3_ROW264,
)  # fmt: skip

FORMATS: dict[str, Format] = {fmt.name: fmt for fmt in (*_DECODED, *_SIZE_ONLY)}
BY_ID: dict[int, Format] = {fmt.ggml_id: fmt for fmt in FORMATS.values() if fmt.ggml_id >= 0}

__all__ = ["APART", "BY_ID", "FORMATS", "ApartRows", "Format", "Matrix", "block_format", "size_only"]
