"""Other programs on the same work: ggml's dot products, torch's float32 products, llama.cpp on the same file."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from .context import Context
from .goals import FORMATS, GEMM_TOKENS
from .timing import OutOfTime, interleave, ratios
from .worker import Worker


def need(context: Context, module: str) -> None:
    """Raise OutOfTime, which becomes a note in the rows, unless peers are requested and ``module`` is installed."""
    if not context.peers:
        raise OutOfTime("a peer: not without --peers")
    if importlib.util.find_spec(module) is None:
        raise OutOfTime(f"{module} is not installed")


def ggml(context: Context) -> None:
    """Measure the rows "ggml ...": row products of ggml and ours in the same loop, on the same weights, all threads."""
    need(context, "llama_cpp")
    from .ggml import against_ours

    for fmt in ("Q8_0", "Q4_K", "Q2_K", "IQ2_XXS"):
        megabytes, rounds = (64, 3) if context.quick else (128, 11)
        context.add(f"ggml {fmt}", against_ours(fmt, FORMATS[fmt], context.threads, megabytes, rounds))


def torch(context: Context) -> None:
    """Measure the rows "gemm <format> <tokens>" of the CPU table: products of many tokens against torch float32."""
    need(context, "torch")
    size = {"rows": 4096, "n": 2048, "matrices": 4}
    with Worker("torch", "-", context.threads) as theirs, Worker("gemm", "-", context.threads) as ours:
        for tokens in GEMM_TOKENS:
            arms = {"torch": partial(theirs.ask, "gemm", tokens=tokens, **size)}
            arms |= {fmt: partial(ours.ask, "gemm", tokens=tokens, fmt=fmt, **size) for fmt in FORMATS}
            samples = interleave(arms, context.rounds)
            for fmt in FORMATS:
                context.add(f"gemm {fmt} {tokens}", ratios(samples["torch"], samples[fmt]))


@contextlib.contextmanager
def busy_thread() -> Iterator[None]:
    """Context manager that keeps one core busy with another process."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def llama(context: Context) -> None:
    """Measure the rows "llama ...", "busy" and "busy ours" of the CPU table: decode and prefill against llama.cpp."""
    need(context, "llama_cpp")
    tokens = 4 if context.quick else 8
    with Worker("ours", context.model, context.threads) as ours:
        with Worker("llama", context.model, context.threads) as theirs:
            sides = {"ours": ours, "theirs": theirs}
            decode = {name: partial(side.ask, "decode", tokens=tokens) for name, side in sides.items()}
            prefill = {name: partial(side.ask, "prefill", tokens=512) for name, side in sides.items()}
            alone = interleave(decode, context.rounds)
            note = "{:.1f} ms against {:.1f} ms a token".format(*(1e3 * sorted(alone[n])[0] for n in sides))
            context.add("llama decode", ratios(alone["theirs"], alone["ours"]), f"best: {note}")
            samples = interleave(prefill, max(2, context.rounds // 2))
            best = "{:.0f} against {:.0f} tok/s".format(*(512 / sorted(samples[n])[0] for n in sides))
            context.add("llama prefill", ratios(samples["theirs"], samples["ours"]), f"best: {best}")
            with busy_thread():
                beside = interleave(decode, context.rounds)
            context.add("busy", ratios(beside["theirs"], beside["ours"]))
            context.add("busy ours", ratios(beside["ours"], alone["ours"]))
