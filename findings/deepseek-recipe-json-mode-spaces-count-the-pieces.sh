#!/usr/bin/env bash
# deepseek-recipe's JSON mode answers with as many spaces as the stream had pieces.
#
# Guess before the run: what a parser makes of an answer does not depend on how the answer was cut on its way.
# Seen (deepseek-recipe 0.2.0, V4 and V4.1): with parse_json_output the text around the JSON is replaced by one space for
# each piece that held some of it. One answer, "Here it is:", a fenced object and "Done, as asked.", becomes
# ' {"a": 1} ' in one piece, two spaces before and three behind in pieces of 7 characters, 12 and 16 in pieces of one.
# The JSON itself is the same. Who hashes, caches or compares answers must strip them first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install deepseek-recipe==0.2.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import json

import deepseek_recipe as recipe

ANSWER = 'Here it is:\n```json\n{"a": 1}\n```\nDone, as asked.'


def content(version, size):
    request = recipe.ConversationRequest(recipe.Conversation([recipe.UserMessage("x")]), version)
    chunks = recipe.ChatCompletionRequest.chunk_generator(request, "id", "model")
    reader = recipe.StreamProcessor(chunks, recipe.ParsingOptions(parse_json_output=True))
    events = reader.push(recipe.InferenceChunk.ready())
    for start in range(0, len(ANSWER), size):
        events += reader.push(recipe.InferenceChunk.text(ANSWER[start : start + size], 1))
    events += reader.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)) + reader.finish()
    choices = (choice for event in events for choice in json.loads(event.to_json()).get("choices", []))
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)


for version in (recipe.ModelVersion.DeepseekV4Pro, recipe.ModelVersion.DeepseekV41Flash):
    found = {size: content(version, size) for size in (len(ANSWER), 7, 1)}
    print(version, found)
    spaces = [(len(text) - len(text.lstrip()), len(text) - len(text.rstrip())) for text in found.values()]
    assert {text.strip() for text in found.values()} == {'{"a": 1}'}, "the behaviour has changed: the JSON"
    assert spaces == [(1, 1), (2, 3), (12, 16)], f"the behaviour has changed: {spaces}"
print("as described")
PY
