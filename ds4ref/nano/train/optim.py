"""The optimizers: Muon for matrices inside the network, Adam for the rest.

Muon (Jordan et al., 2024) changes a matrix by its momentum, after setting all singular values of this to about one. The
change is scaled to a root mean square of 0.2 (Liu et al., 2025), so that one learning rate suits matrices of all sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

RMS, MOMENTUM, STEPS, DECAY = 0.2, 0.95, 5, 0.02
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the odd polynomial of degree 5 that moves singular values towards one, applied ``STEPS`` times."""
_OUTER = ("embed.", "head.", "hc_", ".gate.", ".ape", "weights_proj")


def orthogonal(m: Tensor) -> Tensor:
    """Return the matrices m (k, rows, columns) with all singular values changed to about one."""
    a, b, c = COEFFICIENTS
    x = m / (m.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.mT if x.shape[1] > x.shape[2] else x
    for _ in range(STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if x.shape == m.shape else x.mT


class Muon(torch.optim.Optimizer):
    """The Muon optimizer, for matrices; those of equal size are processed in one batch."""

    def __init__(self, parameters: Iterable[nn.Parameter]):
        super().__init__(parameters, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            sizes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    momentum.mul_(MOMENTUM).add_(p.grad)
                    sizes[p.shape].append(p)
            for size, parameters in sizes.items():
                ahead = torch.stack([p.grad + MOMENTUM * self.state[p]["momentum"] for p in parameters])
                for p, update in zip(parameters, orthogonal(ahead), strict=True):
                    p.mul_(1 - group["lr"] * DECAY).add_(update, alpha=-group["lr"] * RMS * max(size) ** 0.5)


def optimizers(model: nn.Module, ahead: bool) -> tuple[Muon, torch.optim.Adam]:
    """Return Muon and Adam for the parameters of the block for multi-token prediction (``ahead``), or for all
    others."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad and n.startswith("mtp.") is ahead]
    inner = {n for n, p in named if p.ndim == 2 and not any(part in n for part in _OUTER)}
    adam = torch.optim.Adam([p for n, p in named if n not in inner], betas=(0.9, 0.95))
    return Muon([p for n, p in named if n in inner]), adam
