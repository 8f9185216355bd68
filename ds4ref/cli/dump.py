"""Modes of ``ds4`` that print or write numbers instead of text (docs/reference/ds4.md).

Files are written atomically. Mistakes that can be found without the weights are reported before these are loaded.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..console.common import EXIT_INTERRUPTED, Progress, atomic_output, read_text, say
from ..console.model import choose_model, open_engine
from ..console.options import MAX_TOP_K
from ..errors import ContextError, DataError, TextError
from ..generate import Timing, check_fits, decode, prefill
from ..runs.provenance import identity, now
from .prompt import check_ids, encode, read_source, think_mode

if TYPE_CHECKING:
    import numpy as np

    from ..session.session import Session
    from ..text.tokenizer import Tokenizer

PROG = "ds4"
PERPLEXITY_CONTEXT = 32
LOGIT_ROWS = 512


# ------------------------------------------------------------------------------------------------- --dump-tokens


def dump_tokens(args: Namespace) -> int:
    """Print ``[id, id, ...]`` for the prompt, then a line ``%6d  piece`` per token.

    Special tokens in the text are recognised; no BOS is added.
    """
    from ..text.vocabulary import open_tokenizer
    from ..weights import open_source

    source = read_source(args)
    with open_source(choose_model(PROG, args.model).path) as opened:
        tok = open_tokenizer(opened, args.split or "unicode")
    ids = tok.encode_rendered(source.text)
    print(f"[{', '.join(map(str, ids))}]")
    for token in ids:
        print(f"{token:6d}  {tok.token_string(token)}")
    return 0


# ----------------------------------------------------------------------------------------------- --dump-logprobs


def dump_logprobs(args: Namespace) -> int:
    """Write a greedy continuation of the prompt as JSON, each token with the most likely alternatives
    (docs/reference/ds4.md)."""
    source = read_source(args)
    top_k = min(args.logprobs_top_k, MAX_TOP_K)
    with open_engine(PROG, args) as engine:
        tok = engine.tokenizer
        ids, _ = encode(source, tok, engine.shape.vocab, args.system, think_mode(PROG, args, tok))
        check_fits(len(ids), args.ctx)
        session = engine.session(args.ctx)
        with Progress(f"processing {len(ids)} input tokens") as progress:
            prefill(session, ids, Timing(), progress=progress, chunk=args.prefill_chunk)
        with atomic_output(args.dump_logprobs) as out:
            head = {"source": "ds4", "prompt_tokens": len(ids), "ctx": args.ctx, "top_k": top_k}
            lines = (f'  "{key}":{json.dumps(value)},' for key, value in head.items())
            out.write(("{\n" + "\n".join(lines) + '\n  "steps":[\n').encode())
            finish = _write_steps(out, session, tok, min(args.tokens, args.ctx - len(ids)), top_k)
            tail = {**identity(engine), "created": now(), "finish": finish, "prompt_ids": [int(i) for i in ids]}
            rest = (f'  "{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in tail.items())
            out.write(("\n  ],\n" + ",\n".join(rest) + "\n}\n").encode())
    return 0


def _write_steps(out: IO[bytes], session: Session, tok: Tokenizer, limit: int, top_k: int) -> str:
    """Write one JSON object per generated token, separated by commas; return "stop" if an end-of-text token was chosen,
    else "length"."""
    with Progress("decoding") as progress:
        for step, token in enumerate(decode(session, lambda s: s.argmax(), limit, tok.ends, last=False)):
            best = session.top_logprobs(top_k)
            alternatives = ",".join(
                f'{{"token":{token_json(tok, other)},"logit":{number_json(logit)},"logprob":{number_json(logprob)}}}'
                for other, logit, logprob in best
            )
            line = f'{{"step":{step},"selected":{token_json(tok, token)},"top_logprobs":[{alternatives}]}}'
            out.write((",\n" if step else "").encode() + b"    " + line.encode())
            progress(step + 1, limit)
            if token in tok.ends:
                return "stop"
    return "length"


def token_json(tok: Tokenizer, token: int) -> str:
    """Return a token as JSON, ``{"id":..,"text":"..","bytes":[..]}``; "text" is approximate for incomplete UTF-8,
    "bytes" always exact."""
    raw = tok.token_bytes(token)
    return f'{{"id":{token},"text":"{escape(raw)}","bytes":[{",".join(map(str, raw))}]}}'


def escape(raw: bytes) -> str:
    """Escape ``raw`` for a JSON string: valid UTF-8 stays readable, else bytes >= 0x80 become ``\\u00xx``."""
    try:
        text, broken = raw.decode("utf-8"), False
    except UnicodeDecodeError:
        text, broken = raw.decode("latin-1"), True
    return "".join(_SHORT.get(c) or (f"\\u{ord(c):04x}" if c < " " or (broken and c >= "\x80") else c) for c in text)


_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def number_json(value: float) -> str:
    """Format a number for JSON as ``%.9g``, which is exact for float32; NaN and infinity become null."""
    return f"{value:.9g}" if math.isfinite(value) else "null"


# ------------------------------------------------------------------------------------------------- --dump-logits


def dump_logits(args: Namespace) -> int:
    """Write an .npz with ``ids`` (T,) int32 and ``logits`` (T, vocab) float32, chunk by chunk in bounded memory."""
    import numpy as np

    source = read_source(args)
    with open_engine(PROG, args) as engine:
        vocab = engine.shape.vocab
        if source.ids is None:
            mode = think_mode(PROG, args, engine.tokenizer)
            ids, _ = encode(source, engine.tokenizer, vocab, args.system, mode)
        else:  # token ids need no tokenizer, which the file may lack
            ids = check_ids(source.ids, vocab, source.where)
        check_fits(len(ids), args.ctx)
        check_space(args.dump_logits, len(ids) * vocab * 4)
        session = engine.session(args.ctx)
        with atomic_output(args.dump_logits) as out, zipfile.ZipFile(out, "w") as archive:
            with archive.open(zipfile.ZipInfo("ids.npy"), "w") as member:
                np.lib.format.write_array(member, np.asarray(ids, np.int32))
            with archive.open(zipfile.ZipInfo("logits.npy"), "w", force_zip64=True) as member:
                shape = (len(ids), vocab)
                np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": shape})
                with Progress("evaluating tokens") as progress:
                    for start, logits in walk(session, ids, args):
                        member.write(np.ascontiguousarray(logits, "<f4").data)
                        progress(start + len(logits), len(ids))
    return 0


def walk(session: Session, ids: Sequence[int], args: Namespace) -> Iterator[tuple[int, np.ndarray]]:
    """Evaluate ``ids`` in the empty ``session``; yield (first position, logits (n, vocab)) a few tokens at a time."""
    yield from session.passes(ids, 1 if args.one_by_one else args.prefill_chunk, rows=LOGIT_ROWS)


def check_space(path: str, needed: int) -> None:
    """Raise DataError if the disk of ``path`` has clearly less than ``needed`` bytes free."""
    target = Path(path).resolve()
    if not target.is_file() and target.exists():
        return  # the output is a device or a pipe
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise DataError(f"cannot write {path}: needs {needed / 1e9:.1f} GB, only {free / 1e9:.1f} GB free")


# --------------------------------------------------------------------------------------------- --perplexity-file


def perplexity(args: Namespace) -> int:
    """Print in one line the perplexity of a text, in which its first 32 tokens are not counted (docs/reference/ds4.md).

    After Ctrl-C, prints the result for the tokens scored so far.
    """
    from ..sampling import token_logprob

    text = read_text(args.perplexity_file, "text")
    if args.ctx <= PERPLEXITY_CONTEXT:
        raise ContextError(f"perplexity needs a context of more than {PERPLEXITY_CONTEXT} tokens, --ctx is {args.ctx}")
    with open_engine(PROG, args) as engine:
        ids = engine.tokenizer.encode(text)
        scored = min(len(ids) - PERPLEXITY_CONTEXT, args.tokens, args.ctx - PERPLEXITY_CONTEXT)
        if scored < 1:
            raise TextError(
                f"{args.perplexity_file} has {len(ids)} tokens; scoring needs more than {PERPLEXITY_CONTEXT}"
            )
        if scored == args.ctx - PERPLEXITY_CONTEXT < len(ids) - PERPLEXITY_CONTEXT:
            say(PROG, f"warning: the text has {len(ids)} tokens; truncated to --ctx {args.ctx}")
        values: list[float] = []
        last, stopped = PERPLEXITY_CONTEXT + scored - 1, False
        with Progress("perplexity scored", "tok/s") as progress:
            try:
                for start, logits in walk(engine.session(args.ctx), ids[:last], args):
                    rows = range(max(0, PERPLEXITY_CONTEXT - 1 - start), len(logits))
                    values += [-token_logprob(logits[row], ids[start + row + 1]) for row in rows]
                    progress(len(values), scored)
            except KeyboardInterrupt:
                stopped = True
    if stopped:
        say(PROG, f"interrupted; {len(values)} of {scored} tokens were scored")
    if values:
        nll = math.fsum(values)
        average = nll / len(values)
        value = math.exp(average) if average < 700 else math.inf
        print(f"tokens={len(ids)} scored={len(values)} nll={nll:.9f} avg_nll={average:.9f} ppl={value:.9f}")
    sys.stdout.flush()
    return EXIT_INTERRUPTED if stopped else 0
