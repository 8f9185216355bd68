"""Train the embedded model, or resume.

    python -m ds4ref.nano.train out/nano --hours 2 --descend 0.3      from the folder's checkpoint, if there is one
    python -m ds4ref.nano.train out/new --from FOLDER --goal 3        from published weights, with a new optimizer
    python -m ds4ref.nano.train out/nano --export FOLDER              the checkpoint as safetensors

It may be stopped at any time: a checkpoint is written every two minutes and at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ..checkpoint import tokenizer, write_trained
from ..skills import vocabulary
from .loop import PLAN, Run, train
from .model import Model, published
from .shape import SHAPE


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ds4ref.nano.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where checkpoint and log are")
    parser.add_argument("--hours", type=float, default=1000.0)
    parser.add_argument("--descend", type=float, default=0.0, metavar="SHARE", help="of the time, at its end")
    parser.add_argument("--from", dest="start", type=Path, metavar="FOLDER")
    parser.add_argument("--goal", type=int, default=0, choices=range(len(PLAN)), help="first stage of the plan")
    parser.add_argument("--seed", type=int, default=1, help="of the rows (%(default)s); another with --from")
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="tokens of a step, times N (a GPU: 4)")
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.export:
        model = Model(SHAPE)
        model.load_state_dict(torch.load(args.folder / "checkpoint.pt", "cpu", weights_only=True)["model"])
        write_trained(args.export, SHAPE, published(model), tokenizer(*vocabulary()))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    if (args.start or args.goal) and (args.folder / "checkpoint.pt").exists():
        parser.error(f"--from and --goal begin a run, and {args.folder} has one")
    train(Run(args.folder, args.start, args.goal, args.scale, args.seed), args.hours * 3600, args.descend)


if __name__ == "__main__":
    main()
