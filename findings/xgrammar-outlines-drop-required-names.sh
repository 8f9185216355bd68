#!/usr/bin/env bash
# xgrammar and outlines-core drop a required name that is not among the properties: nothing that they admit is valid.
#
# Guess before the run: {"properties": {"a": ...}, "required": ["a", "zz"]} is valid JSON Schema (zz may be anything), so
# all three libraries demand zz, or refuse the schema with an error as they do for keywords that they lack.
# Seen (xgrammar 0.2.9, outlines-core 0.2.14, llguidance 1.9.1, jsonschema as the judge): xgrammar and outlines-core admit
# {"a": "x"} alone, which is not valid, and refuse {"a": "x", "zz": 1}, which is; no error, no warning. llguidance admits
# the valid one and no other. With "additionalProperties": true xgrammar still does not demand zz.
# Tools whose schemas are cut down by hand (a property removed, its name left in "required") get calls that fail later.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install xgrammar==0.2.9 outlines-core==0.2.14 llguidance==1.9.1 torch==2.13.0 jsonschema
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2>&1
import json
import re

import jsonschema
from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema
from xgrammar import Grammar
from xgrammar.testing import _is_grammar_accept_string

BYTES = LLTokenizer("byte")


def valid(schema, text):
    return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))


def by_llguidance(schema, text):
    matcher, ids = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(schema))), BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def by_outlines(schema, text):
    return bool(re.fullmatch(build_regex_from_schema(json.dumps(schema)), text))


def by_xgrammar(schema, text):
    return _is_grammar_accept_string(Grammar.from_json_schema(json.dumps(schema)), text)


def table(schema, texts):
    rows = {}
    for admits in (valid, by_llguidance, by_outlines, by_xgrammar):
        rows[admits.__name__] = [admits(schema, text) for text in texts]
        print(f"{admits.__name__:>13}", *(f"{text} {found}" for text, found in zip(texts, rows[admits.__name__])))
    return list(rows.values())


schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "zz"]}
texts = ['{"a": "x"}', '{"a": "x", "zz": 1}']
right, llguidance, outlines, xgrammar = table(schema, texts)
assert right == llguidance == [False, True], "the behaviour has changed: llguidance"
assert outlines == xgrammar == [True, False], "the behaviour has changed: a required name without a property"
assert by_xgrammar(schema | {"additionalProperties": True}, texts[0]), "it has changed: with more properties allowed"
print("as described")
PY
