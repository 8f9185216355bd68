"""Train the embedded model, or go on.

    python -m ds4ref.nano.train out/nano --hours 2        from the folder's checkpoint, if there is one
    python -m ds4ref.nano.train out/nano --finish 600     bring the learning rate to zero within 600 steps, then stop
    python -m ds4ref.nano.train out/nano --hours 2 --descend 0.4      the same within the last 0.4 of the time
    python -m ds4ref.nano.train out/new --from FOLDER     from published weights, with a new optimizer
    python -m ds4ref.nano.train out/nano --plot           curves.png of the log so far
    python -m ds4ref.nano.train out/nano --export FOLDER  the checkpoint as safetensors

It runs on a GPU, if there is one, else in two processes. It may be stopped at any time: a checkpoint is written every
two minutes and at the end.
"""

from __future__ import annotations

import argparse
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from ..skills import vocabulary
from .export import write_folder
from .loop import PLAN, Settings, train
from .model import Model, published
from .shape import SHAPE


def export(checkpoint: Path, folder: Path) -> None:
    """Write the weights of a checkpoint as a published folder."""
    model = Model(SHAPE)
    model.load_state_dict(torch.load(checkpoint, "cpu", weights_only=True)["model"])
    write_folder(folder, SHAPE, published(model), vocabulary())


def plot(log: Path, out: Path) -> None:
    """Draw loss and scores against tokens, stages as bands."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines: list[dict[str, Any]] = []
    for line in reversed([json.loads(text) for text in log.read_text().splitlines()]):
        if not lines or line["tokens"] < lines[-1]["tokens"]:  # what was learned again after a stop counts once
            lines.append(line)
    lines.reverse()
    tokens = [line["tokens"] / 1e6 for line in lines]
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(10, 9), sharex=True, layout="constrained")
    for measure in ("loss", "right", "index"):
        smooth, value = [], lines[0][measure]
        for line in lines:
            value += 0.05 * (line[measure] - value)
            smooth.append(value)
        upper.plot(tokens, smooth, label=measure)
    upper.set(ylabel="nats; share of reply tokens right", yscale="log")
    scored = [line for line in lines if "scores" in line]
    lower.set_prop_cycle(color=plt.colormaps["tab20"](range(20)))
    for name in scored[-1]["scores"] if scored else ():
        points = [(line["tokens"] / 1e6, line["scores"][name]) for line in scored if name in line["scores"]]
        lower.plot(*zip(*points, strict=True), label=name, marker=".")
    lower.set(xlabel="million tokens", ylabel="held-out questions right")
    before = ""
    for line, at in zip(lines, tokens, strict=True):
        if line["stage"] != before:
            before = line["stage"]
            for axes in (upper, lower):
                axes.axvline(at, color="0.8", zorder=0)
            upper.text(at, 1.01, before, rotation=30, transform=upper.get_xaxis_transform(), fontsize="small")
    for axes in (upper, lower):
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    figure.savefig(out)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ds4ref.nano.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where checkpoint and log are")
    parser.add_argument("--hours", type=float, default=1000.0)
    parser.add_argument("--finish", type=int, default=0, metavar="STEPS")
    parser.add_argument("--descend", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--from", dest="start", default="", metavar="FOLDER")
    parser.add_argument(
        "--goal", type=int, default=0, metavar="N", help="with --from: begin with this stage of the plan"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the rows (%(default)s); another with --from")
    parser.add_argument("--processes", type=int, default=2, help="on a CPU (%(default)s)")
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="tokens of a step, times N (a GPU: 4)")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.plot:
        plot(args.folder / "log.jsonl", args.folder / "curves.png")
    if args.export:
        export(args.folder / "checkpoint.pt", args.export)
    if args.plot or args.export:
        return
    if args.goal not in range(len(PLAN)):
        parser.error(f"--goal: 0 to {len(PLAN) - 1}: {', '.join(goal.stage for goal in PLAN)}")
    if (args.start or args.goal) and (args.folder / "checkpoint.pt").exists():
        parser.error(f"--from and --goal begin a run, and {args.folder} has one")
    settings = Settings(
        args.hours * 3600, args.finish, args.descend, args.start, args.goal, scale=args.scale, seed=args.seed
    )
    if torch.cuda.is_available():
        train(0, 1, str(args.folder), 0, replace(settings, device="cuda"))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(train, (args.processes, str(args.folder), port, settings), args.processes)


if __name__ == "__main__":
    main()
