"""``ds4-vectors capture``: record an engine's greedy answers to prompts, with their log probabilities.

Thinking is off, and each prompt is sent several times to show the run-to-run spread. A case (a prompt with all its
answers) is written when it is complete, so a killed capture loses at most one case, and running it again resumes it.
The directory is marked partial until every case is recorded, and is never changed after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ds4ref.console.common import Progress
from ds4ref.console.flags import add
from ds4ref.console.options import integer, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, rows, target_of
from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.files import locked
from ds4ref.runs import shards
from ds4ref.runs.provenance import now
from ds4ref.targets import Ability, Prompt, Request, Target

from .cases import PromptCase, read_cases, read_prompts, single_path
from .schema import (
    CASE_SCHEMA,
    MANIFEST_SCHEMA,
    NAME,
    CaseEntry,
    Manifest,
    RecordedCase,
    Repetition,
    Vectors,
    record,
    sha256,
)

TOOL = "capture"


def start(
    folder: str, target: Target, prompts: Sequence[PromptCase], *,
    max_tokens: int = 4, top_logprobs: int = 20, repetitions: int = 3, system: str = "",
) -> Vectors:  # fmt: skip
    """Open the directory to record into: a new one, or a partial capture of the same prompts and parameters.

    max_tokens    tokens to generate per answer
    top_logprobs  alternatives to record per token
    repetitions   answers to record per prompt
    system        system prompt sent with every prompt

    UsageError for any other directory, and for parameters that the target cannot meet.
    """
    target.require(Ability.CHAT, Ability.TOP_LOGPROBS, needed_for="capture")
    if top_logprobs > target.max_top_logprobs:
        raise UsageError(f"{target.name} gives at most {target.max_top_logprobs} alternatives, not {top_logprobs}")
    bad = [p.id for p in prompts if not NAME.fullmatch(p.id)]
    if bad or not prompts or len({p.id for p in prompts}) != len(prompts):
        raise UsageError(f"prompt ids must be unique and use only letters, digits and _.-: {bad[:1] or 'none given'}")
    new_manifest = Manifest(
        MANIFEST_SCHEMA,
        Path(folder).resolve().name,
        target.identity(),
        max_tokens,
        top_logprobs,
        repetitions,
        system,
        now(),
        False,
        [CaseEntry(p.id, f"prompts/{p.id}.txt", sha256(_encoded(p.text)), p.ctx) for p in prompts],
    )
    if not Vectors.exists(folder):
        vectors = Vectors(folder, new_manifest)
        for entry, prompt in zip(new_manifest.cases, prompts, strict=True):
            vectors.add_prompt(entry, _encoded(prompt.text))
        vectors.save()
        return vectors
    vectors = Vectors.open(folder)
    recorded = vectors.manifest
    if recorded.complete:
        raise UsageError(f"{folder} is complete and will not be overwritten; choose a new directory")
    if _asked(recorded) != _asked(new_manifest):
        raise UsageError(f"{folder} holds a partial capture with other prompts, parameters or source")
    return vectors


def record_missing(vectors: Vectors, target: Target, progress: Callable[[int, int], None] | None = None) -> int:
    """Record the cases that the directory does not have yet, and return their number.

    A TargetError leaves the cases recorded so far in place. ``progress`` is called with (cases done, all cases).
    """
    manifest, recorded = vectors.manifest, 0
    for at, entry in enumerate(manifest.cases):
        if progress is not None:
            progress(at, len(manifest.cases))
        with suppress(DataError):
            vectors.case(entry)
            continue
        prompt = Prompt.chat(vectors.prompt(entry), manifest.system)
        request = Request(prompt, manifest.max_tokens, top_logprobs=manifest.top_logprobs, ctx=entry.ctx)
        answers = []
        for _ in range(manifest.repetitions):
            answer = target.complete(request)
            if not answer.steps:
                raise TargetError(f"case {entry.id}: {target.name} returned no log probabilities")
            steps = [record(step) for step in answer.steps]
            used = answer.usage
            answers.append(Repetition(steps, answer.finish, answer.model, now(), used.prompt, used.completion,
                                      used.cached))  # fmt: skip
        vectors.add_case(entry, RecordedCase(CASE_SCHEMA, entry.id, entry.prompt_sha256, answers))
        recorded += 1
    manifest.source = target.identity()
    manifest.complete = True
    vectors.save()
    return recorded


def spread(case: RecordedCase) -> float | None:
    """Return the run-to-run spread in nats: the largest change of a token's log probability between repetitions.

    Only steps up to the first different token count. None with fewer than two repetitions or without log probabilities.
    """
    worst: float | None = None
    first = case.repetitions[0]
    for other in case.repetitions[1:]:
        for a, b in zip(first.steps, other.steps, strict=False):
            values = {t.raw: t.logprob for t in b.top}
            for token in a.top:
                other_logprob = values.get(token.raw)
                if other_logprob is not None and token.logprob is not None:
                    worst = max(worst or 0.0, abs(other_logprob - token.logprob))
            if a.token.raw != b.token.raw:
                break
    return worst


def forks(case: RecordedCase) -> int | None:
    """Return the index of the first step at which repetitions chose different tokens; None if they never did."""
    chains = [[step.token.raw for step in r.steps] for r in case.repetitions]
    for i in range(max(map(len, chains))):
        if len({chain[i] if i < len(chain) else None for chain in chains}) > 1:
            return i
    return None


def _asked(manifest: Manifest) -> tuple[Any, ...]:
    """Return the settings that must be the same when a capture is resumed; the digest identifies the model."""
    source = _source(manifest.source)
    cases = [(entry.id, entry.prompt_sha256, entry.ctx) for entry in manifest.cases]
    return manifest.max_tokens, manifest.top_logprobs, manifest.repetitions, manifest.system, source, cases


def _source(identity: dict[str, Any]) -> dict[str, Any]:
    """Return what of an engine's identity must be the same when a capture is resumed."""
    return {key: value for key, value in identity.items() if key not in ("served", "checkpoint")}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# ------------------------------------------------------------------------------------------------------- the command


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors capture DIR``; return the exit code."""
    flags = parser("ds4-vectors capture", "Record greedy continuations, thinking off. If interrupted, run the same "
                   "command to resume. A complete directory is never changed.", "DIR [--prompts FILE] [options]",
                   "vectors/mine --prompts prompts.jsonl --target local:model.gguf -n 16",
                   "vectors/served --prompts prompts.jsonl --target http://127.0.0.1:8080/v1 --repeat 5",
                   "vectors/official --prompts prompts.jsonl --target https://api.deepseek.com \\\n"
                   "      --model-name deepseek-v4-flash --key-env DEEPSEEK_API_KEY")  # fmt: skip
    flags.add_argument("folder", nargs="*", metavar="DIR", help="directory to record into")
    add(flags, "--prompts", help='JSON lines {"id": ..., "prompt": ..., "ctx": ...} (four of our own)')
    add(flags, "--tokens", type=integer(1, 4096), default=4, help="tokens to record per prompt (4)")
    flags.add_argument(
        "--top-logprobs", metavar="K", type=integer(1, 128), default=20, help="alternatives per token (20)"
    )
    add(
        flags,
        "--repeat",
        type=integer(1, 100),
        default=3,
        help="answers per prompt; check accepts differences up to their spread (3)",
    )
    add(flags, "--system", default="", help="system prompt (none)")
    add(flags, "--shard")
    add(flags, "--json")
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    folder = single_path(args.folder, "a directory to record into")
    prompts = read_prompts(args.prompts)
    with ExitStack() as stack:
        target, share = stack.enter_context(target_of(args, args.target)), None
        if args.shard is not None:
            plan = {"tokens": args.tokens, "top": args.top_logprobs, "repeat": args.repeat, "system": args.system,
                    "source": _source(target.identity()),
                    "prompts": [sha256(_encoded(p.text)) for p in prompts]}  # fmt: skip
            share = stack.enter_context(shards.work(folder, args.shard, TOOL, plan, [p.id for p in prompts]))
            folder, prompts = str(share.path / "vectors"), args.shard.mine(prompts)
            if share.done or not prompts or (Vectors.exists(folder) and Vectors.open(folder).manifest.complete):
                share.finish()
                finish({"folder": folder, "recorded": 0, "complete": True}, args.json, f"{folder}: nothing to do")
                return 0
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(path / "lock", f"{folder}: another process is recording into it"))
        vectors = start(folder, target, prompts, max_tokens=args.tokens, top_logprobs=args.top_logprobs,
                        repetitions=args.repeat, system=args.system)  # fmt: skip
        with Progress("recording") as progress:
            done = record_missing(vectors, target, progress)
        if share is not None:
            share.finish()
        notes = report_notes("ds4-vectors", target)
    table, lost = [], 0
    for item in read_cases(folder):
        fork, steps = forks(item.case), item.case.repetitions[0].steps
        lost += sum(not step.token.raw for step in steps)
        table.append(
            (item.case.id, str(len(steps)), number_text(spread(item.case)), "-" if fork is None else str(fork))
        )
    note = f"\n{lost} steps have a token whose bytes the server did not return: steps from there on cannot be compared"
    finish({"folder": folder, "recorded": done, "cases": len(table), "complete": vectors.manifest.complete,
            "steps_without_bytes": lost, "notes": notes}, args.json,
           rows(("case", "steps", "spread", "first fork"), table) + (note if lost else ""))  # fmt: skip
    return 0


def number_text(value: float | None) -> str:
    """Format a number for a table; "-" for None."""
    return "-" if value is None else f"{value:.3g}"
