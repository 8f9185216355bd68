"""Scoring: a completion with ``echo`` returns the tokens of its prompt with their log probabilities.

Used by lm-evaluation-harness and ds4-vectors. The first token has no log probability, since nothing precedes it, unless
the server put a BOS before the text; the BOS itself is not returned.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..generate import prefill_steps
from ..targets.answer import Delta, Step, Token
from ..targets.local import step_of
from ..text.chat import text_start
from ..text.stream import StreamDecoder
from .turn import Prefill

if TYPE_CHECKING:
    from ..session.session import Session
    from ..text.tokenizer import Tokenizer
    from .job import Job, Part

ROWS = 128
"""Maximum number of positions whose logits are in memory at once."""


def echo(session: Session, tokenizer: Tokenizer, job: Job, part: Part) -> Iterator[None]:
    """Prefill the prompt of ``part``, one of the prompts of ``job``, and report its tokens as deltas, with their log
    probabilities if asked for.

    Yields after every chunk but the last, so that other answers can compute. Raises Cancelled.
    """
    ids, top, total = part.ids, part.turn.top_logprobs, len(part.ids)
    hidden = len(text_start(tokenizer, part.turn.text)) if part.turn.text else 0
    decoder = StreamDecoder(tokenizer)

    def say(steps: list[Step]) -> None:
        text = "".join(decoder.feed(step.token.id) for step in steps if step.token.id is not None)
        job.tell(part, Delta(text, tuple(steps)))

    def progress(done: int, total: int) -> None:
        job.tell(part, Prefill(done, total, 0, "none"))

    progress(0, total)
    session.invalidate()
    if top is None:
        yield from prefill_steps(session, ids, job.timing, progress=progress, cancel=job.cancel)
        say([Step(Token(tokenizer.token_bytes(i), None, i)) for i in ids[hidden:]])
    else:
        say([Step(Token(tokenizer.token_bytes(i), None, i)) for i in ids[hidden:1]])
        for start in range(0, total, ROWS):
            if start:
                yield
            begun = time.perf_counter()
            fed, known = ids[start : start + ROWS], ids[start + 1 : start + ROWS + 1]
            rows = session.extend(fed, cancel=job.cancel)
            progress(start + len(fed), total)
            say([step_of(tokenizer, row, token, top) for row, token in zip(rows, known, strict=False)])
            job.timing.prefill_tokens += len(fed)
            job.timing.prefill_s += time.perf_counter() - begun
    rest = decoder.finish()
    if rest:
        job.tell(part, Delta(rest))
