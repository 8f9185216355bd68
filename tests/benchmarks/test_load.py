"""Many clients that come and go: every answer that is heard to its end is right, and nothing is left behind."""

import pytest

from benchmarks import load


def test_what_a_line_of_a_stream_brings():
    """Of all four APIs."""
    assert load.piece('data: {"choices":[{"delta":{"content":"a"}}]}') == "a"
    assert load.piece('data: {"choices":[{"delta":{"role":"assistant"}}]}') == ""
    assert load.piece('data: {"choices":[{"text":"b","index":0}]}') == "b"
    assert load.piece('data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"c"}}') == "c"
    assert load.piece('data: {"type":"response.output_text.delta","delta":"d"}') == "d"
    for line in (": keep-alive", "", "event: ping", "data: [DONE]", 'data: {"type":"response.completed"}'):
        assert load.piece(line) == ""
    for line in ('data: {"error":{}}', 'data: {"type":"error"}', 'data: {"type":"response.failed"}'):
        with pytest.raises(AssertionError):
            load.piece(line)


@pytest.mark.slow
def test_200_clients_for_20_seconds(nano_path):
    found = load.load(seconds=20, clients=200, tokens=8, threads=1, model=nano_path)
    assert found["answers"] > 50 and found["left"] > 10
    assert (found["wrong"], found["failed"], found["live"]) == (0, 0, 0)
    assert found["late"]["running"] > 0 and found["late"]["tokens"] <= 1
    before, after = found["before"], found["after"]
    assert after["files"] <= before["files"] and after["threads"] <= before["threads"]
    assert after["KiB"] - before["KiB"] < 32 << 10
    assert max(found["shares"]) - min(found["shares"]) < 12, "some were answered much more often than others"
    assert all(row.met is not False for row in load.rows(found))
