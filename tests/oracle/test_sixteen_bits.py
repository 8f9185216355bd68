"""Hugging Face's model in bfloat16 and float16 on trained weights: right engines are told so, single rows are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.nano import embedded_path
from ds4ref.test_vectors.diagnosis import Signatures, diagnose
from ds4ref.test_vectors.observation import from_logits
from tests.test_vectors.test_sixteen_bits import own_ids
from tests.test_vectors.tracing import engine, examined

from .test_trace import dumped

pytestmark = pytest.mark.oracle

Change = Callable[[Any], AbstractContextManager[Any]]


def loaded(dtype: str) -> Any:
    """The oracle in float32, or wholly in another type."""
    import torch

    from .hf import Oracle

    oracle = Oracle.load(embedded_path("f16"))
    if dtype != "float32":
        oracle.model = oracle.model.to(getattr(torch, dtype))
    return oracle


@contextmanager
def attention(change: Callable[..., Any]) -> Iterator[None]:
    """While open, ``change(plain, module, q, k, v, mask, *args)`` stands for attention."""
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as modeling

    plain = modeling.eager_attention_forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling, "eager_attention_forward", lambda *args, **kw: change(plain, *args, **kw))
        yield


def missed(rows: Sequence[int]) -> Change:
    """These queries miss nine keys of their window, in every layer."""

    def change(plain: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, *args: Any, **kw: Any) -> Any:
        import torch

        mask = mask.clone()
        for t in rows:
            mask[..., t, max(0, t - 12) : t - 3] = torch.finfo(mask.dtype).min
        return plain(module, q, k, v, mask, *args, **kw)

    return lambda oracle: attention(change)


def off(module: str, row: int, share: float) -> Change:
    """One row of a module's output is off by ``share`` of its size, in every layer."""

    @contextmanager
    def change(oracle: Any) -> Iterator[None]:
        import torch

        def hook(_module: Any, _inputs: Any, output: Any) -> Any:
            out = output.clone()
            rows = out if out.dim() == 2 else out[0]
            size = rows[row].float().pow(2).mean(-1, keepdim=True).sqrt()
            drawn = torch.randn(rows[row].shape, generator=torch.Generator().manual_seed(0))
            rows[row] += (share * size * drawn).to(out.dtype)
            return out

        named = [each for name, each in oracle.model.named_modules() if name.endswith(module)]
        handles = [each.register_forward_hook(hook) for each in named]
        yield
        for handle in handles:
            handle.remove()

    return change


def half_attention(oracle: Any) -> AbstractContextManager[None]:
    """A float32 engine whose attention kernel computes in bfloat16."""

    def change(plain: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, *args: Any, **kw: Any) -> Any:
        out, weights = plain(module, q.bfloat16(), k.bfloat16(), v.bfloat16(), mask.bfloat16(), *args, **kw)
        return out.float(), weights

    return attention(change)


def autocast(dtype: str) -> Change:
    def change(oracle: Any) -> Any:
        import torch

        return torch.autocast("cpu", getattr(torch, dtype))

    return change


RIGHT: dict[str, tuple[str, Change, str]] = {
    # engine: type of the model, what is changed, verdict of diagnose
    "float32": ("float32", nullcontext, "exact"),
    "bfloat16": ("bfloat16", nullcontext, "bfloat16"),
    "float16": ("float16", nullcontext, "float16"),
    "autocast to bfloat16": ("float32", autocast("bfloat16"), "bfloat16"),
    "attention in bfloat16": ("float32", half_attention, "undecided"),  # its logits are float32: no evidence of 16 bits
}


def ran(tmp_path: Path, dtype: str, change: Change) -> Any:
    """The dump of an engine and its token ids."""
    ids = own_ids(engine(path=embedded_path("f16")), 200)
    oracle = loaded(dtype)
    with change(oracle):
        return dumped(oracle, ids, tmp_path), ids


@pytest.mark.parametrize("name", RIGHT)
def test_right_engines_are_told_so(name: str, tmp_path: Path) -> None:
    dtype, change, verdict = RIGHT[name]
    dump, ids = ran(tmp_path, dtype, change)
    result = examined(dump, ids=ids, path=embedded_path("f16"))
    assert not result.wrong, [(wrong.key, wrong.judgement.ratio) for wrong in result.wrong]
    assert set(result.coarse) == ({"kqv_back"} if change is half_attention else set())
    logits = dump.tensors["lm_head.out"][0].load().reshape(len(ids), -1).astype(np.float32)
    found = diagnose(Signatures(engine(path=embedded_path("f16")), ids), from_logits(ids, logits))
    assert found.verdict == verdict, found.notes
    assert found.clean is (verdict != "undecided")


ROWS: dict[str, tuple[Change, str, list[int], str]] = {
    # mistake: what is changed, point that is blamed, its rows, types in which its size is beyond rounding
    "one query misses keys": (missed([64]), "kqv_back", [64], "float32 bfloat16 float16"),
    "a row of queries": (off("self_attn.q_b_proj", 64, 0.12), "Qraw", [64], "float32 bfloat16 float16"),
    "the last row of attention": (off("o_b_proj", 199, 0.12), "attn_out", [199], "float32 bfloat16 float16"),
    "a row of attention, 1e-4": (off("o_b_proj", 64, 1e-4), "attn_out", [64], "float32"),
    "a row of logits": (off("lm_head", 30, 0.05), "result_output", [30], "float32 bfloat16 float16"),
}


@pytest.mark.parametrize(("name", "dtype"), [(name, kind) for name in ROWS for kind in ROWS[name][3].split()])
def test_mistakes_in_single_rows_are_found(name: str, dtype: str, tmp_path: Path) -> None:
    change, point, rows, _ = ROWS[name]
    dump, ids = ran(tmp_path, dtype, change)
    result = examined(dump, ids=ids, path=embedded_path("f16"))
    found = {int(row) for wrong in result.wrong for row in wrong.rows[wrong.judgement.beyond]}
    blamed = {wrong.key[0] for wrong in result.wrong}
    assert blamed == {point}, blamed
    assert found == set(rows), found
