#!/usr/bin/env bash
# deepseek-recipe cannot read back a call whose parameter has a space in its name, though it writes one.
#
# Guess before the run: what DeepSeek's encoder writes for a tool call, DeepSeek's parser reads back as the same JSON.
# Seen (deepseek-recipe 0.2.0, both DeepseekV4Encoding and DeepseekV41Encoding): for {"due date": "Monday"} the encoder
# writes  name="due date" string="true"  and the parser, which ends a name at the first space, streams the arguments
# {"due: "Monday"}  , which is not JSON. No error is raised, the finish reason is tool_calls. {"due_date": "Monday"}
# comes back unchanged.
# JSON Schema allows such names. Who serves DeepSeek models must keep spaces out of the names of parameters.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install deepseek-recipe==0.2.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import json

import deepseek_recipe as recipe

ENCODINGS = {
    "DeepseekV4Encoding": recipe.ModelVersion.DeepseekV4Pro,
    "DeepseekV41Encoding": recipe.ModelVersion.DeepseekV41Flash,
}


def read_back(name, version, arguments):
    call = recipe.ToolCall("c1", "plan", json.dumps(arguments))
    history = recipe.Conversation(
        [recipe.UserMessage("Plan it."), recipe.AssistantMessage("", None, [call])], thinking_mode=False
    )
    prompt = getattr(recipe, name)().render_conversation(history).prompt
    start, end = "</think>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
    block = prompt.split(start, 1)[1].split(end, 1)[0]
    request = recipe.ConversationRequest(recipe.Conversation([recipe.UserMessage("x")]), version)
    chunks = recipe.ChatCompletionRequest.chunk_generator(request, "id", "model")
    reader = recipe.StreamProcessor(chunks, recipe.ParsingOptions(parse_tool_calls=True))
    events = reader.push(recipe.InferenceChunk.ready()) + reader.push(recipe.InferenceChunk.text(block, 1))
    events += reader.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)) + reader.finish()
    text, reason = "", None
    for event in events:
        for choice in json.loads(event.to_json()).get("choices", []):
            reason = choice.get("finish_reason") or reason
            for part in (choice.get("delta") or {}).get("tool_calls") or ():
                text += (part.get("function") or {}).get("arguments") or ""
    return text, reason


for name, version in ENCODINGS.items():
    plain, spaced = (read_back(name, version, {key: "Monday"}) for key in ("due_date", "due date"))
    print(name, plain, spaced, sep="\n  ")
    assert plain == ('{"due_date": "Monday"}', "tool_calls"), "the behaviour has changed: a name without a space"
    assert spaced == ('{"due: "Monday"}', "tool_calls"), "the behaviour has changed: a name with a space"
print("as described")
PY
