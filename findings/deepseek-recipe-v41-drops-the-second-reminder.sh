#!/usr/bin/env bash
# deepseek-recipe leaves the second of two reminders in a row out of a V4.1 prompt.
#
# Guess before the run: two messages of role latest_reminder become two reminders in the prompt, for V4 and V4.1 alike.
# Seen (deepseek-recipe 0.2.0): V4 renders both; V4.1 renders the first alone, and no error is raised. With a user's
# message between them V4.1 renders both.
# Who sends date and weather as two reminders loses one of them on the newer model; join them into one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install deepseek-recipe==0.2.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import deepseek_recipe as recipe

date, weather = (recipe.LatestReminderMessage(text) for text in ("It is Tuesday.", "It rains."))
rows = [recipe.UserMessage("Day?"), date, weather]
apart = [recipe.UserMessage("Day?"), date, recipe.UserMessage("Weather?"), weather]
for encoding, kept in ((recipe.DeepseekV4Encoding, True), (recipe.DeepseekV41Encoding, False)):
    prompts = [encoding().render_conversation(recipe.Conversation(messages)).prompt for messages in (rows, apart)]
    print(encoding.__name__, *(prompt[-150:] for prompt in prompts), sep="\n  ")
    assert all("Tuesday" in prompt for prompt in prompts), "the behaviour has changed: the first reminder"
    assert ["rains" in prompt for prompt in prompts] == [kept, True], "the behaviour has changed: the second reminder"
print("as described")
PY
