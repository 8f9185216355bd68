"""The command ``ds4-vectors diagnose``."""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ds4ref.console.common import Interrupt, Progress, read_text
from ds4ref.console.flags import add
from ds4ref.console.model import engine_options
from ds4ref.console.options import choice, integer, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, rows, target_of
from ds4ref.errors import DataError, UsageError

from .elicit import elicit, tokenizer_of
from .finding import Finding
from .observation import Observation, OtherModel, preflight
from .reading import read, read_ids
from .tables import BROKEN, refused

if TYPE_CHECKING:
    from ds4ref.engine import Engine

    from .diagnosis import Diagnosis, Signatures

NOT_DEEPSEEK = ("only DeepSeek V4 and V4.1 have a library of known mistakes; this model was compared with rounding "
                "sets, wrong keys of its file, and mistakes of prompt, template and output")  # fmt: skip
TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
USUAL = 250
"""Number of candidates in a search that does not end early, for the progress display."""

DIAGNOSE = """Find the rounding or the mistake that explains another engine's logits.

.npz holds "logits" (tokens, vocabulary), as ds4 --dump-logits writes it, "ids" and, if only some positions
were kept, "rows". .json is [{"position": 0, "top": [[id, logprob], ...]}, ...], or the output of
ds4 --dump-logprobs. .bin, .raw and .f32 are rows of float32.

Verdicts: a rounding set (exact, qat, ds4, llama.cpp, bfloat16, ...): no mistake found, with the detection limit;
"fault": a known mistake, by name; "file": their model file is wrong; "undecided": an unknown rounding or a small
mistake; "unknown": nothing known explains the numbers; "broken": some numbers are missing or not finite.
Exit code 0 only for a rounding set (--allow-undecided: also for "undecided").

DeepSeek V4 and V4.1 are compared with all known mistakes; dense models with rounding sets, wrong keys of their
file, and mistakes of prompt and output."""


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors diagnose``; return the exit code."""
    made = parser("ds4-vectors diagnose", DIAGNOSE, "[-m MODEL.gguf] --logits FILE [--token-ids IDS.json] [options]",
                  "-m model.gguf --token-ids ids.json --logits theirs.npz",
                  "-m model.gguf --token-ids ids.json --logits top20.json --json",
                  "--target http://127.0.0.1:8080/v1      (a server that has loaded the diagnostic model)")  # fmt: skip
    add(made, "--model", help="model the logits come from (the diagnostic model)")
    add(made, "--token-ids", help="JSON list of token ids (those in the .npz)")
    made.add_argument("--logits", metavar="FILE", help=".npz, .npy, .csv or raw .f32 of full logits; .json of top-k")
    add(made, "--key")
    add(made, "--prompt-file", help="prompt of a --dump-logprobs file, as ds4 --nothink was given it")
    add(made, "--system", default="", help="system text of that prompt (none)")
    add(made, "--top", type=integer())
    add(
        made,
        "--prompt",
        metavar="NAME",
        type=choice("mixed", "short", "text", "long"),
        default="mixed",
        help="with --target: mixed, short, text or long, of the diagnostic set (mixed)",
    )
    made.add_argument("--chat", action="store_true", help="with --target: ask as a chat, which also tests the template")
    add(made, "--their-model")
    made.add_argument("--computes", metavar="TYPE", type=choice(*TYPES, *TYPES.values()), default=None,
                      help="bf16, f16 or f32: the type that engine computes in (inferred)")  # fmt: skip
    made.add_argument("--allow-undecided", action="store_true", help="exit with 0 also for the verdict undecided")
    add(made, "--json")
    add_target(made, default=None)
    args = parsed(made, argv)
    if args is None:
        return 0
    if (args.logits is None) == (args.target is None):
        raise UsageError("one of --logits and --target is needed")
    if args.chat and args.target is None:
        raise UsageError("--chat goes with --target")
    given = None if args.token_ids is None else read_ids(args.token_ids)
    if args.prompt_file is not None and args.logits is None:
        raise UsageError("--prompt-file goes with --logits")
    from ds4ref.engine import Engine
    from ds4ref.nano.diagnostic import diagnostic_path

    from .trace.plan import planned

    options = engine_options(args)
    options.pop("numerics", None)  # of the target
    with Engine.open(args.model or diagnostic_path(), **options) as engine:
        if args.logits is not None:
            seen = read_given(args, engine, given)
        else:
            with target_of(args, args.target) as target:
                seen = elicit(target, engine, given, args.prompt, args.chat)
                report_notes("ds4-vectors", target)
        with Interrupt(signal.SIGTERM) as interrupt:
            result = run_diagnosis(engine, seen if args.top is None else seen.top(args.top), args.their_model,
                                   interrupt, TYPES.get(args.computes, args.computes), not args.json)  # fmt: skip
        plan = planned(engine.shape, len(seen.ids), result)
    whole, text = result.to_json(), _describe(result, seen)
    if plan is not None:
        whole["dump"] = plan.to_json()
        text += "\n\n" + f"next step    {plan.text(f'-m {args.model}' if args.model else '', args.token_ids or '')}"
    finish(whole, args.json, text)
    if interrupt.requested:
        return 128 + interrupt.signum
    return 0 if result.clean or (args.allow_undecided and result.verdict == "undecided") else 1


def read_given(args: Namespace, engine: Engine, ids: Sequence[int] | None) -> Observation:
    """Read the observation in the file that ``--logits`` names.

    DataError if it holds no logits, or those of another model, with a hint at ``-m`` if that was not given.
    """
    prompt = None if args.prompt_file is None else (args.system, read_text(args.prompt_file, "prompt"))
    hint = "" if args.model else " (this is the diagnostic model: give yours with -m)"
    try:
        return read(args.logits, ids, args.key, tokenizer_of(engine), vocab=engine.shape.vocab, prompt=prompt)
    except OtherModel as error:
        raise DataError(f"{args.logits}: {error}{hint}") from None


def run_diagnosis(
    engine: Engine,
    seen: Observation,
    their_model: str | None = None,
    cancel: Callable[[], bool] | None = None,
    computes: str | None = None,
    tell: bool = False,
) -> Diagnosis:
    """Check that ``seen``, the other engine's log probabilities, is valid, then diagnose it; DataError if it is not.

    their_model  model file that the other engine reads, if it is not ours
    cancel       called again and again; once it returns True, the search ends with the best answer so far
    computes     16-bit type in which the other engine computes, if that is known
    tell         print on stdout what is known before the search ends
    """
    from .diagnosis import Signatures
    from .diagnosis import diagnose as explain
    from .diagnosis.columns import thinned

    findings = preflight(seen)
    useless = refused(findings)
    if useless is not None:
        raise DataError(useless.says)
    broken = [finding for finding in findings if finding.outcome is BROKEN]
    with Progress("") as line:

        def trying(done: int, doing: str) -> None:
            line.label = f"trying {doing}"
            line(done, max(done, USUAL))

        def told(says: str) -> None:
            line.clear()
            print(f"so far       {says}", flush=True)

        whole, (seen, columns) = seen, thinned(seen, engine.shape.vocab)
        library, tokenizer = Signatures(engine, seen.ids.tolist(), columns), tokenizer_of(engine)
        bos = None if tokenizer is None else tokenizer.bos

        def explained(part: Observation) -> Diagnosis:
            return explain(library, part, bos, progress=trying, cancel=cancel, computes=computes,
                           tell=told if tell else None)  # fmt: skip

        if broken:
            return _broken(broken, seen, explained)
        theirs, note = (None, "") if their_model is None else _of_their_file(engine, their_model, seen, library, bos)
        result = theirs or explained(seen)
        result.notes += [note] if note and not result.clean else []
    result.notes += [finding.says for finding in findings if finding.name != "storage"]
    if not (library.runner.own or library.runner.later):
        result.notes.append(NOT_DEEPSEEK)
    _show_tokens(engine, library, whole, result)
    if result.verdict == "fault" and their_model is None:
        result.next.append("if that engine reads a file other than -m: --their-model FILE shows whether the file or "
                           "the engine is wrong")  # fmt: skip
    return result


def _broken(findings: list[Finding], seen: Observation, explained: Callable[[Observation], Diagnosis]) -> Diagnosis:
    """Return the diagnosis "broken" for numbers of which some are not log probabilities.

    findings   what is wrong, and at which positions
    explained  function that diagnoses an observation: the other positions are diagnosed on their own
    """
    from .diagnosis import Diagnosis

    bad = sorted({position for finding in findings for position in finding.positions})
    result = Diagnosis("broken", None, 1.0, bad[0] if bad else None, "", findings[0].says, positions=len(seen.rows),
                       stored=seen.stored)  # fmt: skip
    result.notes += [finding.says for finding in findings[1:]]
    keep = ~np.isin(seen.rows, bad)
    if bad and keep.sum() >= 8:
        other = explained(seen.part(keep))
        result.mode, result.ranking = other.mode, other.ranking
        result.notes.append(
            f"the other {int(keep.sum())} positions on their own: {other.fault or other.verdict} ({other.says})"
        )
    result.next.append("find what happens there: ds4-vectors trace, or dump the streams at that position")
    return result


def _of_their_file(
    engine: Engine, path: str, seen: Observation, library: Signatures, bos: int | None
) -> tuple[Diagnosis | None, str]:
    """Check whether the other engine's model file at ``path`` is wrong: our engine gives their numbers on it, but other
    numbers on our file.

    ``library``: runs on our file. Return (diagnosis "file", "") if it is wrong, else (None, note for the diagnosis).
    """
    from ds4ref.engine import Engine as Opened

    from .diagnosis import Signatures
    from .diagnosis import diagnose as explain

    with Opened.open(path, backend=engine.backend, threads=1) as other:
        if other.shape.vocab != engine.shape.vocab:
            raise DataError(f"{path} has a vocabulary of {other.shape.vocab}, ours has {engine.shape.vocab}")
        there = Signatures(other, seen.ids.tolist(), library.columns)
        theirs = explain(there, seen, bos)
        if not theirs.clean:
            return None, f"their engine is also wrong on its own file: {theirs.fault or theirs.verdict}"
        if np.array_equal(there.get(theirs.verdict).logprobs, library.get(theirs.verdict).logprobs):
            return None, "their file and ours give the same numbers"
    theirs.mode, theirs.verdict, theirs.limit = theirs.verdict, "file", None
    theirs.says = "their engine is right about the file it reads, which is not this one"
    theirs.next = [f"ds4-vectors damage {engine.path} {path} names the tensors that differ"]
    return theirs, ""


def _show_tokens(engine: Engine, library: Signatures, seen: Observation, result: Diagnosis) -> None:
    """Add a note to ``result``: the token at the first deviating position, and what each engine expects after it."""
    first, tokenizer = result.first_position, tokenizer_of(engine)
    if first is None or result.mode == "" or tokenizer is None:
        return

    def text(token: int) -> str:
        raw = tokenizer.token_bytes(token).decode("utf-8", "replace") if token < len(tokenizer) else ""
        return f"{raw!r} ({token})"

    r = int(np.searchsorted(seen.rows, first))
    ours = np.full(engine.shape.vocab, -np.inf)
    ours[slice(None) if library.columns is None else library.columns] = library.get(result.mode).logprobs[first]
    theirs = np.where(np.isnan(seen.logprobs[r]), -np.inf, seen.logprobs[r])
    best = int(theirs.argmax())
    token = best if seen.support is None else int(seen.support[r, best])
    mine = int(ours.argmax())
    there, here = f"{text(token)} {theirs[best]:.3f}", f"{text(mine)} {ours[mine]:.3f}"
    result.notes.append(f"at position {first}, after {text(int(seen.ids[first]))}: theirs {there}, ours {here}")


def _describe(result: Diagnosis, seen: Observation) -> str:
    """Return the diagnosis of the observation ``seen`` as text, with a table of the best candidates."""
    from .diagnosis.verdict import where

    kind = "full logits" if seen.full else f"the top {seen.logprobs.shape[1]} tokens"
    stored = f" stored as {result.stored}" if result.stored else ""
    early = f"stopped early, after {result.stopped} candidates: one not tried yet may explain the numbers better"
    lines = [
        *([] if result.stopped is None else [early]),
        f"verdict      {result.verdict}" + (f": {result.fault}" if result.fault else ""),
        f"meaning      {result.says}",
        f"confidence   {result.confidence:.3f}, from {kind}{stored} at {result.positions} positions",
    ]
    if result.parameter is not None:
        p = result.parameter
        interval = f"90 % interval {p['low']:g} to {p['high']:g}"
        lines.append(f"value        {p['value']:g} ({interval}); correct: {p['right']:g}")
    if result.first_position is not None and result.mode:
        lines.append(f"deviates     from {result.mode}, first at position {result.first_position}")
    if result.agrees_with:
        until = "" if result.agrees_until is None else f" up to position {result.agrees_until - 1}"
        lines.append(f"agrees with  {result.agrees_with}{until}")
    lines += [f"note         {note}" for note in result.notes]
    lines += [f"next         {step}" for step in result.next]
    if result.places:
        spots = [
            (p["op"], where(p["layer"]), "{}-{}".format(*p["positions"]),
             f"{p['probability']:.2f}", f"{p['explained']:.2f}", p["change"])
            for p in result.places[:6]
        ]  # fmt: skip
        head = ("place (op)", "layer", "positions", "probability", "explains", "nearest change of our pass")
        lines += ["", rows(head, spots)]
    table = [
        (r["name"], f"{r['odds']:.1f}", f"{r['distance']:.2e}", f"{r['misfit']:.1f}",
         "-" if r["fits_until"] is None else str(r["fits_until"]))
        for r in result.ranking[:8]
    ]  # fmt: skip
    return "\n".join(lines) + "\n\n" + rows(("candidate", "log odds", "distance", "misfit", "differs from"), table)
