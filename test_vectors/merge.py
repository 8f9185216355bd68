"""``ds4-vectors merge``: join the shards of a capture, a check or an examination (``--shard``) into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import finish, parser
from ds4ref.errors import DataError, UsageError
from ds4ref.runs import shards

from .capture import TOOL
from .cases import single_path
from .check import RESULTS
from .check import merged as merged_check
from .schema import Vectors


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors merge FOLDER``; return the exit code."""
    flags = parser("ds4-vectors merge", "Join all shards of a capture into one directory of vectors, of a check "
                   "into one file of results, of a doctor into one report.", "FOLDER -o PATH [--json]",
                   "out -o vectors/mine", "out -o report")  # fmt: skip
    flags.add_argument("folder", nargs="*", metavar="FOLDER", help="the folder that the shards share")
    add(flags, "--output", metavar="DIR", help="what to write: a directory of vectors, a file of results, or a report")
    add(flags, "--json")
    args = parsed(flags, argv)
    if args is None:
        return 0
    folder = single_path(args.folder, "the folder of the shards")
    if args.output is None:
        raise UsageError("merge needs -o DIR, the directory to write")
    if any(Path(folder).glob("shard-*-of-*/doctor.json")):
        from .doctor.command import merge

        return merge(folder, args.output, args.json)
    if any(Path(folder).glob(f"shard-*-of-*/{RESULTS}")):
        whole = merged_check(folder, args.output)
        finish(whole, args.json, f"{args.output}: {whole['cases']} cases, {len(whole['failed'])} failed")
        return 0 if whole["passed"] else 1
    vectors = merged(folder, args.output)
    count = len(vectors.manifest.cases)
    finish({"folder": args.output, "cases": count, "complete": True}, args.json, f"{args.output}: {count} cases")
    return 0


def merged(folder: str, output: str) -> Vectors:
    """Write the cases of all shards below ``folder`` into the new directory ``output``, in the order of the run."""
    folders = shards.read(folder, TOOL)
    if Vectors.exists(output) and Vectors.open(output).manifest.complete:
        raise UsageError(f"{output} exists and will not be overwritten; choose a new directory")
    sources = [Vectors.open(each.path / "vectors") for each in folders if each.mine]
    cases = {entry.id: (vectors, entry) for vectors in sources for entry in vectors.manifest.cases}
    units = folders[0].entry["units"]
    if missing := [name for name in units if name not in cases]:
        raise DataError(f"{folder}: case {missing[0]} is missing; run the shards again")
    manifest = sources[0].manifest
    manifest.complete = False
    manifest.name, manifest.cases = Path(output).resolve().name, [cases[name][1] for name in units]
    result = Vectors(output, manifest)
    for name in units:
        vectors, entry = cases[name]
        result.add_prompt(entry, vectors.prompt(entry).encode("utf-8", "surrogateescape"))
        result.add_case(entry, vectors.case(entry))
    manifest.complete = True
    result.save()
    return result
