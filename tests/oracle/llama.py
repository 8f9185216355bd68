"""llama.cpp's ``deepseek4`` (llama-cpp-python 0.3.36, CPU) as a third, independent engine, in process.

Drives the C API directly, because the Python class offers neither intermediates nor the cache types: logits at every
position, the prompt in one batch or token by token, and any named tensor of the compute graph.

A file must carry ``deepseek4.expert_gating_func`` = 4; ``tests.oracle.modelgen.with_gating_key`` adds it.

    with Llama("tiny.gguf") as engine:
        logits = engine.logits(ids)                      # (T, V) float32
        logits, taken = engine.record(ids, lambda name: name.startswith("l_out"))
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from types import TracebackType
from typing import Any

import llama_cpp as api
import numpy as np

# offsets of ne[4] and nb[4] in struct ggml_tensor: int32 type, padding, pointer to buffer, then the two arrays
_NE, _NB = 16, 48
_NUMPY = {0: np.float32, 1: np.float16, 26: np.int32}


@api.llama_log_callback
def _silent(_level: int, _text: bytes, _user: Any) -> None:
    """Drop llama.cpp's messages; they would go to stderr around pytest."""


class Llama:
    """One file, one context of ``ctx`` tokens.

    f32_cache  keep rows in float32 instead of llama.cpp's f16
    flash      fused attention (llama.cpp's own choice on CPU); False is the plain graph
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        ctx: int = 1024,
        f32_cache: bool = False,
        flash: bool = True,
        threads: int = 1,
    ):
        api.llama_log_set(_silent, None)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers, params.use_mmap = 0, True
        self._model = api.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {os.fspath(path)}")
        self._take: Callable[[str], bool] | None = None
        self._taken: dict[str, list[np.ndarray]] = {}
        self._callback = api.ggml_backend_sched_eval_callback(self._tapped)
        self._ctx, self._threads, self._f32_cache, self._flash = ctx, threads, f32_cache, flash
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the model."""
        if self._model:
            api.llama_model_free(self._model)
            self._model = None

    def logits(self, ids: Sequence[int], one_by_one: bool = False) -> np.ndarray:
        """A fresh context over ``ids``: (T, V) float32."""
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = self._ctx
        params.n_threads = params.n_threads_batch = self._threads
        params.no_perf = True
        params.flash_attn_type = int(self._flash)
        if self._f32_cache:
            params.type_k = params.type_v = 0
        if self._take is not None:
            params.cb_eval = self._callback
        context = api.llama_init_from_model(self._model, params)
        if not context:
            raise ValueError("llama.cpp makes no context for this model")
        try:
            pieces = [[i] for i in ids] if one_by_one else [list(ids)]
            start, rows = 0, []
            for piece in pieces:
                rows.append(self._decode(context, piece, start))
                start += len(piece)
            return np.concatenate(rows)
        finally:
            api.llama_free(context)

    def record(
        self, ids: Sequence[int], take: Callable[[str], bool], one_by_one: bool = False
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """logits, and the graph's tensors whose names ``take`` accepts, in NumPy order; repeats get "#2", "#3" ..."""
        self._take, self._taken = take, {}
        try:
            logits = self.logits(ids, one_by_one)
        finally:
            self._take = None
        named = {}
        for name, arrays in self._taken.items():
            for n, array in enumerate(arrays, 1):
                named[name if n == 1 else f"{name}#{n}"] = array
        return logits, named

    def _decode(self, context: Any, ids: Sequence[int], start: int) -> np.ndarray:
        batch = api.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i] = token, start + i
                batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
            status = api.llama_decode(context, batch)
        finally:
            api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        flat = api.llama_get_logits(context)
        return np.ctypeslib.as_array(flat, (len(ids) * self.vocab,)).reshape(len(ids), self.vocab).copy()

    def _tapped(self, tensor: int, ask: bool, _user: Any) -> bool:
        base = _ggml_base()
        name = base.ggml_get_name(tensor).decode(errors="replace")
        wanted = self._take is not None and self._take(name)
        if ask or not wanted:
            return wanted if ask else True
        kind = ctypes.c_int32.from_address(tensor).value
        if kind in _NUMPY:
            ne = (ctypes.c_int64 * 4).from_address(tensor + _NE)
            nb = (ctypes.c_size_t * 4).from_address(tensor + _NB)
            shape, strides = tuple(ne)[::-1], tuple(nb)[::-1]
            extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + np.dtype(_NUMPY[kind]).itemsize
            raw = (ctypes.c_uint8 * extent).from_address(base.ggml_get_data(tensor))
            view = np.ndarray(shape, _NUMPY[kind], raw, strides=strides)
            self._taken.setdefault(name, []).append(view.copy().squeeze())
        return True


@cache
def _ggml_base() -> ctypes.CDLL:
    """The ggml library that llama.cpp itself is linked against, with the two functions used here declared."""
    folder = os.path.join(os.path.dirname(api.__file__), "lib")
    library = ctypes.CDLL(os.path.join(folder, "libggml-base.so"))
    library.ggml_get_name.argtypes, library.ggml_get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
    library.ggml_get_data.argtypes, library.ggml_get_data.restype = [ctypes.c_void_p], ctypes.c_void_p
    return library
