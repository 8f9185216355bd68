"""The options of an engine, each declared once.

A field of ``EngineOptions`` is a keyword of ``Engine.open`` and a setting of a cluster's workers. Its metadata make it
a flag of every command that opens a model (``console.model.add_engine``). Drafts, steering and clusters have options of
their own, which are flags in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from .backends import BACKENDS, DEFAULT_BACKEND
from .errors import UsageError
from .numerics import DEFAULT_MODE, MODES

if TYPE_CHECKING:
    import numpy as np

DRAFTS = "off", "auto", "lookup", "mtp", "dspark"
SPLITS = "unicode", "ds4"
TEMPLATES = "may", "0731", "v4.1"
UNSTEERED = "a model on a cluster is not steered: one machine, or no directions"
MOST_DRAFTED = 7
"""Most drafted tokens that one pass verifies: a pass holds 8 rows, the first of which is the pending token."""
PATIENCE = 15.0
"""Seconds without a sign of life after which a cluster's worker counts as lost; also how long to wait for a missing
one."""


def option(default: Any, flag: str = "", metavar: str = "", takes: Any = None, help: str = "", *short: str) -> Any:
    """Return a field that is also a flag, unless ``flag`` is "".

    takes   which values the flag takes: a tuple of names; a tuple of the lowest and the highest number; "size": bytes,
            "auto" or "off"; None: any text, or no value for a field that is False by default
    help    what the flag does
    short   other spellings of the flag
    """
    about = {"flag": flag, "short": short, "metavar": metavar, "takes": takes, "help": help}
    return field(default=default, metadata=about if flag else {})


@dataclass(frozen=True)
class Drafting:
    """Settings of speculative decoding: what drafts tokens, several of which are then verified in one pass. The
    generated text does not change.

    kind    "off"; "lookup" (what followed the same tokens earlier in the conversation), "mtp" (the block for
            multi-token prediction), "dspark" (the drafter of later checkpoints), or "auto": lookup and the file's
            drafter, at each step the one that promises more
    mtp     file of that drafter, or a published folder that has it; needed for "mtp" and "dspark"
    most    maximum number of drafted tokens per pass, capped at ``MOST_DRAFTED``
    margin  "mtp": the second of two drafted tokens is dropped if its two best logits are closer than this
    confidence  "dspark": a draft ends before the first token whose chance to be accepted is below this
    depth   number of drafted tokens per pass; 0: as many as pay off, at most ``most``. Fixed depths are for
            measurements.
    """

    kind: str = option("off", "--draft", "NAME", DRAFTS,
        "speculative decoding; does not change the text. lookup: n-gram lookup in the context; mtp: the model's MTP "
        "block; dspark: its DSpark drafter; auto: use them where they pay; off (off)")  # fmt: skip
    mtp: str | os.PathLike[str] | None = option(
        None, "--mtp", "FILE", None, "file, or published folder, of the drafter: an MTP block or DSpark"
    )
    most: int = option(
        MOST_DRAFTED,
        "--mtp-draft",
        "N",
        (1, 16),
        "maximum draft tokens per pass, capped at 7; 1 turns drafting off (7)",
    )
    margin: float = option(3.0, "--mtp-margin", "F", (0.0, 1000.0),
        "drop the second of two MTP drafts if its top two logits are closer than this (3)")  # fmt: skip
    confidence: float = option(0.0, "--dspark-confidence", "P", (0.0, 1.0),
        "end a DSpark draft before the first token with a chance below P (0)")  # fmt: skip
    depth: int = 0


@dataclass(frozen=True, eq=False)
class Steering:
    """Steering directions, which are removed from the output of each attention and FFN half of a layer
    (``archs.steering``).

    directions  a file, or an array (layers, width) float32
    attn, ffn   scale for the output of attention, and of the FFN: 1 removes a direction of unit length completely, 0
                nothing; negative amplifies
    """

    directions: np.ndarray | str | os.PathLike[str] = option(
        MISSING, "--dir-steering-file", "FILE", None, "steering directions, made by ds4 steer build"
    )
    attn: float = option(0.0, "--dir-steering-attn", "F", (-100.0, 100.0),
        "steering scale after attention; negative amplifies (0)")  # fmt: skip
    ffn: float = option(1.0, "--dir-steering-ffn", "F", (-100.0, 100.0),
        "steering scale after the FFN; negative amplifies (1 with a file and no other scale, else 0)")  # fmt: skip


@dataclass(frozen=True)
class ClusterSettings:
    """How the layers of a model are distributed over the workers of a cluster.

    where      address of the Dask scheduler, its scheduler file, or a ``distributed.Client``
    layers     "0-20@a,21-42@b": layers and the names or addresses of workers; None: workers get about equal bytes
    patience   seconds without a sign of life after which a worker counts as lost
    tell       called with each line of text to show to the user
    """

    where: Any = option(MISSING, "--cluster", "WHERE", None,
        "split layers across Dask workers: scheduler address (tcp://HOST:PORT) or scheduler file")  # fmt: skip
    layers: str | None = option(None, "--layers", "LIST", None,
        "with --cluster: layers per worker, 0-20@a,21-42@b (by bytes)")  # fmt: skip
    patience: float = PATIENCE
    tell: Callable[[str], None] | None = None


@dataclass(frozen=True)
class EngineOptions:
    """How a model is opened: the keywords of ``Engine.open``.

    backend       "cpu": compiled kernels; "reference": plain NumPy, slow and readable; "cuda": an NVIDIA GPU
    numerics      rounding mode (``numerics.MODES``)
    threads       CPU threads (None: the backend's own choice)
    strict        accept only the exact dimensions and metadata of DeepSeek V4 Flash or Pro (docs/explanation/model.md
                  2.1)
    split         how the tokenizer cuts text before merging: "unicode" as the model was trained, or "ds4"
    template      format of prompts and answers of DeepSeek V4 (docs/explanation/text.md 3): "may" (as ds4), "0731" or
                  "v4.1"; None: the checkpoint's
    template_escapes  "off": escape nothing, as the official encoder; has no effect with the template "may"
    advise        prefetch routed experts from disk once they are chosen, which pays when the model does not fit into
                  memory (None: do so if the file is larger than the memory this process may use)
    expert_cache  bytes of memory for routed experts that are read from disk when they are chosen, for a model larger
                  than memory (backend cpu, GGUF); "off"; None or "auto": if the file is larger than the memory this
                  process may use, four fifths of what is free less all other weights. The experts that
                  MODEL.experts.json beside the file lists are read first.
    gpu_memory    GiB that the backend cuda may use (None: DS4_GPU_MEMORY, else all of it)
    drafts        speculative decoding (None: none)
    steering      steering directions, applied in all sessions (None: none)
    cluster       a Dask scheduler (address, scheduler file or client) on whose workers the layers lie, or
                  ``ClusterSettings``; each worker maps the file at the same path (docs/how-to/cluster.md). ``backend``
                  and ``threads`` are then each worker's; options that a cluster does not support are refused.
    """

    backend: str = option(
        DEFAULT_BACKEND,
        "--backend",
        "NAME",
        tuple(BACKENDS),
        "cpu: compiled kernels; reference: plain NumPy, slow and readable; cuda: an NVIDIA GPU (cpu)",
    )
    numerics: str = option(
        DEFAULT_MODE,
        "--numerics",
        "MODE",
        tuple(MODES),
        "rounding mode. exact: none, like Hugging Face in float32; qat: the KV cache rounding used in training; ds4: "
        f"qat plus ds4's integer activations ({DEFAULT_MODE})",
    )
    threads: int | None = option(None, "--threads", "N", (1, 2**31 - 1), "CPU threads (all performance cores)", "-t")
    strict: bool = option(False, "--strict", help="accept only DeepSeek V4 Flash or Pro; check every metadata key")
    split: str = option("unicode", "--split", "NAME", SPLITS,
        "pre-tokenizer: unicode (as in training), or ds4 (as ds4 splits text) (unicode)")  # fmt: skip
    template: str | None = option(None, "--template", "NAME", TEMPLATES,
        "prompt format: may (as ds4), 0731 or v4.1 (the checkpoint's; see ds4 --inspect)")  # fmt: skip
    template_escapes: str = option("on", "--template-escapes", "SWITCH", ("on", "off"),
        "escape closing tags inside names, values and results; off: as the official encoder (on)")  # fmt: skip
    advise: bool | None = None
    expert_cache: int | str | None = option(None, "--expert-cache", "SIZE", "size",
        "RAM for caching experts loaded from disk on demand: a size (32GB), off, or auto: on if the model exceeds "
        "memory (auto)")  # fmt: skip
    gpu_memory: float | None = option(
        None, "--gpu-memory", "GIB", (0.001, 1e6), "GPU memory limit (DS4_GPU_MEMORY, else all)"
    )
    drafts: Drafting | None = None
    steering: Steering | None = None
    cluster: Any = None


def flags(*kinds: type) -> Iterator[Field[Any]]:
    """Yield the fields of these option classes that are also flags."""
    return (each for kind in kinds for each in fields(kind) if each.metadata)


def dest(flag: str) -> str:
    """Return the attribute name under which argparse stores the value of ``flag``."""
    return flag.removeprefix("--").replace("-", "_")


KINDS = EngineOptions, Drafting, Steering, ClusterSettings


def check_on_cluster(options: EngineOptions) -> None:
    """Raise UsageError for an option that is not supported on a cluster."""
    if options.drafts is not None:
        raise UsageError("speculative decoding is not supported on a cluster: turn drafting off")
    if options.steering is not None:
        raise UsageError(UNSTEERED)
    if options.expert_cache not in (None, "auto", "off"):
        raise UsageError("the expert cache is not supported on a cluster: each worker maps the experts of its layers")
    if options.advise is not None:
        raise UsageError("advise is not supported on a cluster: each worker decides for its layers")
    if options.gpu_memory is not None:
        raise UsageError("GPU memory cannot be set on a cluster: workers use backend cpu or reference")
