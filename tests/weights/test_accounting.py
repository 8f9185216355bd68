"""What becomes of names: computed where a reader asked, without effect where a table says so, else refused by name."""

from __future__ import annotations

import pytest

from ds4ref.errors import ModelFileError
from ds4ref.weights.accounting import Reads, inert, leaves, settle, settle_tensors
from ds4ref.weights.config import Config
from ds4ref.weights.inert import METADATA
from ds4ref.weights.published import Metadata

KNOWN = (
    inert("only one way", "way", "this", "that"),
    inert("no biases", "*_bias", False),
    inert("notes", "note.* way.note"),
)


@pytest.mark.parametrize(
    ("name", "value", "group"),
    [
        ("way", "this", "inert"),
        ("way", "that", "inert"),
        ("way", "other", 'is \'other\', only "this" or "that" is computed here'),
        ("mlp_bias", False, "inert"),
        ("mlp_bias", True, "is true, only false is computed here"),
        ("mlp_bias", 0, "is 0, only false is computed here"),
        ("bias", False, "is false: unknown here, it may change the model"),
        ("note.a.b", 1, "inert"),
        ("note", [1, 2], "is a list of 2: unknown here, it may change the model"),
        ("way.note", None, "inert"),
        ("x", "a\nb", "is 'a\\nb': unknown here, it may change the model"),
        ("x", "y" * 60, "is '" + "y" * 40 + "'...: unknown here, it may change the model"),
    ],
)
def test_groups(name: str, value: object, group: str) -> None:
    account = settle({name: value}, (), KNOWN)
    assert (list(account.inert), account.computed) == ([name] if group == "inert" else [], [])
    assert account.refused == ({} if group == "inert" else {name: group})
    computed = settle({name: value}, {name}, KNOWN)
    assert computed.computed == [name] and not computed.inert and not computed.refused


def test_the_first_entry_counts() -> None:
    """A value that an entry does not allow is not let through by a wider one behind it."""
    known = (inert("must be a model", "general.type", "model"), inert("notes", "general.*"))
    assert settle({"general.type": "adapter", "general.x": 1}, (), known).refused.keys() == {"general.type"}
    assert settle({"general.type": "model"}, (), known).inert == {"general.type": "must be a model"}


def test_the_error_is_one_line_with_three_names() -> None:
    with pytest.raises(ModelFileError) as caught:
        settle_tensors(["a.bias", "b\n\x1b[2J", "c", "d", "e"], {"c"}, (), "llama").check("m.gguf")
    text = str(caught.value)
    assert text.startswith("m.gguf: a.bias has no place in a llama model here; 'b\\n\\x1b[2J' has no place")
    assert text.endswith("; d has no place in a llama model here, and 1 more") and "\n" not in text
    settle_tensors(["c"], {"c"}, (), "llama").check("m.gguf")


def test_config_records_what_is_asked_for_and_null_is_no_value() -> None:
    values = {"a": 1, "b": {"c": 2, "d": {}, "e": None, "f": {"g": []}}, "h": None}
    assert dict(leaves(values)) == {"a": 1, "b.c": 2, "b.f.g": []}
    config = Config("config.json", values)
    assert config.has("a") and config.part("b").has("c") and not config.read
    assert config.integer("a") == 1 and config.part("b").integer("c") == 2 and config.number("x", 0.5) == 0.5
    assert config.read == {"a", "b.c", "x"}
    assert settle(dict(leaves(values)), config.read, ()).refused.keys() == {"b.f.g"}


def test_two_names_of_one_thing_agree() -> None:
    agreed = lambda **values: Config("c", values).agreed("new", "old", default="none")  # noqa: E731
    assert (agreed(), agreed(old="x"), agreed(new="x"), agreed(new="x", old="x")) == ("none", "x", "x", "x")
    with pytest.raises(ModelFileError, match="old is 'y', new is 'x'"):
        agreed(new="x", old="y")


def test_metadata_records_values_and_not_questions() -> None:
    """Values that are costly (a vocabulary) are not looked at to be accounted for."""

    def never() -> None:
        raise AssertionError("computed")

    entries = Metadata(
        [("a", "u32", 1), ("b", "u32[]", [1]), ("tokenizer.ggml.bos_token_id", "u32", never), ("c", "string[]", never),
         ("general.type", "string", "adapter"), ("d", "f32", 0.5)]
    )  # fmt: skip
    reads = Reads(entries)
    assert "a" in reads and reads.type_of("d") == "f32" and not reads.read
    assert reads["a"] == 1 and reads.first("b", 1) == [1]
    account = reads.account(METADATA)
    assert account.computed == ["a", "b"] and list(account.inert) == ["tokenizer.ggml.bos_token_id"]
    assert account.refused == {
        "c": "is an array: unknown here, it may change the model",
        "general.type": "is 'adapter', only \"model\" is computed here",
        "d": "is 0.5: unknown here, it may change the model",
    }
