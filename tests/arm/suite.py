"""The share of the suite that runs under emulation: what computes, and what reads and writes files.

Left out are files whose tests let Numba compile (``test_simd_*``, ``test_cpu_halves``, ``test_cpu_library``,
``test_cpu_waiting``): that takes minutes for a kernel there; and rooms that are Python over these.
"""

from __future__ import annotations

from collections.abc import Mapping

_CHOSEN: Mapping[str, str] = {
    "tests/arm": "test_logits",
    "tests/kernels": "test_apart test_cpu_cores test_cpu_gemm test_cpu_ops test_cpu_pool test_cpu_rounding "
    "test_formats test_half_rows test_ops test_pitfalls test_quantize test_recording test_schedule test_top",
    "tests/archs": "test_chunks test_dense test_families test_formats test_frozen test_golden test_packed4 test_plan "
    "test_shape test_teacher_forced",
    "tests/session": "test_boundaries test_directory test_kvc test_store",
    "tests/text": "test_byte_level test_chat test_dsml test_dsml_parser test_messages test_pieces test_rawjson "
    "test_splits test_stream test_tokenizer",
    "tests/weights": "test_accounting test_full_size test_gguf test_imatrix test_llama2c test_malformed "
    "test_safetensors test_tensors test_writer",
}
FILES = tuple(f"{folder}/{name}.py" for folder, names in _CHOSEN.items() for name in names.split())

SINGLE = (
    "tests/session/test_session.py::test_sync_extends_reuses_and_rebuilds[exact]",
    "tests/session/test_session.py::test_progress_sees_a_valid_session[exact]",
    "tests/session/test_rewind.py::test_back_any_number_of_tokens_within_reach[40-ds4]",
)
"""Tests of files of which all would take hours: a session on the random model takes half a minute."""


def arguments() -> list[str]:
    """Return what pytest is asked for."""
    return [*FILES, *SINGLE]
