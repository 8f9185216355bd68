"""``ds4-quantize``: converts a model of any supported file format to a GGUF file with tensors in chosen formats.

ds4-quantize model/ -o model-q4.gguf --recipe q4                      a published model, quantized
ds4-quantize model.gguf -o q2.gguf --recipe q2 --imatrix imatrix.dat  with an importance matrix
ds4-quantize model/ -o out.gguf --template old.gguf                   names, order, metadata, formats of another file
ds4-quantize q2.gguf --donor q4.gguf --layers 37-42 -o mixed.gguf   experts of some layers from another file

The plan (which tensors get which formats) is printed on stdout, progress on stderr. The same command resumes an
interrupted run.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from ..console.common import Interrupt, Progress, check_output, run, say
from ..console.flags import add
from ..console.options import Parser, integers, number, parsed, size
from ..errors import DataError, UsageError
from ..files import size_text

if TYPE_CHECKING:
    from ..weights.quantize.plan import Plan
    from ..weights.source import TensorSource

PROG = "ds4-quantize"

USAGE = f"""{PROG} SOURCE -o OUT.gguf [--recipe NAME] [options]
       {PROG} SOURCE --donor FILE --layers LIST -o OUT.gguf"""

EPILOG = """\
TYPE is one of {types}, or copy;
case, - and _ do not matter.
The format of a tensor comes from the first of these that names one: --tensor-type, the option of
its kind, the recipe, the template, the source.

recipes:
{recipes}

exit codes: 0 done; 1 failure; 2 usage; 130 Ctrl-C (run the same command again to resume)"""

# Group of tensors -> ((flag, other spellings), what its help says). Spellings of ds4's own tool come first.
FLAGS: dict[str, tuple[tuple[str, ...], str]] = {
    "gate": (("--routed-w1", "--routed-gate"), "routed experts, gate"),
    "down": (("--routed-w2", "--routed-down"), "routed experts, down"),
    "up": (("--routed-w3", "--routed-up"), "routed experts, up"),
    "attention-proj": (("--attention-proj", "--attn-proj"), "attention projections"),
    "attention": (("--attention",), "other matrices of the attention: compressors, indexer"),
    "shared": (("--shared",), "shared experts"),
    "ffn": (("--ffn",), "feed-forward matrices of layers without experts"),
    "embedding": (("--embedding",), "token embedding"),
    "output": (("--output-matrix",), "output matrix"),
    "dense": (("--dense",), "all other matrices"),
}


def _type(text: str) -> str:
    """Return the tensor format that ``text`` names, or "copy"."""
    from ..weights.quantize.plan import QUANTIZERS

    plain = text.lower().replace("-", "").replace("_", "")
    if plain in ("copy", "template"):
        return "copy"
    names = {name.lower().replace("_", ""): name for name in (*QUANTIZERS, "I32")}
    if plain not in names:
        raise ArgumentTypeError(f"choose from {', '.join(names.values())}, copy")
    return names[plain]


def _override(text: str) -> tuple[str, str]:
    """Split ``PREFIX=TYPE`` into (prefix of tensor names, format)."""
    prefix, equals, kind = text.rpartition("=")
    if not equals or not prefix:
        raise ArgumentTypeError("NAME=TYPE is needed, such as blk.0.ffn_down_exps.weight=q8_0")
    return prefix, _type(kind)


def build_parser() -> Parser:
    """Return the parser with every flag of the command."""
    from ..weights.quantize.families import RECIPES
    from ..weights.quantize.plan import QUANTIZERS

    lines = "\n".join(f"  {name:<8}{recipe.says}" for name, recipe in RECIPES.items())
    parser = Parser(
        PROG,
        usage=USAGE,
        description="Quantize a model: safetensors or GGUF in, GGUF out.",
        epilog=EPILOG.format(recipes=lines, types=" ".join(QUANTIZERS).lower()),
        unavailable={"--n-experts": "the number of experts is read from the model"},
    )
    parser.add_argument("source", metavar="SOURCE", nargs="*", help="model file or folder")
    g = parser.add_argument_group("files")
    g.add_argument("--hf", metavar="DIR", help="the same as SOURCE")
    add(g, "--output", "--out", metavar="FILE", help="the new file")
    g.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    add(g, "--template", metavar="FILE", choices=None, default=None, type=None,
        help="GGUF file to copy metadata, tensor names, order and formats from")  # fmt: skip
    g.add_argument("--split-max-size", metavar="SIZE", type=size(),
                   help="write several files, with tensors of at most SIZE (such as 40GB) in each")  # fmt: skip
    add(g, "--mtp-block", help="write the block for multi-token prediction of a published folder, not the model")
    g.add_argument("--restart", action="store_true", help="discard the partial file of an interrupted run")
    g = parser.add_argument_group("formats")
    add(g, "--recipe", help=f"formats of everything: {', '.join(RECIPES)}")
    g.add_argument("--experts", "--routed", metavar="TYPE", type=_type, help="routed experts, all three matrices")
    for family, (names, description) in FLAGS.items():
        g.add_argument(*names, metavar="TYPE", type=_type, dest=f"family_{family}", help=description)
    g.add_argument(
        "--tensor-type",
        metavar="NAME=TYPE",
        type=_override,
        action="append",
        default=[],
        help="format of all tensors whose names start with NAME; repeatable, the first match wins",
    )
    g = parser.add_argument_group("splicing, byte by byte")
    g.add_argument("--donor", metavar="FILE", help="model file to take the routed experts of --layers from")
    add(g, "--layers", type=integers(0, 1 << 16), help="layers to take: 37-42 or 0-2,40")
    g = parser.add_argument_group("importance")
    g.add_argument("--imatrix", metavar="FILE", help="importance matrix: .dat or llama.cpp's GGUF (see `ds4 imatrix`)")
    g.add_argument(
        "--imatrix-strict", action="store_true", help="fail if the importance matrix lacks a tensor that needs it"
    )
    g = parser.add_argument_group("running")
    add(g, "--dry-run", help="print the plan and stop")
    add(g, "--threads")
    g.add_argument("--memory", metavar="GIB", type=number(0.01, 1e5), default=1.0,
                   help="working memory limit, besides the program and mapped files (1)")  # fmt: skip
    add(g, "--json", help="the plan as one line of JSON")
    add(parser, "--help")
    add(parser, "--version")
    return parser


def quantize(argv: Sequence[str]) -> int:
    """Run ``ds4-quantize SOURCE``; return the exit code."""
    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    path = _source(args)
    if args.imatrix_strict and args.imatrix is None:
        raise UsageError("--imatrix-strict goes with --imatrix")
    if (args.donor is None) != (args.layers is None):
        raise UsageError("--donor and --layers go together")
    if args.donor is not None and (args.template or args.imatrix or args.recipe or args.mtp_block):
        raise UsageError("what is spliced is copied: no --recipe, --template, --imatrix or --mtp-block")
    if not args.dry_run:
        _check_target(args.output, args.overwrite, path, args.template, args.imatrix, args.donor)
    from ..text.export import vocabulary_entries
    from ..weights import open_source
    from ..weights.quantize.imatrix import read_imatrix
    from ..weights.quantize.plan import about_imatrix, check_imatrix, make_plan
    from ..weights.quantize.splice import Spliced, splice_plan
    from ..weights.source import files_of

    with ExitStack() as stack:
        source: Any = stack.enter_context(closing(_mtp_block(path) if args.mtp_block else open_source(path)))
        template = stack.enter_context(closing(open_source(args.template))) if args.template else None
        inputs = [*files_of(source), *filter(None, [args.imatrix])]
        if args.donor is not None:
            donor = stack.enter_context(closing(open_source(args.donor)))
            inputs += files_of(donor)
            plan, taken = splice_plan(source, donor, args.layers)
            source = Spliced(source, donor, taken)
            plan.notes += [f"{len(taken)} tensors of {args.donor}"]
        else:
            plan = make_plan(source, _choices(args), template)
        if template is None and args.donor is None:
            vocabulary, left_out = vocabulary_entries(source)
            plan.metadata += vocabulary
            plan.notes += [left_out] if left_out else []
        _refuse_unreadable(plan, args.output)
        table = None
        if args.imatrix is not None:
            table = read_imatrix(args.imatrix)
            plan.notes += check_imatrix(plan, table, args.imatrix_strict)
            plan.metadata += about_imatrix(table)
        if args.dry_run or not args.json:
            _show(plan, args.json)
        for note in plan.notes if args.json else ():
            say(PROG, note)
        if not args.dry_run:
            _run(args, plan, source, table, plan.digest(inputs))
    return 0


def _refuse_unreadable(plan: Plan, path: str | None) -> None:
    """Raise ModelFileError, before anything is written, if the output file would be one that ``ds4`` refuses to open.

    A file that holds only a block for multi-token prediction (MTP) is not checked: it is not a model by itself.
    """
    from ..archs import costs_of
    from ..archs.deepseek4.tensors import MTP

    if not all(item.spec.name.startswith(MTP) for item in plan.items):
        costs_of(plan.outcome(path or "output"))


def _run(args: Namespace, plan: Plan, source: Any, table: Any, digest: str) -> None:
    """Write the output file that the plan describes, or several with --split-max-size, and print their size."""
    from ds4ref.kernels.system import available_cores

    from ..weights.container import part_paths
    from ..weights.quantize import run as runner
    from ..weights.quantize.part import PartFile

    parts = plan.parts(args.split_max_size or plan.nbytes)
    paths = [args.output]
    if len(parts) > 1:
        paths = part_paths(args.output, len(parts))
        for path in paths:
            _check_target(path, args.overwrite, *args.source, args.hf, args.template, args.imatrix, args.donor)
    done = 0
    # The output files get their names only when all are written, the first one last: a model is opened by its name.
    with Interrupt() as interrupt, Progress("bytes written") as progress, ExitStack() as stack:
        outs = [
            stack.enter_context(PartFile(path, part.metadata, [item.spec for item in part.items], plan.alignment,
                                         digest + f" of {len(parts)}" * (len(parts) > 1), args.restart))
            for path, part in zip(paths, parts, strict=True)
        ]  # fmt: skip
        for path, part, out in zip(paths, parts, outs, strict=True):
            if out.resumed:
                where = f" {path}" if len(parts) > 1 else ""
                say(PROG, f"resuming{where} at tensor {out.tensor + 1} of {len(part.items)}")
            runner.run(
                part, source, out, table, threads=args.threads or available_cores(), memory=int(args.memory * 2**30),
                progress=partial(_report, progress, done, plan.nbytes),
                cancelled=lambda: _stop(interrupt),
            )  # fmt: skip
            done += part.nbytes
    say(PROG, f"wrote {paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}, "
              f"{size_text(sum(map(os.path.getsize, paths)))}")  # fmt: skip


def _report(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


def _stop(interrupt: Interrupt) -> None:
    if interrupt.requested:
        raise KeyboardInterrupt


def _mtp_block(path: str) -> TensorSource:
    """Open the block for multi-token prediction (MTP) in a published folder."""
    from ..weights.published import PublishedSource

    if os.path.isfile(path) and not path.endswith((".json", ".safetensors")):
        raise UsageError("--mtp-block reads a published folder (safetensors)")
    return PublishedSource.open(path, mtp=True)


def _source(args: Namespace) -> str:
    models = [*args.source, *([args.hf] if args.hf else [])]
    if len(models) != 1:
        raise UsageError("one model is needed: a GGUF file, or a folder of safetensors" if not models
                         else f"only one model is taken, also got {models[1]}")  # fmt: skip
    return models[0]


def _check_target(path: str | None, overwrite: bool, *sources: str | None) -> None:
    """Raise an error unless the output file ``path`` can be written: it must not be an input, or exist without
    ``overwrite``."""
    if path is None:
        raise UsageError("--output is needed")
    check_output(path)
    if os.path.lexists(path):
        if any(
            source is not None and os.path.samefile(path, source) for source in sources if os.path.exists(source or "")
        ):
            raise UsageError(f"{path} is also an input file")
        if not overwrite:
            raise DataError(f"{path} already exists: use --overwrite to replace it")
        if not os.path.isfile(path):
            raise DataError(f"{path} is not a regular file")


def _choices(args: Namespace) -> Any:
    from ..weights.quantize.families import EXPERTS
    from ..weights.quantize.plan import Choices

    families = dict.fromkeys(EXPERTS, args.experts) if args.experts else {}
    families |= {family: fmt for family in FLAGS if (fmt := getattr(args, f"family_{family}")) is not None}
    return Choices(args.recipe, families, args.tensor_type)


def _show(plan: Plan, as_json: bool) -> None:
    """Print the plan: one line for all tensors that are treated alike, and the sizes before and after."""
    from ..weights.quantize.plan import to_json

    if as_json:
        print(to_json(plan))
        return
    print(f"{'kind':<15}{'format':<22}{'tensors':>8}{'source':>14}{'result':>14}")
    for family, formats, count, before, after in plan.groups():
        print(f"{family:<15}{formats:<22}{count:>8}{size_text(before):>14}{size_text(after):>14}")
    before, after = plan.source_nbytes, plan.nbytes
    print(f"{'total':<37}{len(plan.items):>8}{size_text(before):>14}{size_text(after):>14} ({after / before:.1%})")
    for note in plan.notes:
        print(note if note.startswith("warning: ") else f"note: {note}")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command as a console script; return the exit code."""
    return run(PROG, quantize, argv)
