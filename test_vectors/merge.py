"""``ds4-vectors merge``: join the shards of a capture, a check or an examination (``--shard``) into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds4ref.console.tool import finish, folder_of_shards
from ds4ref.errors import UsageError
from ds4ref.runs import shards

from .capture import TOOL
from .check import RESULTS
from .check import merged as merged_check
from .record import PROG
from .schema import Vectors


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors merge FOLDER``; return the exit code."""
    args = folder_of_shards(PROG, argv, "Join all shards of a capture into one directory of vectors, of a check into "
                            "one file of results, of a doctor into one report.", "--output", metavar="PATH",
                            help="what to write: a directory of vectors, a file of results, or a report")  # fmt: skip
    if args is None:
        return 0
    folder = args.folder
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
    ordered = shards.in_order(folders, cases)
    manifest = sources[0].manifest
    manifest.complete = False
    manifest.name, manifest.cases = Path(output).resolve().name, [entry for _, entry in ordered]
    result = Vectors(output, manifest)
    for vectors, entry in ordered:
        result.add_prompt(entry, vectors.prompt(entry).encode("utf-8", "surrogateescape"))
        result.add_case(entry, vectors.case(entry))
    manifest.complete = True
    result.save()
    return result
