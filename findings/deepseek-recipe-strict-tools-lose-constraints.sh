#!/usr/bin/env bash
# deepseek-recipe shows the model another schema than the one a strict tool declares: definitions and limits are gone.
#
# Guess before the run: with "strict": true a schema is shown as it is, or refused where a keyword is not supported.
# Seen (deepseek-recipe 0.2.0, Chat Completions, models DeepSeek-V4-Pro and DeepSeek-V4.1-Flash): accepted without a word,
#   "$defs" is dropped while the "$ref" that points into it stays, so the reference leads nowhere;
#   minLength and maxLength of strings, minItems and maxItems of arrays, enum of integers and const of strings are dropped;
#   pattern, enum of strings, minimum, maximum and const of integers stay.
# The same tool without "strict" is shown with all of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install deepseek-recipe==0.2.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import json

import deepseek_recipe as recipe

SCHEMA = {
    "type": "object",
    "properties": {
        "town": {"$ref": "#/$defs/town"},
        "days": {"type": "array", "items": {"type": "integer", "enum": [1, 2, 7]}, "minItems": 1, "maxItems": 3},
        "unit": {"type": "string", "const": "celsius"},
        "code": {"type": "string", "pattern": "^[A-Z]+$", "maxLength": 3},
        "hour": {"type": "integer", "minimum": 0, "maximum": 23},
    },
    "required": ["town", "days", "unit", "code", "hour"],
    "additionalProperties": False,
    "$defs": {"town": {"type": "string", "minLength": 2}},
}


def shown(model, strict):
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": strict}}
    body = {"model": model, "messages": [{"role": "user", "content": "Weather?"}], "tools": [tool]}
    request = recipe.ChatCompletionRequest(json.dumps(body)).convert(recipe.ConversionOptions())
    return request.conversation.tools[0].parameters


for model in ("DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"):
    strict = shown(model, True)
    print(model, json.dumps(strict), sep="\n  ")
    assert shown(model, False) == SCHEMA, "the behaviour has changed: without strict"
    assert strict["properties"] == {
        "town": {"$ref": "#/$defs/town"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"type": "string"},
        "code": {"type": "string", "pattern": "^[A-Z]+$"},
        "hour": {"type": "integer", "minimum": 0, "maximum": 23},
    }, "the behaviour has changed: properties"
    assert "$defs" not in strict, "the behaviour has changed: definitions"
print("as described")
PY
