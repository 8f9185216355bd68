#!/usr/bin/env bash
# llguidance takes an object that has one property twice for one of two properties.
#
# Guess before the run: with "minProperties": 2 an object needs two different names.
# Seen (llguidance 1.9.1): {"a":1,"a":2} is admitted, and so it is where only additionalProperties are described; any
# JSON reader keeps one property of it, and the answer does not validate. A name that is listed in properties cannot be
# repeated.
# Who relies on minProperties must list the properties, or validate the answer.
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


def admits(schema, text):
    matcher = LLMatcher(bytes_alone, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    ids = bytes_alone.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


two = {"type": "object", "minProperties": 2}
counts = {"type": "object", "additionalProperties": {"type": "integer"}}
listed = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}
seen = [admits(two, text) for text in ('{"a":1}', '{"a":1,"b":2}', '{"a":1,"a":2}')]
print("minProperties 2: one, two, one twice:", *seen)
assert seen == [False, True, True], "the behaviour has changed: minProperties"
seen = [admits(schema, '{"a":1,"a":2}') for schema in (counts, listed)]
print("one twice: any name, a listed name:", *seen, "; a reader keeps", json.loads('{"a":1,"a":2}'))
assert seen == [True, False], "the behaviour has changed: repeated names"
print("as described")
PY
