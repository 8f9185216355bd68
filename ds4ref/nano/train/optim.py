"""The optimizer: Muon for matrices inside the network, Adam for the rest.

Muon (Jordan et al., 2024): a matrix moves along its momentum with all singular values set to about one. The step is
scaled to a root mean square of 0.2 (Liu et al., 2025), so that one learning rate suits all sizes.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

RMS, MOMENTUM, STEPS = 0.2, 0.95, 5
BETAS, EPS = (0.9, 0.95), 1e-8
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that pushes singular values towards one."""


def orthogonal(m: Tensor) -> Tensor:
    """Return matrices (k, rows, columns), rows <= columns, with singular values of about one."""
    a, b, c = COEFFICIENTS
    x = m / (m.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x


def is_inner(name: str, parameter: nn.Parameter) -> bool:
    """Return whether Muon moves this parameter: a matrix between hidden states."""
    outer = ("embed.", "head.", "hc_", ".gate.", ".ape", "weights_proj")
    return parameter.ndim >= 2 and not any(part in name for part in outer)


class Optimizer:
    """Moves the trainable parameters of a model whose names ``includes`` accepts, by the gradients in ``gradient``.

    gradient   one flat float32 tensor; every parameter's ``grad`` is a view of it
    """

    def __init__(self, model: nn.Module, includes: Callable[[str], bool] = lambda name: True, decay: float = 0.02):
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad and includes(name)]
        self.decay, self.steps = decay, 0
        # Muon's parameters first, so that each kind is one piece of the flat tensors.
        named.sort(key=lambda item: not is_inner(*item))
        self.parameters = [p for _, p in named]
        inner = sum(p.numel() for name, p in named if is_inner(name, p))
        total = sum(p.numel() for p in self.parameters)
        zeros = functools.partial(torch.zeros, device=self.parameters[0].device)
        self.gradient, flat = zeros(total), zeros(total)
        self.momentum, self.update = zeros(inner), zeros(inner)
        self.first, self.second = zeros(total - inner), zeros(total - inner)
        self.groups: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        at = 0
        for name, p in named:
            piece = slice(at, at + p.numel())
            flat[piece] = p.detach().flatten()
            p.data = flat[piece].view(p.shape)
            p.grad = self.gradient[piece].view(p.shape)
            if is_inner(name, p):
                self._enter(name, p, piece)
            at += p.numel()
        self.inner, self.outer = flat[:inner], flat[inner:]

    def _enter(self, name: str, p: nn.Parameter, piece: slice) -> None:
        """Group a parameter's matrices by size, stacks and pairs of matrices cut apart."""
        update = self.update[piece].view(p.shape)
        for matrix in update if p.ndim == 3 else [update]:
            for part in matrix.chunk(2) if name.endswith("w13") else [matrix]:
                self.groups[min(part.shape), max(part.shape)].append(part)

    def step(self, muon_rate: float, adam_rate: float) -> None:
        """Move the parameters."""
        self.steps += 1
        n = len(self.momentum)
        gradient = self.gradient[:n]
        self.momentum.mul_(MOMENTUM).add_(gradient)
        ahead = gradient + MOMENTUM * self.momentum
        self.update.copy_(ahead)
        for (_, longest), updates in self.groups.items():
            wide = [u if u.shape[0] <= u.shape[1] else u.T for u in updates]
            for update, result in zip(wide, orthogonal(torch.stack(wide)), strict=True):
                update.copy_(result * longest**0.5 * RMS)
        self.inner.mul_(1 - muon_rate * self.decay).add_(self.update, alpha=-muon_rate)

        gradient = self.gradient[n:]
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.lerp_(gradient.square(), 1 - BETAS[1])
        size = (self.second / (1 - BETAS[1] ** self.steps)).sqrt_().add_(EPS)
        self.outer.addcdiv_(self.first, size, value=-adam_rate / (1 - BETAS[0] ** self.steps))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside the model's weights."""
        return {"steps": self.steps, "momentum": self.momentum, "first": self.first, "second": self.second}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the optimizer from what ``state`` returned."""
        self.steps = state["steps"]
        for name in ("momentum", "first", "second"):
            getattr(self, name).copy_(state[name])
