"""The share of the suite that runs under emulation: what computes, and what reads and writes files.

Rooms that are Python over these are left out, and so are the files of ``LEFT_OUT``.
"""

from __future__ import annotations

from collections.abc import Mapping

_CHOSEN: Mapping[str, str] = {
    "tests/arm": "test_logits",
    "tests/kernels": "test_aarch64 test_apart test_cpu_abi test_cpu_cores test_cpu_gemm test_cpu_ops "
    "test_cpu_pool test_cpu_reuse test_cpu_rounding test_formats test_half_rows test_ops test_pitfalls "
    "test_pro_sizes "
    "test_quantize test_recording test_schedule test_top",
    "tests/archs": "test_chunks test_dense test_experts test_families test_formats test_frozen test_golden "
    "test_plan test_shape test_teacher_forced",
    "tests/session": "test_boundaries test_directory test_kvc test_payload test_store",
    "tests/text": "test_byte_level test_chat test_dsml test_dsml_parser test_messages test_pieces "
    "test_rawjson test_splits test_stream test_tokenizer",
    "tests/weights": "test_accounting test_full_size test_gguf test_imatrix test_hostile "
    "test_safetensors test_tensors test_writer",
}
FILES = tuple(f"{folder}/{name}.py" for folder, names in _CHOSEN.items() for name in names.split())

SINGLE = ("tests/session/test_session.py::test_sync_extends_reuses_and_rebuilds[exact]",)
"""Tests of files of which all would take hours: a session on the random model takes half a minute."""


LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "let Numba compile, which takes minutes for a kernel there": {
        "tests/kernels": "test_cpu_externals test_cpu_halves test_cpu_library test_cpu_waiting test_cross "
        "test_gemm_neon test_neon_code test_simd_asm test_simd_gemm test_simd_quantize test_simd_rows test_simd_tiers",
    },
    "ask a program or a library of x86": {
        "tests/arm": "test_userland",
        "tests/kernels": "test_quantize_peers",
    },
    "read source, folders or headers, and compute little": {
        "tests/archs": "test_dense_folders test_one_model test_pass_is_ops test_published_configs "
        "test_published_full_size",
        "tests/text": "test_export test_library test_own_template test_real_vocabularies test_template",
        "tests/weights": "test_quantize_files test_quantize_stops test_report test_story_tools test_whole_models",
    },
    "round inputs after sums of NumPy's, whose last bit is another one there": {"tests/weights": "test_llama2c"},
    "take hours: trained or random models, token by token, or processes that are killed": {
        "tests/archs": "test_mtp test_published test_steering",
        "tests/session": "test_forks test_left test_passes test_rewind test_session test_store_crash test_store_damage "
        "test_store_model",
    },
}
"""Files of the folders above that do not run there, by reason."""


CASES = 2
"""Cases of each test outside of kernels: all of them take three quarters of an hour on two cores."""


def arguments() -> list[str]:
    """Return what pytest is asked for."""
    return [f"--cases={CASES}", *FILES, *SINGLE]
