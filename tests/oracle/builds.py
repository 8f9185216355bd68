"""Right float32 engines that differ as builds of different people do: Hugging Face's model, computed in other ways.

    for name, logits in builds(Oracle.load("tiny.gguf"), ids): ...

as it is       eager attention, torch's own products
sums of 8      every product's sum in blocks of 8 columns, added up one after the other
sums of 64     the same with blocks of 64
iterated rope  frequencies multiplied up one from the other in float32
fast exp       SiLU and softplus off by up to 1e-6
decode         the second half one by one through the cache
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
import torch

from .hf import Oracle
from .surgery import ROPE

LINEAR = torch.nn.functional.linear


def builds(oracle: Oracle, ids: Sequence[int]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each way to compute, and its logits (T, V) float32."""
    functional = torch.nn.functional
    yield "as it is", oracle.logits(ids)
    for size in (8, 64):
        with patch.object(functional, "linear", partial(_blocked, size=size)):
            yield f"sums of {size}", oracle.logits(ids)
    with _iterated(oracle):
        yield "iterated rope", oracle.logits(ids)
    fast = [patch.object(functional, name, _fast(getattr(functional, name))) for name in ("silu", "softplus")]
    with fast[0], fast[1]:
        yield "fast exp", oracle.logits(ids)
    yield "decode", oracle.decode(ids, len(ids) // 2)


def _blocked(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, size: int = 8) -> torch.Tensor:
    total = LINEAR(x[..., :size], weight[:, :size], bias)
    for at in range(size, x.shape[-1], size):
        total = total + LINEAR(x[..., at : at + size], weight[:, at : at + size])
    return total


def _fast(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def approximate(x: torch.Tensor, *rest: object, **more: object) -> torch.Tensor:
        return function(x, *rest, **more) * (1 + 1e-6 * torch.sin(x * 1e3))

    return approximate


@contextmanager
def _iterated(oracle: Oracle) -> Iterator[None]:
    """The main frequencies as products of one factor; the compressed ones off by the rounding that this leaves."""
    tables = [(module, name, getattr(module, name)) for module in oracle.model.modules() if isinstance(module, ROPE)
              for name in ("main_inv_freq", "compress_inv_freq")]  # fmt: skip
    for module, name, right in tables:
        steps = np.arange(len(right))
        plain = right[0].numpy() * np.cumprod(
            np.r_[np.float32(1), np.full(len(right) - 1, (right[1] / right[0]).numpy())]
        )
        off = 1 + 2**-24 * np.sqrt(steps) * np.where(steps % 2, 1, -1)
        wrong = plain if name == "main_inv_freq" else right.numpy() * off
        setattr(module, name, torch.from_numpy(wrong.astype(np.float32)))
    try:
        yield
    finally:
        for module, name, right in tables:
            setattr(module, name, right)
