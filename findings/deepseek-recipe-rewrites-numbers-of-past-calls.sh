#!/usr/bin/env bash
# deepseek-recipe writes other numbers into the history than the tool calls had.
#
# Guess before the run: the arguments of a past call stand in the next prompt with the digits that the client sent.
# Seen (deepseek-recipe 0.2.0): integers from 2^64 on become floats (18446744073709551616 is shown as
# 1.8446744073709552e+19, another number), 1e5 becomes 100000.0, 1.10 becomes 1.1. And the two encodings spell small
# numbers differently: 0.00001 stays so for V4 and becomes 1e-05 for V4.1; 1e-7 becomes 1e-07 for V4.1 only.
# So long ids belong into strings, and a prompt cannot be predicted from the request's text alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install deepseek-recipe==0.2.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import deepseek_recipe as recipe

SEEN = {  # sent: shown by V4, by V4.1
    "18446744073709551615": ("18446744073709551615",) * 2,
    "18446744073709551616": ("1.8446744073709552e+19",) * 2,
    "12345678901234567890123": ("1.2345678901234568e+22",) * 2,
    "1e5": ("100000.0",) * 2,
    "1.10": ("1.1",) * 2,
    "0.00001": ("0.00001", "1e-05"),
    "1e-7": ("1e-7", "1e-07"),
}


def shown(encoding, number):
    call = recipe.ToolCall("c1", "order", f'{{"id": {number}}}')
    history = [recipe.UserMessage("Order it."), recipe.AssistantMessage("", None, [call])]
    prompt = encoding().render_conversation(recipe.Conversation(history, thinking_mode=False)).prompt
    return prompt.split('string="false">')[1].split("<")[0]


for number, wanted in SEEN.items():
    found = tuple(shown(encoding, number) for encoding in (recipe.DeepseekV4Encoding, recipe.DeepseekV41Encoding))
    print(number, *found)
    assert found == wanted, f"the behaviour has changed: {number}"
print("as described")
PY
