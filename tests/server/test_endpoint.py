"""One answer on a scripted clock: what is written when, and until when the next event is waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from ds4ref.errors import TextError
from ds4ref.server.api import Refused
from ds4ref.server.endpoint import PACE, Slow, _Answer, translated
from ds4ref.server.exchange import Exchange
from ds4ref.server.limits import Disconnected, Limits
from ds4ref.server.turn import Failed, Prefill, Queued, Turn
from ds4ref.targets.answer import Delta, Finish, Step, Token, Usage

from .echo import EchoReply

HI = [{"role": "user", "content": "Hi"}]
ALIVE = b": keep-alive\n\n"
PROMPT = Prefill(0, 9, 0, "none")
LAST = Delta(finish=Finish.STOP, usage=Usage(9, 1, 0, 0))


def said(text):
    return Delta(text, (Step(Token(text.encode())),))


class Played:
    """An answer to which events come at set times: ``writes`` (time, message), ``waits`` (until, rest)."""

    def __init__(self, stream, *batches, full=False, left=False, reads=True):
        self.now, self.batches = 0.0, list(batches)
        self.writes, self.waits = [], []
        self.x = Exchange("chat", {}, "me")
        self.x.job = SimpleNamespace(began=None, ended=None, decoding=None, submitted=0.0, ids=[1])
        self.full, self.loop = full, SimpleNamespace(time=lambda: self.now)
        self.abandoned = []
        worker = SimpleNamespace(abandon=self.abandoned.append)
        service = SimpleNamespace(limits=Limits(alive_seconds=5.0, write_seconds=2.0), worker=worker, ctx=64)
        link = SimpleNamespace(gone=left, drained=self.drained)
        self.reads = reads
        self.answer = _Answer(
            service, self.x, Turn("chat"), EchoReply(None, None, {"stream": stream}), link, self, self.send
        )
        asyncio.run(self.answer.run())

    async def take(self, until, rest):
        self.waits.append((until, rest))
        self.now, *events = self.batches.pop(0)
        return events

    async def drained(self, seconds):
        assert seconds == 2.0
        return self.reads

    async def send(self, message):
        self.writes.append((self.now, message.get("status", message.get("body"))))


def test_a_stream_is_kept_alive_since_its_last_write():
    """Not since its first: a stream of minutes would be full of comments between all of its tokens."""
    played = Played(
        True, (2, Queued(1)), (5,), (7, PROMPT), (11, PROMPT), (12,), (13, said("a")), (14, said("b")), (18.9,), (19,),
        (20, said("c"), LAST),
    )  # fmt: skip
    assert played.writes == [
        (5, 200), (5, ALIVE), (7, b'data: {"begin": true}\n\n'), (12, ALIVE), (13, b'data: {"text": "a"}\n\n'),
        (14, b'data: {"text": "b"}\n\n'), (19, ALIVE),
        (20, b'data: {"text": "c"}\n\ndata: {"finish": "stop", "prompt": 9, "cached": 0}\n\ndata: [DONE]\n\n'),
    ]  # fmt: skip
    untils = [until for until, _ in played.waits]
    assert untils == [5, 5, 10, 12, 12, 17, 18, 19, 19, 24]
    assert [rest for _, rest in played.waits] == [0] * 6 + [13 + PACE, 14 + PACE, 14 + PACE, 19 + PACE]
    assert played.x.status == 200


def test_nothing_waits_before_the_first_text_and_ordinary_tokens_never():
    """The tag that ends the reasoning is a token that nobody sees: it starts no pause, and is not the first token."""
    tag = Delta(steps=(Step(Token(b"</think>")),))
    times = [2, *(3 + 0.005 * n for n in range(9))]
    played = Played(True, (1, PROMPT), (1.001, tag), *((time, said("a")) for time in times), (4, LAST))
    assert [rest for _, rest in played.waits[:3]] == [0, 0, 0]
    assert all(rest < time for (_, rest), time in zip(played.waits[2:], times, strict=False))
    assert [time for time, body in played.writes[2:-1]] == times


@pytest.mark.parametrize(("stream", "body"), [(False, None), (True, b'data: {"error": {"message": "server shutting '
                                                                    b'down", "code": "shutdown"}}\n\n')])  # fmt: skip
def test_an_answer_that_the_server_breaks_off_is_no_whole_one(stream, body):
    """A cancelled end while the client is still there: the server ends. In a stream that has begun it is said there."""
    played = Played(stream, (1, PROMPT), (2, said("a")), (3, Delta(finish=Finish.CANCELLED)))
    if stream:
        assert played.writes[-1] == (3, body) and played.x.status == 200
    else:
        assert [what for _, what in played.writes][0] == 503 and played.x.status == 503
    early = Played(stream, (1, Failed("shutdown", "server shutting down")))
    assert early.writes[0] == (1, 503) and early.x.status == 503


def test_who_is_gone_or_reads_nothing_ends_it():
    for options, error in (({"left": True}, Disconnected), ({"full": True}, Slow), ({"reads": False}, Slow)):
        with pytest.raises(error):
            Played(True, (1, PROMPT), (2, LAST), **options)


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("x"), 400), (RecursionError(), 400), (TextError("x"), 400), (KeyError("x"), 500), (MemoryError(), 500),
     (BaseException("a panic in Rust"), 500), (Refused(418, "tea"), 418)],
)  # fmt: skip
def test_whose_fault_an_exception_is(error, status):
    with pytest.raises(Refused) as refused, translated():
        raise error
    assert refused.value.status == status
