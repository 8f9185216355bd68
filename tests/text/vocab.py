"""A small vocabulary of our own: all bytes, a few merges, the control tokens."""

from ds4ref.text import protocol
from ds4ref.text.byte_level import ALPHABET
from ds4ref.text.tokenizer import Tokenizer

MERGES = (
    "l o",
    "lo w",
    "e s",
    "es t",
    "Ġ t",
    "t h",
    "h e",
    "Ġt he",
    "1 2",
    "12 3",
    "< /",
    "Ċ Ċ",
    "â Ĥ",
    "âĤ ¬",
    "a a",
    "Ġ Ġ",
)


def make(split: str = "unicode", extra: tuple[str, ...] = (), merges: tuple[str, ...] = MERGES) -> Tokenizer:
    """BOS and EOS first, then the bytes, the merged tokens, and the other control tokens."""
    made = [merge.replace(" ", "") for merge in merges]
    tokens = [protocol.BOS, protocol.EOS, *ALPHABET, *made, *protocol.SPECIALS[2:], *extra]
    return Tokenizer(tokens, merges, split)
