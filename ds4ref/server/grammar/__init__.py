"""What an answer has to look like, as grammars on tokens: the parts of ``constrain``.

    patterns     regular expressions of JSON schemas
    formats      what their formats mean
    matching     whether a string matches
    schema       JSON schemas: what can be enforced, and in which words the library wants it
    strings      what they say of strings and types
    block        tools as the block of DSML that calls them
    custom       grammars that clients bring along
    vocabulary   a tokenizer's tokens as the library wants them, and compiled grammars
    follow       one answer on its way through a grammar, to its end

The library is llguidance. What it does not enforce is refused here, by name, before anything is generated
(``Unsupported``); what it would take too long for is refused as ``TooLarge``.
"""

from __future__ import annotations

from ...errors import TextError


class Unsupported(TextError):
    """A feature of a schema or grammar that cannot be enforced. ``feature`` is its keyword or name, ``where`` a path
    into the schema ("#/properties/a"), "" where there is none."""

    def __init__(self, feature: str, where: str = "", why: str = ""):
        place = f" at {where}" if where else ""
        reason = f": {why}" if why else ""
        super().__init__(f"{feature}{place} is not supported{reason}")
        self.feature, self.where, self.why = feature, where, why


class TooLarge(TextError):
    """A schema or grammar that is larger or deeper than this server compiles. The message names the limit."""


class Lost(TextError):
    """An answer that cannot be kept to its grammar: the library gave up (``why`` is what it says), or nothing fits."""

    def __init__(self, message: str, why: str = ""):
        super().__init__(f"{message}: {why}" if why else message)
        self.why = why
