"""Words and sentences that skills use, from ``words.toml``. All words are different, and each is one token, with and
without a blank before it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text())
WORDS = {kind: tuple(words.split()) for kind, words in TABLES["words"].items()}
TOPICS = {topic: tuple(words.split()) for topic, words in TABLES["topics"].items()}
NAMES = WORDS["women"] + WORDS["men"]
TOPIC_WORDS = tuple(word for words in TOPICS.values() for word in words)
OBJECTS, PLACES, COLOURS = WORDS["objects"], WORDS["places"], WORDS["colours"]
