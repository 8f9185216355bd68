"""Scored pieces in GGUF files: the same vocabulary as a tokenizer.bin, spelled and typed as llama.cpp has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.errors import TextError
from ds4ref.text.pieces import PieceTokenizer, from_source
from ds4ref.weights.gguf import GGUFFile

from ..weights import llama2c
from ..weights.modelfile import open_metadata

TOKENS = llama2c.vocabulary(llama2c.Config(vocab=340))
PIECES = [
    piece.decode().replace("\n<s>\n", "<s>").replace("\n</s>\n", "</s>").replace(" ", "\u2581") for _, piece in TOKENS
]
KINDS = [2, 3, 3, *[6] * 256, *[1] * (len(TOKENS) - 259)]


def entries(**changes: Any) -> list[tuple[str, str, Any]]:
    found: dict[str, tuple[str, Any]] = {
        "model": ("string", "llama"), "tokens": ("string[]", PIECES), "token_type": ("i32[]", KINDS),
        "scores": ("f32[]", [score for score, _ in TOKENS]), "bos_token_id": ("u32", 1), "eos_token_id": ("u32", 2),
    } | changes  # fmt: skip
    return [(f"tokenizer.ggml.{key}", *value) for key, value in found.items() if value is not None]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PieceTokenizer:
    return from_source(open_metadata(tmp_path_factory.mktemp("v"), entries()))


@given(text=st.text(alphabet="etaoinshrdlu Oc,T.é€\n<0x4>s/", max_size=50))
def test_it_encodes_as_run_c_does(tokenizer: PieceTokenizer, text: str) -> None:
    wanted = llama2c.encode(TOKENS, text)
    assert [1, *tokenizer.encode(text)] == wanted and tokenizer.decode(wanted) == text.encode()


def test_control_tokens_do_not_come_from_text(tokenizer: PieceTokenizer) -> None:
    assert not {1, 2} & set(tokenizer.encode("<s>a</s><unk>"))
    assert tokenizer.decode([1, *tokenizer.encode("<s>")]) == b"<s>"
    assert (tokenizer.bos, tokenizer.eos, tokenizer.token_string(2)) == (1, 2, "</s>")


def test_of_equal_pieces_the_first_is_used() -> None:
    """Vocabularies made by scripts hold pieces twice; llama2.c's sorted search and ours must agree on one."""
    tokenizer = PieceTokenizer([b"?", b"a", b"b", b"ab", b"a", b"ab"], [0, 0, 0, -1, 0, -1], [-1] * 256, bos=-1, eos=-1,
                               space_first=False)  # fmt: skip
    assert tokenizer.encode("aba") == [3, 1] and tokenizer.encode("ab") == [3]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": ("u32[]", [1])}, "tokens has type u32[]"),
        ({"scores": None}, "scores is missing"),
        ({"scores": ("f32[]", [0.0])}, "scores has 1 entries for 340 tokens"),
        ({"scores": ("f32[]", [float("nan")] * 340)}, "not finite"),
        ({"token_type": ("i32[]", [1])}, "token_type has 1 entries"),
        ({"token_type": ("string", "x")}, "token_type has type string"),
        ({"bos_token_id": ("string", "x")}, "bos_token_id has type string"),
        ({"eos_token_id": ("u32", 340)}, "eos is token 340"),
        ({"bos_token_id": ("i32", -7)}, "bos is token -7"),
    ],
)
def test_tables_that_do_not_work(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    file: GGUFFile = open_metadata(tmp_path, entries(**changes))
    with pytest.raises(TextError) as found:
        from_source(file)
    assert says in str(found.value) and "\n" not in str(found.value)


USERS = ["<b>", "</b>", "  ", "   ", "\n\n", "</s>", "ab"]
"""User-defined tokens behind the others; llama.cpp takes the sixth for a control token by its name."""


def with_users(folder: Path, **changes: Any) -> PieceTokenizer:
    scores = [score for score, _ in TOKENS] + [0.0] * len(USERS)
    more = {"tokens": ("string[]", [*PIECES, *USERS]), "token_type": ("i32[]", [*KINDS, *[4] * len(USERS)]),
            "scores": ("f32[]", scores)}  # fmt: skip
    return from_source(open_metadata(folder, entries(**(more | changes))))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<b>", ["<b>"]),
        ("   ", ["   "]),
        ("     ", ["   ", "  "]),
        ("    ", ["   ", " "]),
        ("a<b>a</b>", ["a", "<b>", "a", "</b>"]),
        ("<<b>>", ["<", "<b>", ">"]),
        ("\n\n\n", ["\n\n", "\n"]),
        ("ab", ["ab"]),
        ("\u2581\u2581", [" ", " "]),
    ],
)
def test_user_defined_tokens_are_matched_first_and_the_longest_at_a_place(tmp_path: Path, text: str, wanted: list[str]):
    tokenizer = with_users(tmp_path, add_space_prefix=("bool", False))
    ids = tokenizer.encode(text)
    assert [tokenizer.decode([i]).decode() for i in ids] == wanted
    assert ids == tokenizer.encode_rendered(text) == tokenizer.encode(text.encode())
    assert tokenizer.decode(ids) == tokenizer.text_bytes(text)


def test_what_follows_a_user_defined_token_starts_with_a_space_as_in_llama_cpp(tmp_path: Path) -> None:
    tokenizer = with_users(tmp_path)
    ids = tokenizer.encode("o<b>o")
    assert tokenizer.decode(ids) == b" o<b> o" and tokenizer.text_bytes("o<b>o") == b"o<b> o"


def test_a_name_of_an_end_is_a_control_token_whatever_its_type(tmp_path: Path) -> None:
    tokenizer = with_users(tmp_path, add_space_prefix=("bool", False))
    end = len(PIECES) + USERS.index("</s>")
    assert end not in tokenizer.encode("a</s>") and {2, end} & set(tokenizer.encode_rendered("a</s>"))


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<b>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<b>assistant: {% endif %}"
)


def test_the_template_of_the_file_renders_system_and_user_and_no_message_ends_a_turn(tmp_path: Path) -> None:
    from ds4ref.text.prompts import encode_chat_prompt

    path = open_metadata(tmp_path, [*entries(add_space_prefix=("bool", False)),
                                    ("tokenizer.chat_template", "string", TEMPLATE)])  # fmt: skip
    tokenizer = from_source(path)
    ids = encode_chat_prompt(tokenizer, "be brief", "a</s>b <s>", "none")  # type: ignore[arg-type]
    assert tokenizer.chats and (ids.count(1), ids.count(2)) == (1, 2)
    assert tokenizer.decode(ids) == b"<b>system: be brief<b>user: a</s>b <s><b>assistant: "


REFUSES = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + TEMPLATE
)


def test_a_template_without_a_place_for_system_text_refuses_the_user_s_and_not_the_default(tmp_path: Path, capsys):
    from ds4ref.cli.prompt import PromptSource, encode
    from ds4ref.cli.transcript import Transcript
    from ds4ref.text.protocol import DEFAULT_SYSTEM

    plain = entries(add_space_prefix=("bool", False))
    tokenizer: Any = from_source(open_metadata(tmp_path, [*plain, ("tokenizer.chat_template", "string", REFUSES)]))
    source = PromptSource("hi", None, "-p")
    ids, _ = encode(source, tokenizer, 999, DEFAULT_SYSTEM, "none")
    assert tokenizer.decode(ids) == b"<b>user: hi<b>assistant: "
    talk = Transcript(tokenizer, DEFAULT_SYSTEM, "none")
    talk.open_turn("hi")
    assert talk.ids == ids
    with pytest.raises(TextError, match="System role not supported"):
        encode(source, tokenizer, 999, "be brief", "none")
    bare: Any = from_source(open_metadata(tmp_path, plain))
    for system, says in (("be brief", "has no chat template: system prompt ignored\n"), (DEFAULT_SYSTEM, "")):
        encode(source, bare, 999, system, "none")
        assert capsys.readouterr().err.endswith(says) and (says or not capsys.readouterr().err)
