"""``ds4-server --kv-disk-dir`` as a process that ends, or is killed, and is started again: what it was told before is
not evaluated again, and what it answers is what a server answers that has never heard of it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .hostile import CHAT
from .process import Process, process

SYSTEM = " ".join(f"Rule {i}: what rule {i // 2} says holds, unless {i % 7} things have changed." for i in range(90))
QUESTIONS = [f"Which rule is like rule {i}?" for i in range(6)]
FLAGS = ("-c", "4096", "--kv-cache-min-tokens", "64")


def ask(one: Process, *said: str, system: str = SYSTEM) -> tuple[str, int, int]:
    """The greedy answer to the last thing that was said; tokens of the prompt, and cached ones."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    body = {"messages": messages, "thinking": False, "temperature": 0, "max_tokens": 12}
    answer = httpx2.post(one.url + CHAT, json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    found, usage = answer.json(), answer.json()["usage"]
    return (
        found["choices"][0]["message"]["content"],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


@pytest.fixture(scope="module")
def cold(nano_path: str) -> dict[str, str]:
    """What a server says to each question that was asked nothing before."""
    found = {}
    for question in QUESTIONS[:3]:
        with process(nano_path, *FLAGS) as one:
            found[question], tokens, cached = ask(one, question)
            assert tokens > 2048 and cached == 0
    return found


@pytest.mark.thorough
def test_a_shared_prefix_is_evaluated_once(nano_path: str, tmp_path: Path, cold: dict[str, str]) -> None:
    """In memory, after a restart, and in turns with another conversation."""
    folder = str(tmp_path / "kv")
    first, second, third = QUESTIONS[:3]
    with process(nano_path, *FLAGS, "--kv-disk-dir", folder) as one:
        assert ask(one, first)[0] == cold[first]
        answer, tokens, cached = ask(one, second)
        assert answer == cold[second] and tokens > 2048 and 0 < tokens - cached < 40
        ask(one, "Who are you?", system="Another conversation. " * 40)
        answer, tokens, cached = ask(one, third)
        assert answer == cold[third] and 0 < tokens - cached < 40
        one.process.send_signal(signal.SIGTERM)
        assert one.ends() == 0
    assert list(Path(folder).glob("*.kv"))
    with process(nano_path, *FLAGS, "--kv-disk-dir", folder) as one:
        answer, tokens, cached = ask(one, second)
        assert answer == cold[second] and tokens > 2048 and 0 <= tokens - cached < 40
        assert any("kv cache: hit" in line for line in one.lines)


@pytest.mark.thorough
def test_killed_while_it_saves(nano_path: str, tmp_path: Path, cold: dict[str, str]) -> None:
    killed(nano_path, tmp_path, cold, 2)


@pytest.mark.slow
def test_killed_many_times_while_it_saves(nano_path: str, tmp_path: Path, cold: dict[str, str]) -> None:
    """DS4_TEST_SERVER_KILLS times, 20 of them unless that says otherwise."""
    killed(nano_path, tmp_path, cold, int(os.environ.get("DS4_TEST_SERVER_KILLS", "20")))


def killed(model: str, path: Path, cold: dict[str, str], times: int) -> None:
    """Servers that are killed at any moment while prompts come: the next one finds what is whole, and no more."""
    draw, folder = random.Random(1), path / "kv"
    flags = (*FLAGS, "--kv-disk-dir", str(folder), "--kv-disk-space-mb", "64", "--memory-mb", "0")
    for _ in range(times):
        with process(model, *flags) as one:
            question = draw.choice(list(cold))
            assert ask(one, question)[0] == cold[question]
            with httpx2.Client(base_url=one.url, timeout=120, trust_env=False) as client:
                body = {"messages": [{"role": "system", "content": f"{draw.random()} is the number. " * 30},
                                     {"role": "user", "content": "Which one?"}], "max_tokens": 500, "stream": True,
                        "thinking": False}  # fmt: skip
                with client.stream("POST", CHAT, json=body) as answer:
                    lines = answer.iter_lines()
                    next(lines)
                    if draw.random() < 0.5:
                        lines.close()  # the client is gone, so the answer ends and its session is saved
                    time.sleep(draw.random() * 0.2)
                    one.process.kill()
                    one.process.wait(60)
        assert not any(name.endswith(".bad") for name in os.listdir(folder))
    with process(model, *flags) as one:
        for question, answer in cold.items():
            assert ask(one, question)[0] == answer
        one.process.send_signal(signal.SIGTERM)
        assert one.ends() == 0
    left = {name for name in os.listdir(folder) if not name.endswith(".kv")}
    assert left <= {".lock"}
    assert sum((folder / name).stat().st_size for name in os.listdir(folder)) <= 64 << 20
