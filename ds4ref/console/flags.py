"""Flags shared by several commands, declared once with the same name, placeholder, check and meaning everywhere.

    add(group, "--store")
    add(parser, "--timeout", default=120.0, help="seconds to wait for an answer (120)")

A command may change the help and the default of a shared flag, but not its name and its values. A test checks the
parsers of all commands: a flag that two of them have must be declared here.

What the same names mean:

* ``-o``, ``--output``: where results go. A file or folder; where a command has results in several forms, the bare name
  of a form (csv, md, json, jsonl) means that form on stdout.
* ``--json``: one line of JSON on stdout instead of readable text.
* ``--fail``, ``--fail-above``, ``--fail-below``, ``--fail-on``: gates. A gate that is not passed exits 1.
* ``-r``, ``--repeat``: number of repetitions; ``-n``, ``--tokens``: number of tokens to generate.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..backends import BACKENDS, DEFAULT_BACKEND
from ..numerics import MODES, RANGES
from ..targets.dialects import KINDS
from .options import SEED_MAX, choice, integer, number, size

DRAFTS = "off", "auto", "lookup", "mtp"
STREAM_FORMATS = "f32", "bf16"

Group = argparse.ArgumentParser | argparse._ArgumentGroup

FLAGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "--help": (("-h",), {"action": "store_true", "help": "this text"}),
    "--version": ((), {"action": "store_true", "help": "version"}),
    # results
    "--json": ((), {"action": "store_true", "help": "one line of JSON instead of text"}),
    "--output": (("-o",), {"metavar": "FILE", "help": "write results there"}),
    "--store": ((), {"metavar": "FILE", "help": "run store (the user's own)"}),
    "--no-store": ((), {"action": "store_true", "help": "keep no record of this run"}),
    "--label": ((), {"metavar": "TEXT", "help": "name of the run in the store"}),
    "--title": ((), {"metavar": "TEXT", "help": "heading"}),
    "--fail": ((), {"action": "store_true", "help": "exit 1 if anything is bad"}),
    "--fail-above": ((), {"metavar": "X", "type": number(-1e6, 1e6), "help": "exit 1 above this"}),
    "--fail-below": ((), {"metavar": "X", "type": number(-1e6, 1e6), "help": "exit 1 below this"}),
    # how much
    "--repeat": (("-r",), {"metavar": "N", "type": integer(1, 10_000), "help": "how often everything is done"}),
    "--tokens": (("-n",), {"metavar": "N", "type": integer(), "help": "tokens to generate"}),
    "--top": ((), {"metavar": "K", "type": integer(), "help": "use only the K best of every position"}),
    "--atol": ((), {"metavar": "F", "type": number(0, 1e6), "help": "largest difference allowed"}),
    "--pack": ((), {"metavar": "NAME", "help": "a pack of questions"}),
    "--grader": (
        (),
        {
            "metavar": "NAME",
            "type": choice("ours", "ds4"),
            "default": "ours",
            "help": "whose rules grade: ours, or ds4's own (ours)",
        },
    ),
    "--only": ((), {"metavar": "NAME", "help": "only these"}),
    "--skip": ((), {"metavar": "LIST", "default": "", "help": "leave these out"}),
    "--force": ((), {"action": "store_true", "help": "replace what is there"}),
    "--plot": ((), {"metavar": "FILE", "help": "draw a picture: .svg, .png or .pdf"}),
    "--dry-run": ((), {"action": "store_true", "help": "say what would be done, and stop"}),
    "--list": ((), {"action": "store_true", "help": "list what there is, and stop"}),
    "--limit": ((), {"metavar": "N", "type": integer(), "help": "at most N"}),
    "--layers": ((), {"metavar": "LIST", "help": "these layers: 0,2-5"}),
    "--their-model": ((), {"metavar": "FILE", "help": "the file that engine reads, if not -m: is it the file?"}),
    "--key": ((), {"metavar": "NAME", "default": "logits", "help": "array of the .npz (logits)"}),
    "--depths": ((), {"metavar": "LIST", "help": "depths in tokens, separated by commas"}),
    "--budget": ((), {"metavar": "S", "type": number(1, 1e7), "help": "seconds that it may take"}),
    "--tag": ((), {"metavar": "TAG", "help": "tag of the run"}),
    "--seed": ((), {"metavar": "N", "type": integer(0, SEED_MAX), "help": "repeatable draws"}),
    # the model and the local engine
    "--model": (("-m",), {"metavar": "FILE", "help": "GGUF file, or a folder of safetensors"}),
    "--strict": (
        (),
        {"action": "store_true", "help": "insist on DeepSeek V4 Flash or Pro: every metadata key checked"},
    ),
    "--shape": (
        (),
        {
            "metavar": "NAME",
            "type": choice("flash", "pro"),
            "default": "flash",
            "help": "a published model's: flash, pro (flash)",
        },
    ),
    "--recipe": ((), {"metavar": "NAME", "help": "formats of the experts: q2, q4, mixed"}),
    "--warm-weights": ((), {"action": "store_true", "help": "read the whole file before starting the clock"}),
    "--backend": (
        (),
        {"metavar": "NAME", "type": choice(*BACKENDS), "help": f"{', '.join(BACKENDS)} ({DEFAULT_BACKEND})"},
    ),
    "--cpu": ((), {"action": "store_const", "const": "cpu", "dest": "backend", "help": "the same as --backend cpu"}),
    "--cuda": ((), {"action": "store_const", "const": "cuda", "dest": "backend", "help": "the same as --backend cuda"}),
    "--gpu-memory": (
        (),
        {"metavar": "GIB", "type": number(0.001, 1e6), "help": "GPU memory to use at most (DS4_GPU_MEMORY, else all)"},
    ),
    "--expert-cache": (
        (),
        {
            "metavar": "SIZE",
            "type": size("auto", "off"),
            "help": "memory for experts that are read from disk when they are chosen: 32GB, off, or auto: if the model "
            "is larger than memory (auto)",
        },
    ),
    "--numerics": ((), {"metavar": "MODE", "type": choice(*MODES), "help": f"what is rounded: {', '.join(MODES)}"}),
    "--threads": (("-t",), {"metavar": "N", "type": integer(), "help": "CPU threads (all performance cores)"}),
    "--draft": (
        (),
        {
            "metavar": "NAME",
            "type": choice(*DRAFTS),
            "help": "guess tokens and check several in one pass; the text is the same. lookup: what followed the same "
            "words before; mtp: the model's block for it; auto: what pays; off (off)",
        },
    ),
    "--dir-steering-file": (
        (),
        {"metavar": "FILE", "help": "directions to remove from what the half layers add (ds4 steer build makes one)"},
    ),
    "--dir-steering-ffn": (
        (),
        {
            "metavar": "F",
            "type": number(-100, 100),
            "help": "scale after the feed-forward half; negative amplifies (1 with a file and no other scale, else 0)",
        },
    ),
    "--dir-steering-attn": ((), {"metavar": "F", "type": number(-100, 100), "help": "scale after attention (0)"}),
    "--component": (
        (),
        {"metavar": "NAME", "type": choice("ffn_out", "attn_out"), "help": "what half of a layer adds"},
    ),
    "--mtp-block": ((), {"action": "store_true", "help": "the block for multi-token prediction, not the model"}),
    "--mtp": ((), {"metavar": "FILE", "help": "file, or published folder, of the block for multi-token prediction"}),
    "--mtp-draft": (
        (),
        {
            "metavar": "N",
            "type": integer(1, 16),
            "help": "most tokens to guess at once, never more than 7; 1 is off (7)",
        },
    ),
    "--mtp-margin": (
        (),
        {
            "metavar": "F",
            "type": number(0, 1000),
            "help": "of two guesses of the block, drop the second if its two best logits are closer than this (3)",
        },
    ),
    "--ctx": (("-c",), {"metavar": "N", "type": integer(), "help": "context, tokens"}),
    # prompts
    "--prompt": ((), {"metavar": "TEXT", "help": "the prompt"}),
    "--think": (
        (),
        {"action": "store_const", "const": "high", "dest": "think", "help": "think before answering (default)"},
    ),
    "--think-max": ((), {"action": "store_const", "const": "max", "dest": "think", "help": "think without limit"}),
    "--nothink": ((), {"action": "store_const", "const": "none", "dest": "think", "help": "answer at once"}),
    "--temp": ((), {"metavar": "F", "type": number(*RANGES["temperature"]), "help": "temperature; 0 is greedy"}),
    "--top-p": ((), {"metavar": "F", "type": number(*RANGES["top_p"]), "help": "nucleus mass (1)"}),
    "--min-p": (
        (),
        {"metavar": "F", "type": number(*RANGES["min_p"]), "help": "least share of the best token's probability"},
    ),
    "--prompt-file": ((), {"metavar": "FILE", "help": "text of the prompt (- is stdin)"}),
    "--prompts": ((), {"metavar": "FILE", "help": "JSON lines of prompts"}),
    "--system": (("-sys",), {"metavar": "TEXT", "help": "system text"}),
    "--text": ((), {"metavar": "FILE", "help": "a text"}),
    "--token-ids": ((), {"metavar": "FILE", "help": "JSON list of token ids"}),
    # many at once
    "--concurrency": ((), {"metavar": "N", "help": "requests at once"}),
    "--scheduler": (
        (),
        {"metavar": "WHERE", "help": "a Dask scheduler: its address (tcp://HOST:PORT), or its scheduler file"},
    ),
    "--workers": ((), {"metavar": "N", "type": integer(1, 1024), "help": "processes of this machine (1)"}),
    "--resume": ((), {"metavar": "RUN", "help": "go on with a stopped run"}),
    "--cluster": (
        (),
        {
            "metavar": "WHERE",
            "help": "layers over the workers of a Dask scheduler: its address (tcp://HOST:PORT), or its scheduler file",
        },
    ),
    "--stream-format": (
        (),
        {
            "metavar": "NAME",
            "type": choice(*STREAM_FORMATS),
            "help": "between workers: f32, or bf16, which halves the bytes and changes results (f32)",
        },
    ),
    # targets
    "--target": ((), {"metavar": "SPEC", "help": "local[:MODEL.gguf], http(s)://HOST/v1 or command:BINARY ARGS"}),
    "--api": ((), {"metavar": "NAME", "help": "API of the endpoint"}),
    "--model-name": ((), {"metavar": "NAME", "help": "HTTP: model to ask for (the server's only one)"}),
    "--key-env": (
        (),
        {
            "metavar": "NAME",
            "default": "DS4_API_KEY",
            "help": "HTTP: environment variable with the API key (DS4_API_KEY)",
        },
    ),  # fmt: skip
    "--dialect": (
        (),
        {
            "metavar": "KIND",
            "type": choice(*KINDS),
            "default": "probe",
            "help": f"HTTP: the kind of server decides what is sent: {', '.join(KINDS)} (probe)",
        },
    ),  # fmt: skip
    "--timeout": (
        (),
        {"metavar": "S", "type": number(0.1, 1e6), "help": "seconds to wait for a target's next answer"},
    ),
}
"""Shared flags by long name: (other spellings, keyword arguments of argparse's ``add_argument``)."""


def add(group: Group, name: str, *aliases: str, **own: Any) -> None:
    """Add the shared flag ``name`` to a parser or group.

    aliases   further spellings, as other tools have them
    own       overrides of help, default, dest or action, or a narrower check as ``type``
    """
    short, settings = FLAGS[name]
    dest = {"dest": name.removeprefix("--").replace("-", "_")}  # not an alias's
    group.add_argument(*short, *aliases, name, **{**dest, **settings, **own})
