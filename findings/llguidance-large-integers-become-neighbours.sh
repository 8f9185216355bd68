#!/usr/bin/env bash
# llguidance holds an answer to another integer than the JSON schema names, if it is beyond 2^53.
#
# Guess before the run: a schema {"const": 9007199254740993} admits that number, or is refused as unsupported.
# Seen (llguidance 1.9.1): it admits 9007199254740992 and not 9007199254740993; enum likewise; a minimum of
# 9007199254740993 admits 9007199254740992. Numbers of schemas are doubles inside. No error, no warning: the answer that
# the grammar forces does not validate. Up to 9007199254740991 all is exact.
# Who constrains answers to ids of 64 bits must refuse such schemas, or use strings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install llguidance==1.9.1
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import json

from llguidance import LLMatcher, LLTokenizer

bytes_alone = LLTokenizer("byte")
BIG = 2**53 + 1


def admits(schema, text):
    matcher = LLMatcher(bytes_alone, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), "the behaviour has changed: the schema is refused"
    ids = bytes_alone.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def found(number):
    schemas = {"const": number}, {"enum": [number]}, {"type": "integer", "minimum": number}
    return [tuple(admits(schema, str(value)) for value in (number, number - 1)) for schema in schemas]


print("const, enum, minimum of", BIG, "admit it, and one less:", found(BIG))
print("the same of", BIG - 2, found(BIG - 2))
assert found(BIG) == [(False, True), (False, True), (True, True)], "the behaviour has changed: beyond 2^53"
assert found(BIG - 2) == [(True, False)] * 3, "the behaviour has changed: below 2^53"
print("as described")
PY
