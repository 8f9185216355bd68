"""Flags shared by several commands, declared once with the same name, placeholder, check and meaning everywhere.

    add(group, "--store")
    add(parser, "--timeout", default=120.0, help="seconds to wait for an answer (120)")

A command may change the help and the default of a shared flag, but neither its name nor the values it takes. A test
checks the parsers of all commands: a flag that two of them have must be declared here.

What the same names mean:

* ``-o``, ``--output``: where results go. A file or folder; where a command has results in several forms, the bare name
  of a form (csv, md, json, jsonl) means that form on stdout.
* ``--json``: one line of JSON on stdout instead of readable text.
* ``--fail``, ``--fail-below``, ``--fail-on``: conditions under which the command exits with 1.
* ``-r``, ``--repeat``: number of repetitions; ``-n``, ``--tokens``: number of tokens to generate.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..engine_options import KINDS as OPTION_KINDS
from ..engine_options import flags
from ..numerics import RANGES
from ..runs.shards import parse as parse_shard
from ..targets.dialects import KINDS
from .options import SEED_MAX, choice, integer, number, size

Group = argparse.ArgumentParser | argparse._ArgumentGroup

Flag = tuple[tuple[str, ...], dict[str, Any]]
"""A flag: its other spellings, and keyword arguments of argparse's ``add_argument``."""


def _value(metavar: str, help: str, *short: str, **settings: Any) -> Flag:
    """Return a flag that takes a value."""
    return short, {"metavar": metavar, "help": help, **settings}


def _on(help: str, *short: str, **settings: Any) -> Flag:
    """Return a flag without a value; with ``const`` and ``dest`` it stores that constant there."""
    return short, {"action": "store_const" if settings else "store_true", "help": help, **settings}


FLAGS: dict[str, Flag] = {
    "--help": _on("show this help", "-h"),
    "--version": _on("print the version"),
    # results
    "--json": _on("one line of JSON instead of text"),
    "--output": _value("FILE", "write results there", "-o"),
    "--csv": _value("FILE", "CSV file (stdout if that is not a terminal)"),
    "--store": _value("FILE", "run store to use (the per-user store)"),
    "--no-store": _on("do not record this run"),
    "--label": _value("TEXT", "name of the run in the store"),
    "--title": _value("TEXT", "heading"),
    "--fail": _on("exit 1 on any failure"),
    "--fail-below": _value("X", "exit 1 below this", type=number(-1e6, 1e6)),
    # how much
    "--repeat": _value("N", "repetitions", "-r", type=integer(1, 10_000)),
    "--tokens": _value("N", "tokens to generate", "-n", type=integer()),
    "--top": _value("K", "use only the top K tokens of each position", type=integer()),
    "--atol": _value("F", "largest difference allowed", type=number(0, 1e6)),
    "--pack": _value("NAME", "question pack"),
    "--only": _value("NAME", "only these"),
    "--force": _on("overwrite existing output"),
    "--plot": _value("FILE", "write a plot: .svg, .png or .pdf"),
    "--dry-run": _on("print what would be done, then exit"),
    "--list": _on("list what is available, then exit"),
    "--limit": _value("N", "at most N", type=integer()),
    "--their-model": _value("FILE", "file the other engine loaded, if not -m"),
    "--key": _value("NAME", "array of the .npz (logits)", default="logits"),
    "--depths": _value("LIST", "depths in tokens, separated by commas"),
    "--quick": _on("fewer and shorter requests, no long context"),
    "--shard": _value(
        "I/N", "do only this share of the run, in -o's folder; auto: by Slurm, auto/N: Kubernetes", type=parse_shard
    ),
    "--budget": _value("S", "time limit in seconds", type=number(1, 1e7)),
    "--tag": _value("TAG", "tag of the run"),
    "--seed": _value("N", "random seed", type=integer(0, SEED_MAX)),
    # the model and the local engine
    "--model": _value("FILE", "GGUF file, or a folder of safetensors", "-m"),
    "--shape": _value(
        "NAME", "published model to use: flash, pro (flash)", type=choice("flash", "pro"), default="flash"
    ),
    "--recipe": _value("NAME", "expert formats: q2, q4, mixed"),
    "--warm-weights": _on("read the whole model file before timing starts"),
    "--cpu": _on("same as --backend cpu", const="cpu", dest="backend"),
    "--cuda": _on("same as --backend cuda", const="cuda", dest="backend"),
    "--component": _value("NAME", "output to steer: ffn_out or attn_out", type=choice("ffn_out", "attn_out")),
    "--mtp-block": _on("only the multi-token prediction (MTP) block"),
    "--ctx": _value("N", "context size in tokens", "-c", type=integer()),
    # prompts
    "--prompt": _value("TEXT", "the prompt"),
    "--think": _on("think before answering (default)", const="high", dest="think"),
    "--think-low": _on("think briefly; as --think but for checkpoints since July 2026", const="low", dest="think"),
    "--think-max": _on("think without limit", const="max", dest="think"),
    "--nothink": _on("answer without thinking", const="none", dest="think"),
    "--temp": _value("F", "temperature; 0 is greedy", type=number(*RANGES["temperature"])),
    "--top-p": _value("F", "top-p (nucleus) sampling; 1 is off (1)", type=number(*RANGES["top_p"])),
    "--min-p": _value("F", "drop tokens less likely than F times the best", type=number(*RANGES["min_p"])),
    "--prompt-file": _value("FILE", "read the prompt from a file (- is stdin)"),
    "--prompts": _value("FILE", "prompts as JSON lines"),
    "--system": _value("TEXT", "system prompt", "-sys"),
    "--text": _value("FILE", "text file"),
    "--token-ids": _value("FILE", "JSON list of token ids"),
    # many at once
    "--concurrency": _value("N", "concurrent requests"),
    "--workers": _value("N", "local worker processes (1)", type=integer(1, 1024)),
    "--resume": _value("RUN", "resume a stopped run"),
    # targets
    "--target": _value("SPEC", "local[:MODEL.gguf], http(s)://HOST/v1 or command:BINARY ARGS"),
    "--api": _value("NAME", "endpoint API"),
    "--model-name": _value("NAME", "HTTP: model name to request (the server's only model)"),
    "--key-env": _value("NAME", "HTTP: environment variable with the API key (DS4_API_KEY)", default="DS4_API_KEY"),
    "--dialect": _value(
        "KIND",
        f"HTTP: server type, sets which fields are sent: {', '.join(KINDS)} (probe: detect it)",
        type=choice(*KINDS),
        default="probe",
    ),
    "--timeout": _value("S", "seconds to wait for the target's next response", type=number(0.1, 1e6)),
}
"""Shared flags by long name."""


def _check(takes: Any) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` that check a flag's value; ``takes`` as in ``engine_options.option``."""
    if takes is None:
        return {}
    if takes == "size":
        return {"type": size("auto", "off")}
    kinds: dict[type, Any] = {str: choice, int: integer, float: number}
    return {"type": kinds[type(takes[0])](*takes)}


for each in flags(*OPTION_KINDS):
    about = each.metadata
    if about["metavar"]:
        entry = _value(about["metavar"], about["help"], *about["short"], **_check(about["takes"]))
    else:
        entry = _on(about["help"])
    FLAGS[about["flag"]] = entry


def add(group: Group, name: str, *aliases: str, **own: Any) -> None:
    """Add the shared flag ``name`` to a parser or group.

    aliases   further spellings, as other tools have them
    own       overrides of help, default, dest or action, or a narrower check as ``type``
    """
    short, settings = FLAGS[name]
    dest = {"dest": name.removeprefix("--").replace("-", "_")}  # named after the flag, not after an alias
    group.add_argument(*short, *aliases, name, **{**dest, **settings, **own})
