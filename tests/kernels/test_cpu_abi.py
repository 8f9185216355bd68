"""The layout that Python and machine code share: words of different writers lie on different cache lines."""

from __future__ import annotations

import pytest

from ds4ref.kernels.cpu import abi
from ds4ref.kernels.cpu.workers import Workers, aligned

APPLE = 128
"""Bytes of a cache line of Apple's processors; x86 and other AArch64 have 64."""

STEP_WRITERS = {
    "who describes the step": "TASK ARGS UNITS CHUNK WAIT PER NEXT MEMBERS NEEDS TAILS TAIL_COUNT",
    "all who claim": "CLAIMED",
    "all who finish": "DONE",
}
POOL_WRITERS = {
    "who posts a job": "JOB",
    "who opens and closes it": "OPEN",
    "all who join": "INSIDE",
    "who describes it": "STEPS COUNT THREADS SPIN NAP IDLE_NAP IDLE",
    "who stops the pool": "STOP",
    "who meets an error": "ERROR",
    "all who finish a group": "FINISHED",
}


@pytest.mark.parametrize(
    ("prefix", "writers", "size"),
    [("STEP_", STEP_WRITERS, abi.STEP_BYTES), ("POOL_", POOL_WRITERS, abi.POOL_BYTES)],
    ids=["step", "pool"],
)
def test_words_of_different_writers_share_no_line(prefix: str, writers: dict[str, str], size: int):
    words = {word: getattr(abi, prefix + word) for names in writers.values() for word in names.split()}
    known = {name.removeprefix(prefix) for name in vars(abi) if name.startswith(prefix)}
    assert set(words) == known - {"BYTES", "HEADER"}
    assert len(set(words.values())) == len(words) and all(offset % 8 == 0 for offset in words.values())
    lines = [{words[word] // APPLE for word in names.split()} for names in writers.values()]
    assert all(len(line) == 1 for line in lines), "words of one writer lie together"
    assert len(set.union(*lines)) == len(lines)
    assert size % APPLE == 0 and all(offset + 8 <= size for offset in words.values())


def test_lines_begin_where_the_processor_has_them():
    """Offsets say nothing in memory that begins anywhere."""
    pool = Workers(1)
    assert pool._base % APPLE == 0 and (pool._base + pool._steps) % APPLE == 0
    assert all(aligned(size).ctypes.data % APPLE == 0 for size in (1, 64, 100, 128, 5000))
