"""Tokenizer: encoding, decoding, control tokens, bad tables (docs/explanation/text.md 1, 2)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.errors import TextError
from ds4ref.text import protocol, tokenizer
from ds4ref.text.byte_level import ALPHABET
from ds4ref.text.tokenizer import Tokenizer
from ds4ref.text.vocabulary import ids_by_bytes
from tests.golden import ROOT, needs_golden
from tests.growth import grows_linearly
from tests.text.vocab import MERGES, make

TOK = make()
BOTH = pytest.mark.parametrize("tok", [TOK, make("ds4")], ids=lambda tok: tok.split)


def test_of_tokens_with_equal_bytes_the_first_has_them():
    """Nothing stands for the empty text: in some files all control tokens have no bytes."""

    class Few(list):
        token_bytes = list.__getitem__

    assert ids_by_bytes(Few([b"", b"a", b"b", b"a", b"", b"b", b"c"])) == {b"a": 1, b"b": 2, b"c": 6}  # type: ignore[arg-type]


def strings(tok: Tokenizer, text) -> list[str]:
    return [tok.token_string(token) for token in tok.encode(text)]


@needs_golden
@pytest.mark.parametrize("split", ["unicode", "ds4"])
def test_golden_vocabulary(split):
    from ds4ref.weights.gguf import GGUFFile

    with GGUFFile.open(ROOT / "tiny.gguf") as gguf:
        tok = Tokenizer.from_source(gguf, split)
    assert (len(tok), tok.bos, tok.eos) == (512, 0, 1)
    cases = json.loads((ROOT / "tokenizer.json").read_text("utf-8"))
    assert len(cases) > 10
    for case in cases:
        assert tok.encode_rendered(case["text"]) == case["ids"], case["text"]
        assert tok.decode(case["ids"]).decode() == case["text"]


def test_lowest_rank_first_and_leftmost():
    assert strings(TOK, "lowest") == ["low", "est"]
    assert strings(TOK, "aaaaa") == ["aa", "aa", "a"]
    assert strings(TOK, " the") == ["Ġthe"]
    # "t h" (rank 5) goes before "h e" (rank 6)
    assert strings(TOK, "the") == ["th", "e"]


@BOTH
@given(text=st.text())
def test_round_trip_text(tok, text):
    assert tok.decode(tok.encode(text)).decode() == text
    assert b"".join(tok.pieces(text)).decode() == text


@BOTH
@given(data=st.binary())
def test_round_trip_bytes(tok, data):
    assert tok.decode(tok.encode(data)) == data
    assert tok.decode(tok.encode_rendered(data)) == data


@BOTH
def test_surrogates(tok):
    assert tok.decode(tok.encode("a\udce2\udc82b")) == b"a\xe2\x82b"  # bytes as Python carries them in arguments
    assert tok.encode("\udce2\udc82\udcac") == tok.encode("€")  # and together they may be valid after all
    assert tok.decode(tok.encode("a\ud83db")).decode() == "a\ufffdb"
    assert tok.decode(tok.encode("\ud83d\ude00\udc41")).decode() == "\ufffd\ufffd\ufffd"


@BOTH
def test_control_strings_in_plain_text_stay_text(tok):
    control = {tok.special_id(name) for name in protocol.SPECIALS}
    for name in protocol.SPECIALS:
        ids = tok.encode(f"a{name}b")
        assert not control & set(ids)
        assert tok.decode(ids).decode() == f"a{name}b"
        assert tok.encode_rendered(f"a{name}b") == [*tok.encode("a"), tok.special_id(name), *tok.encode("b")]


def test_rendered_spans_are_separate():
    # The blank before <think> cannot merge with what follows it, and ``</`` comes before the DSML marker.
    assert TOK.encode_rendered(" <think>the") == [*TOK.encode(" "), TOK.think_open, *TOK.encode("the")]
    ids = TOK.encode_rendered("</｜DSML｜invoke>")
    assert [TOK.token_string(i) for i in ids[:2]] == ["</", "｜DSML｜"]
    assert TOK.encode_rendered("</think>")[0] == TOK.think_close
    assert TOK.encode_rendered("") == []


def test_ids_are_those_of_the_strings():
    tok = make(extra=("<｜x｜>",))
    names = (tok.bos, tok.eos, tok.user, tok.assistant, tok.think_open, tok.think_close, tok.dsml)
    assert [tok.token_string(i) for i in names] == list(protocol.SPECIALS)
    assert tok.token_bytes(len(tok) - 1).decode() == "<｜x｜>"  # any token with U+FF5C is verbatim
    assert tok.token_bytes(tok.think_open) == b"<think>"


def test_outside_the_vocabulary_is_nothing():
    assert TOK.token_bytes(len(TOK)) == TOK.token_bytes(-1) == b""
    assert TOK.token_string(len(TOK)) == TOK.token_string(-1) == TOK.token_string(129279) == ""
    assert TOK.token_string(len(TOK) - 1) == protocol.DSML and TOK.token_string(0) == protocol.BOS
    assert (
        TOK.decode([TOK.bos, 10**9, *TOK.encode("x")])
        == b"<\xef\xbd\x9cbegin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>x"
    )


def test_later_duplicate_wins():
    tok = make(extra=("low",))
    assert tok.encode("low") == [len(tok) - 1]
    assert tok.token_bytes(len(tok) - 1) == b"low"
    twice = make(merges=("t h", *MERGES[:5], *MERGES[6:], "t h"))  # its last rank counts: "h e" is earlier now
    assert strings(twice, "the") == ["t", "he"]


@pytest.mark.parametrize("missing", [protocol.USER, protocol.THINK_CLOSE, protocol.DSML])
def test_missing_control_token(missing):
    tokens = [token for token in [*protocol.SPECIALS, *ALPHABET] if token != missing]
    with pytest.raises(TextError, match=missing):
        Tokenizer(tokens, [])


def test_missing_byte():
    with pytest.raises(TextError, match="1 of the 256 bytes .first: 0x20"):
        Tokenizer([*protocol.SPECIALS, *ALPHABET.replace("Ġ", "")], [])


@pytest.mark.parametrize("merge", ["a", "a ", " a", "a b c", "a  b", "", "a b", "zz a", "a zz"])
def test_bad_merges(merge):
    tokens = [*protocol.SPECIALS, *ALPHABET]
    with pytest.raises(TextError, match="merge 0"):
        Tokenizer(tokens, [merge])


def test_merges_may_not_make_control_tokens():
    parts = ["<t", "<th", "in", "ink", "ink>"]
    merges = ["< t", "<t h", "i n", "in k", "ink >", "<th ink>"]
    with pytest.raises(TextError, match="control token"):
        Tokenizer([*protocol.SPECIALS, *ALPHABET, *parts], merges)


class FakeFile:
    path = "m.gguf"

    def __init__(self, **metadata):
        self.metadata = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


@BOTH
def test_from_a_file(tok):
    tokens = [tok.token_string(i) for i in range(len(tok))]
    again = Tokenizer.from_source(FakeFile(tokens=tokens, merges=list(MERGES)), tok.split)
    text = "the lowest <think> 1234\n\n 中 \x01\x02 €"
    assert again.split == tok.split and again.encode_rendered(text) == tok.encode_rendered(text)


@pytest.mark.parametrize(
    "gguf",
    [
        FakeFile(),
        FakeFile(tokens=["a"]),
        FakeFile(tokens=[], merges=[]),
        FakeFile(tokens="abc", merges=["a b"]),
        FakeFile(tokens=[1, 2], merges=["a b"]),
        FakeFile(tokens=[b"\xff"], merges=["a b"]),
    ],
)
def test_files_without_a_usable_tokenizer(gguf):
    with pytest.raises(TextError, match="m.gguf: .*tokenizer"):
        Tokenizer.from_source(gguf)


def check_huge(tok: Tokenizer, unit: str | bytes, count: int):
    """``count`` units and as many as 16 times that are one word each, and take time in proportion."""

    def encoded(size: int) -> None:
        text = unit * size + (b"x" if isinstance(unit, bytes) else "x")
        data = text if isinstance(text, bytes) else text.encode()
        assert tok.decode(tok.encode(text)) == data

    assert grows_linearly(encoded, count)


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize("unit", ["a", " ", "中", "!", "7", "\n ", b"\xff"])
def test_one_long_word(tok, unit):
    check_huge(tok, unit, 20_000)


@pytest.mark.parametrize("stride", [1, 2, 5, 17, 1000])
def test_protocol_strings_are_found_wherever_a_stride_ends(monkeypatch, stride):
    text = "a<" + "<".join(protocol.SPECIALS) + "".join(protocol.SPECIALS) + "<b" + protocol.SPECIALS[0][:-1]
    wanted = [match.span() for match in tokenizer._SPECIAL.finditer(text)]
    monkeypatch.setattr(tokenizer, "_STRIDE", stride)
    assert [match.span() for match in tokenizer._specials(text)] == wanted and len(wanted) == 2 * len(protocol.SPECIALS)
