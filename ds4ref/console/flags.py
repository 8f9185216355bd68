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

from ..engine_options import KINDS as OPTION_KINDS
from ..engine_options import flags
from ..numerics import RANGES
from ..targets.dialects import KINDS
from .options import SEED_MAX, choice, integer, number, size

Group = argparse.ArgumentParser | argparse._ArgumentGroup

FLAGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "--help": (("-h",), {"action": "store_true", "help": "show this help"}),
    "--version": ((), {"action": "store_true", "help": "print the version"}),
    # results
    "--json": ((), {"action": "store_true", "help": "one line of JSON instead of text"}),
    "--output": (("-o",), {"metavar": "FILE", "help": "write results there"}),
    "--store": ((), {"metavar": "FILE", "help": "run store to use (the per-user store)"}),
    "--no-store": ((), {"action": "store_true", "help": "do not record this run"}),
    "--label": ((), {"metavar": "TEXT", "help": "name of the run in the store"}),
    "--title": ((), {"metavar": "TEXT", "help": "heading"}),
    "--fail": ((), {"action": "store_true", "help": "exit 1 on any failure"}),
    "--fail-above": ((), {"metavar": "X", "type": number(-1e6, 1e6), "help": "exit 1 above this"}),
    "--fail-below": ((), {"metavar": "X", "type": number(-1e6, 1e6), "help": "exit 1 below this"}),
    # how much
    "--repeat": (("-r",), {"metavar": "N", "type": integer(1, 10_000), "help": "repetitions"}),
    "--tokens": (("-n",), {"metavar": "N", "type": integer(), "help": "tokens to generate"}),
    "--top": ((), {"metavar": "K", "type": integer(), "help": "use only the top K tokens of each position"}),
    "--atol": ((), {"metavar": "F", "type": number(0, 1e6), "help": "largest difference allowed"}),
    "--pack": ((), {"metavar": "NAME", "help": "question pack"}),
    "--only": ((), {"metavar": "NAME", "help": "only these"}),
    "--skip": ((), {"metavar": "LIST", "default": "", "help": "leave these out"}),
    "--force": ((), {"action": "store_true", "help": "overwrite existing output"}),
    "--plot": ((), {"metavar": "FILE", "help": "write a plot: .svg, .png or .pdf"}),
    "--dry-run": ((), {"action": "store_true", "help": "print what would be done, then exit"}),
    "--list": ((), {"action": "store_true", "help": "list what is available, then exit"}),
    "--limit": ((), {"metavar": "N", "type": integer(), "help": "at most N"}),
    "--their-model": (
        (),
        {"metavar": "FILE", "help": "file the other engine loaded, if not -m; checked for differences"},
    ),
    "--key": ((), {"metavar": "NAME", "default": "logits", "help": "array of the .npz (logits)"}),
    "--depths": ((), {"metavar": "LIST", "help": "depths in tokens, separated by commas"}),
    "--budget": ((), {"metavar": "S", "type": number(1, 1e7), "help": "time limit in seconds"}),
    "--tag": ((), {"metavar": "TAG", "help": "tag of the run"}),
    "--seed": ((), {"metavar": "N", "type": integer(0, SEED_MAX), "help": "random seed"}),
    # the model and the local engine
    "--model": (("-m",), {"metavar": "FILE", "help": "GGUF file, or a folder of safetensors"}),
    "--shape": (
        (),
        {
            "metavar": "NAME",
            "type": choice("flash", "pro"),
            "default": "flash",
            "help": "published model to use: flash, pro (flash)",
        },
    ),
    "--recipe": ((), {"metavar": "NAME", "help": "expert formats: q2, q4, mixed"}),
    "--warm-weights": ((), {"action": "store_true", "help": "read the whole model file before timing starts"}),
    "--cpu": ((), {"action": "store_const", "const": "cpu", "dest": "backend", "help": "same as --backend cpu"}),
    "--cuda": ((), {"action": "store_const", "const": "cuda", "dest": "backend", "help": "same as --backend cuda"}),
    "--component": (
        (),
        {"metavar": "NAME", "type": choice("ffn_out", "attn_out"), "help": "output to steer: ffn_out or attn_out"},
    ),
    "--mtp-block": ((), {"action": "store_true", "help": "only the multi-token prediction (MTP) block"}),
    "--ctx": (("-c",), {"metavar": "N", "type": integer(), "help": "context size in tokens"}),
    # prompts
    "--prompt": ((), {"metavar": "TEXT", "help": "the prompt"}),
    "--think": (
        (),
        {"action": "store_const", "const": "high", "dest": "think", "help": "think before answering (default)"},
    ),
    "--think-max": ((), {"action": "store_const", "const": "max", "dest": "think", "help": "think without limit"}),
    "--nothink": ((), {"action": "store_const", "const": "none", "dest": "think", "help": "answer without thinking"}),
    "--temp": ((), {"metavar": "F", "type": number(*RANGES["temperature"]), "help": "temperature; 0 is greedy"}),
    "--top-p": (
        (),
        {"metavar": "F", "type": number(*RANGES["top_p"]), "help": "top-p (nucleus) sampling; 1 is off (1)"},
    ),
    "--min-p": (
        (),
        {"metavar": "F", "type": number(*RANGES["min_p"]), "help": "drop tokens less likely than F times the best"},
    ),
    "--prompt-file": ((), {"metavar": "FILE", "help": "read the prompt from a file (- is stdin)"}),
    "--prompts": ((), {"metavar": "FILE", "help": "prompts as JSON lines"}),
    "--system": (("-sys",), {"metavar": "TEXT", "help": "system prompt"}),
    "--text": ((), {"metavar": "FILE", "help": "text file"}),
    "--token-ids": ((), {"metavar": "FILE", "help": "JSON list of token ids"}),
    # many at once
    "--concurrency": ((), {"metavar": "N", "help": "concurrent requests"}),
    "--scheduler": (
        (),
        {"metavar": "WHERE", "help": "Dask scheduler: address (tcp://HOST:PORT) or scheduler file"},
    ),
    "--workers": ((), {"metavar": "N", "type": integer(1, 1024), "help": "local worker processes (1)"}),
    "--resume": ((), {"metavar": "RUN", "help": "resume a stopped run"}),
    # targets
    "--target": ((), {"metavar": "SPEC", "help": "local[:MODEL.gguf], http(s)://HOST/v1 or command:BINARY ARGS"}),
    "--api": ((), {"metavar": "NAME", "help": "endpoint API"}),
    "--model-name": ((), {"metavar": "NAME", "help": "HTTP: model name to request (the server's only model)"}),
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
            "help": f"HTTP: server type, sets which fields are sent: {', '.join(KINDS)} (probe: detect it)",
        },
    ),  # fmt: skip
    "--timeout": (
        (),
        {"metavar": "S", "type": number(0.1, 1e6), "help": "seconds to wait for the target's next response"},
    ),
}
"""Shared flags by long name: (other spellings, keyword arguments of argparse's ``add_argument``)."""


def _check(takes: Any) -> dict[str, Any]:
    """Return how argparse checks what an engine's option takes (``engine_options.option``)."""
    if takes is None:
        return {}
    if takes == "size":
        return {"type": size("auto", "off")}
    kinds: dict[type, Any] = {str: choice, int: integer, float: number}
    return {"type": kinds[type(takes[0])](*takes)}


for each in flags(*OPTION_KINDS):
    about = each.metadata
    if about["metavar"]:
        FLAGS[about["flag"]] = (
            about["short"],
            {
                "metavar": about["metavar"],
                "help": about["help"],
                **_check(about["takes"]),
            },
        )
    else:
        FLAGS[about["flag"]] = (), {"action": "store_true", "help": about["help"]}


def add(group: Group, name: str, *aliases: str, **own: Any) -> None:
    """Add the shared flag ``name`` to a parser or group.

    aliases   further spellings, as other tools have them
    own       overrides of help, default, dest or action, or a narrower check as ``type``
    """
    short, settings = FLAGS[name]
    dest = {"dest": name.removeprefix("--").replace("-", "_")}  # not an alias's
    group.add_argument(*short, *aliases, name, **{**dest, **settings, **own})
