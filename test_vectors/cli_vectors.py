"""Commands on recorded vectors: capture, check, list, convert."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import Progress, atomic_output, check_output, read_text
from ds4ref.console.flags import add
from ds4ref.console.options import choice, integer, number, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, rows, target_of
from ds4ref.errors import DataError, UsageError
from ds4ref.runs.store.rows import vector_row
from ds4ref.targets import Prompt

from . import committed, dumps, legacy
from .capture import PromptCase, forks, record_missing, spread, start
from .cli_forced import Question, check_committed
from .record import add_store, describe, keep, opened, text_digest
from .schema import CASE_SCHEMA, ExpectedDivergence, RecordedCase, Repetition, Vectors, record, sha256
from .verdicts import PROFILES, CaseResult, check_case

if TYPE_CHECKING:
    from ds4ref.runs.store import Store


STANDARD = "standard.jsonl"
"""File of the default prompts, in this package."""


@dataclass(frozen=True)
class VectorCase:
    """One case to check, read from any kind of file.

    case        the recorded answers
    prompt      the user's text
    system      the system prompt
    ctx         context size in tokens
    divergence  known divergence of correct engines on this case; None without one
    requested   numbers of tokens and of alternatives that were requested; None if only the recorded numbers are known
    about       fields of the capture it was read from, without its steps
    """

    case: RecordedCase
    prompt: str
    system: str
    ctx: int
    divergence: ExpectedDivergence | None = None
    requested: tuple[int, int] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def request(self) -> legacy.RequestParameters:
        """Return the parameters of the request for a JSON capture."""
        steps = self.case.repetitions[0].steps
        most_alternatives = max((len(s.top) + len(s.rest) for s in steps), default=0)
        tokens, alternatives = self.requested or (len(steps), most_alternatives)
        return legacy.RequestParameters(tokens, alternatives, self.system, self.ctx)


# ---------------------------------------------------------------------------------------------------------- capture


def capture(argv: Sequence[str]) -> int:
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
    add(flags, "--json")
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    folder = _single_path(args.folder, "a directory to record into")
    prompts = read_prompts(args.prompts)
    with target_of(args, args.target) as target:
        vectors = start(folder, target, prompts, max_tokens=args.tokens, top_logprobs=args.top_logprobs,
                        repetitions=args.repeat, system=args.system)  # fmt: skip
        with Progress("recording") as progress:
            done = record_missing(vectors, target, progress)
        notes = report_notes("ds4-vectors", target)
    table, lost = [], 0
    for item in items(folder):
        fork, steps = forks(item.case), item.case.repetitions[0].steps
        lost += sum(not step.token.raw for step in steps)
        table.append((item.case.id, str(len(steps)), _number(spread(item.case)), "-" if fork is None else str(fork)))
    note = f"\n{lost} steps have a token whose bytes the server did not return: steps from there on cannot be compared"
    finish({"folder": folder, "recorded": done, "cases": len(table), "complete": vectors.manifest.complete,
            "steps_without_bytes": lost, "notes": notes}, args.json,
           rows(("case", "steps", "spread", "first fork"), table) + (note if lost else ""))  # fmt: skip
    return 0


def read_prompts(path: str | None) -> list[PromptCase]:
    """Read prompts from JSON lines, by default those of this package; UsageError names an invalid line."""
    if path is None:
        path, text = STANDARD, resources.files(__package__).joinpath("prompts", STANDARD).read_text("utf-8")
    else:
        text = read_text(path, "prompts")
    prompts = []
    for number_, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            case = PromptCase(entry["id"], entry["prompt"], entry.get("ctx", legacy.CTX))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(f'{path}: line {number_} is not {{"id": ..., "prompt": ...}}') from None
        if not (isinstance(case.id, str) and isinstance(case.text, str) and type(case.ctx) is int and case.text):
            raise UsageError(f"{path}: line {number_}: id and prompt must be text, ctx an integer")
        prompts.append(case)
    if not prompts:
        raise UsageError(f"{path}: no prompt")
    return prompts


# ------------------------------------------------------------------------------------------------------ check, list


def items(path: str, partial: bool = False, promptless: bool = False) -> list[VectorCase]:
    """Read the cases of a directory of vectors, an official.vec, official JSON captures, or logprob dumps.

    Captures may be one file, a folder of them, or the folder of ds4's fetcher with its manifest. DataError for a
    partial capture unless ``partial``, and for a dump, which holds no prompt, unless ``promptless``.
    """
    if Vectors.exists(path):
        if legacy.is_manifest(path):
            return _from_captures(legacy.read_manifest(path), path, promptless)
        vectors = Vectors.open(path)
        if not vectors.manifest.complete and not partial:
            raise DataError(f"{path} is a partial capture: run capture again to complete it")
        manifest = vectors.manifest
        requested = manifest.max_tokens, manifest.top_logprobs
        return [
            VectorCase(vectors.case(e), vectors.prompt(e), manifest.system, e.ctx, e.expected_divergence, requested)
            for e in manifest.cases
            if e.case_file is not None or manifest.complete
        ]
    if path.endswith(".vec"):
        return [_from_vec(case, path) for case in legacy.read_vec(path)]
    if os.path.isdir(path):
        files = sorted(str(f) for f in Path(path).glob("*.json"))
        if not files:
            raise DataError(f"{path}: no manifest.json and no JSON captures in this folder")
        return _from_captures(files, path, promptless)
    return _from_captures([path], path, promptless)


def _divergence_of(name: str) -> ExpectedDivergence | None:
    reason = legacy.KNOWN_DIVERGENCE.get(name)
    return None if reason is None else ExpectedDivergence(reason)


def _from_vec(case: legacy.VecCase, path: str) -> VectorCase:
    """Find a case's prompt, whose path is relative to ds4's working directory, also beside and above the .vec file."""
    base = Path(path).resolve().parent
    candidates = [Path(case.prompt_path), *(folder / case.prompt_path for folder in (base, *base.parents)),
                  base / "prompts" / Path(case.prompt_path).name]  # fmt: skip
    file = next((f for f in candidates if f.is_file()), None)
    if file is None:
        raise DataError(f"{path}: prompt {case.prompt_path} of case {case.id} was not found")
    data = file.read_bytes()
    record = RecordedCase(CASE_SCHEMA, case.id, sha256(data), [case.repetition()])
    return VectorCase(record, data.decode("utf-8", "surrogateescape"), "", case.ctx, _divergence_of(case.id))


def _from_captures(files: Sequence[str], path: str, promptless: bool) -> list[VectorCase]:
    beside = legacy.contexts(path)
    return [_from_dump(f, promptless) if _is_dump(f) else _from_capture(f, beside) for f in files]


def _from_capture(path: str, beside: dict[str, int]) -> VectorCase:
    recording = legacy.read_capture(path)
    data = recording.prompt.encode("utf-8", "surrogateescape")
    case = RecordedCase(CASE_SCHEMA, recording.id, sha256(data), [recording.repetition])
    ctx = legacy.ctx_of(recording, beside)
    return VectorCase(
        case, recording.prompt, recording.system, ctx, _divergence_of(recording.id), None, recording.about
    )


def _is_dump(path: str) -> bool:
    try:
        return dumps.is_dump(json.loads(Path(path).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return False  # reported by the reader


def _from_dump(path: str, promptless: bool) -> VectorCase:
    if not promptless:
        raise DataError(f"{path} is a dump without its prompt: only list and diagnose can read it")
    dump = dumps.load(path)
    answer = Repetition([record(step) for step in dump.steps], dump.finish, dump.model, "", dump.prompt_tokens)
    return VectorCase(RecordedCase(CASE_SCHEMA, Path(path).stem, "", [answer]), "", "", dump.ctx or legacy.CTX)


def show(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors list PATH``; return the exit code."""
    flags = parser("ds4-vectors list", "Show the contents of a directory of vectors, official.vec, "
                   "JSON capture or logprob dump.", "PATH", "official.vec", "vectors/mine --json",
                   "dump.json")  # fmt: skip
    flags.add_argument("path", nargs="*", metavar="PATH", help="a directory, .vec or .json")
    add(flags, "--json")
    args = parsed(flags, argv)
    if args is None:
        return 0
    path = _single_path(args.path, "a path")
    cases_read = items(path, partial=True, promptless=True)
    partial = Vectors.exists(path) and not legacy.is_manifest(path) and not Vectors.open(path).manifest.complete
    table, cases = [], []
    for item in cases_read:
        steps = item.case.repetitions[0].steps
        graded = sum(len(s.top) > 1 for s in steps)
        text = b"".join(s.token.raw for s in steps).decode("utf-8", "replace")
        cases.append({"id": item.case.id, "ctx": item.ctx, "steps": len(steps), "steps_with_distribution": graded,
                      "repetitions": len(item.case.repetitions), "spread": spread(item.case), "text": text,
                      "expected_divergence": item.divergence.reason if item.divergence else None})  # fmt: skip
        table.append((item.case.id, str(item.ctx), str(len(steps)), str(graded), str(len(item.case.repetitions)),
                      "yes" if item.divergence else ""))  # fmt: skip
    head = ("case", "ctx", "steps", "with distribution", "repetitions", "divergence expected")
    note = "\npartial capture: some cases are missing" if partial else ""
    finish({"path": path, "partial": partial, "cases": cases}, args.json, rows(head, table) + note)
    return 0


def check(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors check PATH``; return the exit code."""
    flags = parser(
        "ds4-vectors check",
        "Compare an engine with recorded vectors, step by step. Exit 1 if a case fails. With --teacher-forced: is each "
        "token that another engine chose greedily, speculative or not, the target's best token?",
        "PATH [options]",
        "vectors/mine --target local:model.gguf --junit report.xml",
        "--teacher-forced answers.jsonl --target local:model.gguf",
        "--teacher-forced --committed-by http://127.0.0.1:8080/v1 -n 200 --target local:model.gguf",
        'tests/test-vectors/official.vec --profile ds4 --target command:"./ds4 -m model.gguf"',
    )
    flags.add_argument("path", nargs="*", metavar="PATH", help="a directory of vectors, official.vec, or JSON captures")
    flags.add_argument("--profile", metavar="NAME", type=choice(*PROFILES), default="margin",
                       help="margin: judge by logprob margins; ds4: ds4's own rule (margin)")  # fmt: skip
    flags.add_argument(
        "--floor", metavar="NATS", type=number(0, 100), help="differences in nats to ignore as rounding (by mode)"
    )
    add(flags, "--only", metavar="ID", action="append", default=[], help="check only this case; repeatable")
    flags.add_argument("--allow-partial", action="store_true", help="accept a partial capture")
    flags.add_argument("--teacher-forced", action="store_true",
                       help="check that every greedily decoded token in PATH (vectors, or JSON lines with text or "
                       "token ids) is the target's best; finds faulty speculative decoding")  # fmt: skip
    flags.add_argument(
        "--committed-by",
        metavar="SPEC",
        help="with --teacher-forced: ask this target for answers instead of reading PATH",
    )
    add(
        flags,
        "--prompts",
        help='with --committed-by: prompts as JSON lines {"id": ..., "prompt": ...} (four of our own)',
    )
    add(flags, "--tokens", type=integer(1, 1 << 20), default=200, help="longest answer to ask for (200)")
    flags.add_argument("--plain-text", action="store_true", help="prompts are plain text to continue, not chats")
    flags.add_argument("--junit", metavar="FILE", help="also write JUnit XML")
    add(flags, "--output", "--out", dest="out", help="also write every step as JSON")
    add(flags, "--json")
    add_store(flags)
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    if args.teacher_forced:
        return _teacher_forced(args, argv)
    if args.committed_by or args.prompts or args.plain_text:
        raise UsageError("--committed-by, --prompts and --plain-text need --teacher-forced")
    path = _single_path(args.path, "vectors to check against")
    for file in (args.junit, args.out):
        if file:
            check_output(file)
    chosen = _selected(items(path, args.allow_partial), args.only)
    with opened(args) as store:
        results, facts = _check_all(args, chosen, store)
        rows_ = [vector_row(r.to_json(), [r.id] if r.failed else []) for r in results]
        texts = [text for item in chosen for text in (item.case.id, item.system, item.prompt)]
        label = args.label or Path(path).stem
        keep(store, ["check", *argv], facts, rows_, prompt_sha256=text_digest(texts), label=label)
    counts = {v: sum(r.verdict == v for r in results) for v in dict.fromkeys(r.verdict for r in results)}
    failed = [r.id for r in results if r.failed]
    # a check that compared nothing has not been passed
    passed = not failed and any(step.verdict != "incomparable" for r in results for step in r.steps)
    result: dict[str, Any] = {"path": path, "target": args.target, "profile": args.profile, "cases": len(results),
                              "verdicts": counts, "failed": failed, "passed": passed}  # fmt: skip
    if args.out:
        with atomic_output(args.out) as out:
            out.write((json.dumps({**result, "results": [r.to_json() for r in results]}, indent=1) + "\n").encode())
    if args.junit:
        from .junit import report

        with atomic_output(args.junit) as out:
            out.write(report(results, "ds4-vectors"))
    nothing = "" if passed or failed else "\nnot passed: no step could be compared"
    finish(result, args.json, _table(results) + nothing)
    return 0 if passed else 1


def _teacher_forced(args: Namespace, argv: Sequence[str]) -> int:
    """Read or ask for what an engine committed, judge it, and return the exit code."""
    if args.profile != "margin":
        raise UsageError("--teacher-forced supports only --profile margin")
    if args.committed_by:
        if args.path:
            raise UsageError(f"{args.path[0]} and --committed-by: choose one")
        asked = {
            case.id: Question(Prompt.plain(case.text) if args.plain_text else Prompt.chat(case.text), case.ctx)
            for case in read_prompts(args.prompts)
        }
        return check_committed(args, argv, asked, [])
    if args.prompts or args.plain_text:
        raise UsageError("--prompts and --plain-text need --committed-by")
    path = _single_path(args.path, "a file of an engine's answers, or --committed-by,")
    if path.endswith(".jsonl"):
        return check_committed(args, argv, {}, committed.read(path))
    answers = [
        committed.of_tokens(
            i.case.id, Prompt.chat(i.prompt, i.system), [s.token.raw for s in i.case.repetitions[0].steps]
        )
        for i in items(path, args.allow_partial)
    ]
    return check_committed(args, argv, {}, answers)


def _check_all(
    args: Namespace, chosen: Sequence[VectorCase], store: Store | None
) -> tuple[Sequence[CaseResult], dict[str, Any]]:
    results = []
    with target_of(args, args.target) as target, Progress("checking") as progress:
        for at, item in enumerate(chosen):
            progress(at, len(chosen))
            begun = time.monotonic()
            results.append(
                check_case(target, Prompt.chat(item.prompt, item.system), item.case, ctx=item.ctx,
                           profile=args.profile, floor=args.floor, divergence=item.divergence)
            )  # fmt: skip
            results[-1].seconds = time.monotonic() - begun
        report_notes("ds4-vectors", target)
        return results, {**describe(target, store), "profile": args.profile, "floor": args.floor}


def _selected(cases: Sequence[VectorCase], only: Sequence[str]) -> Sequence[VectorCase]:
    unknown = set(only) - {item.case.id for item in cases}
    if unknown:
        raise UsageError(f"no case {', '.join(sorted(unknown))}: there are {', '.join(i.case.id for i in cases)}")
    return [item for item in cases if not only or item.case.id in only]


def _table(results: Sequence[CaseResult]) -> str:
    table = []
    for r in results:
        worst = max((s.margin for s in r.steps if s.margin is not None), default=None)
        deltas = [abs(s.delta) for s in r.steps if s.delta is not None]
        kls = [s.kl for s in r.steps if s.kl is not None]
        hits = sum(s.verdict == "match" for s in r.steps)
        table.append((r.id, r.verdict, f"{hits}/{len(r.steps)}", _number(worst), _number(max(deltas, default=None)),
                      _number(max(kls, default=None)), _number(r.noise)))  # fmt: skip
    lines = [rows(("case", "verdict", "match", "margin", "max delta", "max KL", "noise"), table)]
    for r in results:
        lines += [f"{r.id}: {r.verdict}: {r.reason}"] if r.reason else []
        lines += [f"{r.id} step {s.index}: {s.verdict}: {s.why}" for s in r.steps if s.verdict != "match" and s.why]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------- convert


def convert(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors convert FROM TO``; return the exit code."""
    flags = parser(
        "ds4-vectors convert",
        "Write vectors in ds4's formats: TO.vec is one official.vec, any other name a folder of JSON captures.",
        "FROM TO [options]",
        "vectors/mine official.vec",
        "official.vec captures",
    )
    flags.add_argument("paths", nargs="*", metavar="FROM TO", help="vectors in any format; output")
    flags.add_argument("--prompt-dir", metavar="DIR", help="folder for the prompts, as named in TO.vec (next to it)")
    add(flags, "--json")
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.paths) != 2:
        raise UsageError("give FROM and TO")
    source, goal = args.paths
    if os.path.lexists(goal):
        raise UsageError(f"{goal} already exists; existing vectors are never overwritten")
    cases_read = items(source)
    if goal.endswith(".vec"):
        folder = args.prompt_dir or os.path.join(os.path.dirname(goal), "prompts")
        cases = [legacy.from_case(i.case, i.ctx, os.path.join(folder, f"{i.case.id}.txt")) for i in cases_read]
        data = legacy.write_vec(cases)
        os.makedirs(folder, exist_ok=True)
        for item, case in zip(cases_read, cases, strict=True):
            with atomic_output(case.prompt_path) as out:
                out.write(item.prompt.encode("utf-8", "surrogateescape"))
        with atomic_output(goal) as out:
            out.write(data)
    else:
        with atomic_folder(goal) as folder:
            for item in cases_read:
                model = item.case.repetitions[0].model or "unknown"
                endpoint = str(item.about.get("endpoint") or source)
                data = legacy.write_capture(item.case, item.prompt, model, endpoint, item.request(), item.about)
                Path(folder, f"{item.case.id}.json").write_bytes(data)
    finish(
        {"from": source, "to": goal, "cases": len(cases_read)}, args.json, f"{len(cases_read)} cases written to {goal}"
    )
    return 0


@contextmanager
def atomic_folder(goal: str) -> Iterator[str]:
    """Yield a temporary folder that is renamed to ``goal`` when the block succeeds, and removed otherwise."""
    parent, name = os.path.split(os.path.abspath(goal))
    try:
        folder = tempfile.mkdtemp(prefix=f".{name}.", dir=parent)
    except OSError as error:
        raise DataError(f"cannot write {goal}: {error.strerror}") from None
    try:
        yield folder
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(folder, 0o777 & ~mask)
        os.rename(folder, goal)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _single_path(values: Sequence[str], wanted: str) -> str:
    if len(values) != 1:
        raise UsageError(f"{wanted} is needed" if not values else f"only one path, not {len(values)}")
    return values[0]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
