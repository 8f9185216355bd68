"""``ds4 -p``: one prompt, one answer on stdout, the timing on stderr."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ..console.common import CYAN, EXIT_INTERRUPTED, Interrupt, Progress, say, tint
from ..console.model import open_engine
from ..errors import Cancelled
from ..generate import Generation, Piece, Timing, check_fits, prefill
from ..runs.provenance import identity, stamp
from ..sampling import fresh_seed, sampler_of
from .printer import Printer
from .prompt import encode, read_source, think_mode

if TYPE_CHECKING:
    from ..engine import Engine
    from ..session.session import Session

PROG = "ds4"


def oneshot(args: Namespace) -> int:
    """Run ``ds4 -p``; return the exit code."""
    source = read_source(args)
    with open_engine(PROG, args) as engine:
        mode = think_mode(PROG, args, engine.tokenizer)
        ids, thinking = encode(source, engine.tokenizer, engine.shape.vocab, args.system, mode)
        check_fits(len(ids), args.ctx, room=2)
        return answer(engine, args, ids, thinking)


def answer(engine: Engine, args: Namespace, ids: list[int], thinking: bool) -> int:
    """Prefill ``ids``, stream the answer, print the timing; return the exit code.

    Ctrl-C keeps the partial answer and returns 130. ``thinking``: the answer starts inside ``<think>``.
    """
    session = engine.session(args.ctx)
    timing = Timing()
    seed, pieces = args.seed or fresh_seed(), list[Piece]()
    with Interrupt() as interrupt:
        try:
            with Progress(f"processing {len(ids)} input tokens") as progress:
                prefill(session, ids, timing, progress=progress, cancel=interrupt, chunk=args.prefill_chunk)
        except Cancelled:
            say(PROG, f"interrupted after {timing.prefill_tokens} of {len(ids)} prompt tokens")
            report(timing, engine)
            return EXIT_INTERRUPTED
        generation = generation_of(engine, session, args, seed, thinking, interrupt, timing)
        try:
            with nullcontext(pieces.append) if args.json else Printer() as show:
                for piece in generation:
                    show(piece)
        finally:
            report(timing, engine)
    if args.json:
        print(json.dumps(answer_facts(pieces, generation) | run_facts(engine, args, timing, generation, seed)))
    return EXIT_INTERRUPTED if generation.finish == "cancelled" else 0


def report(timing: Timing, engine: Engine) -> None:
    """Print the timing line (ds4.md) on stderr: time of the engine, without time spent printing. Print nothing if
    nothing was computed.

    With speculative decoding, a second line says how many drafted tokens were accepted so far.
    """
    if not (timing.prefill_tokens or timing.tokens):
        return
    lines = [f"{PROG}: prefill: {timing.prefill_tps:.2f} t/s, generation: {timing.decode_tps:.2f} t/s"]
    if engine.drafts is not None:
        lines.append(f"{PROG}: {engine.drafts.counts}")
    try:
        print(*(tint(line, CYAN, sys.stderr) for line in lines), sep="\n", file=sys.stderr, flush=True)
    except OSError:
        pass


def generation_of(
    engine: Engine, session: Session, args: Namespace, seed: int, thinking: bool, cancel: Interrupt, timing: Timing
) -> Generation:
    """Return the generation of an answer with the settings of the flags and the sampler for this kind of model
    (llama2.c has its own)."""
    sampler = sampler_of(engine.source, args.temp, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p, seed=seed)
    return Generation(session, engine.tokenizer, sampler, limit=args.tokens, thinking=thinking, cancel=cancel,
                      timing=timing)  # fmt: skip


def answer_facts(pieces: list[Piece], generation: Generation) -> dict[str, Any]:
    """Return what ``--json`` prints about an answer: its text, its reasoning and its token ids."""
    return {
        "text": "".join(piece.text for piece in pieces if not piece.thinking),
        "reasoning": "".join(piece.text for piece in pieces if piece.thinking),
        "token_ids": generation.tokens,
    }


def run_facts(engine: Engine, args: Namespace, timing: Timing, generation: Generation, seed: int) -> dict[str, Any]:
    """Return what ``--json`` prints about the run: engine, settings, and times in seconds without time spent
    printing."""
    return {
        **identity(engine),
        **stamp(),
        "ctx": args.ctx,
        "seed": seed if args.temp > 0 else None,
        "temperature": args.temp,
        "prompt_tokens": timing.reused_tokens + timing.prefill_tokens,
        "prefill_s": timing.prefill_s,
        "prefill_tps": timing.prefill_tps,
        "first_token_s": timing.first_token_s,
        "tokens": timing.tokens,
        "decode_s": timing.decode_s,
        "decode_tps": timing.decode_tps,
        "finish": generation.finish,
        "drafts": None if engine.drafts is None else engine.drafts.facts(),
        "experts": engine.expert_use(),
    }
