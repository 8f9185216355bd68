#!/usr/bin/env bash
# mlx-lm's server lists log probabilities under tokens that are not those of its answer.
#
# Guess before the run: with top_logprobs, content[i].token is the i-th token of the answer and the first of its sorted
# alternatives at temperature 0, as OpenAI describes it.
# Seen (mlx-lm 0.32.2, mlx 0.32.4 on a CPU, a small model with random weights): each entry is the first of alternatives
# in no order, so at temperature 0 an entry may name a token that is not the likeliest of its own list, while the answer's
# text has the likeliest. With a temperature, the token that was drawn may not be in the list at all. Tokens are spelled
# as in the vocabulary (a space is U+0120), without "bytes".
# Who scores answers by these entries compares a right engine's numbers under wrong names: sort them, and go by "id".
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $server 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import json

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
          "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 257, "eos_token_id": 256}
mx.random.seed(0)
model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
mx.save_safetensors("model.safetensors", {name: 4 * value for name, value in tree_flatten(model.parameters())})
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)} | {"<end>": 256}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.save("tokenizer.json")
template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "chat_template": template}
for name, content in (("config.json", CONFIG), ("tokenizer_config.json", settings)):
    with open(name, "w") as file:
        json.dump(content, file)
PY
port=$("$folder/venv/bin/python" -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
"$folder/venv/bin/python" -m mlx_lm server --model "$folder" --port "$port" >log 2>&1 &
server=$!
"$folder/venv/bin/python" - "$port" <<'PY'
import json
import sys
import time
import urllib.request


def ask(**fields):
    body = {"messages": [{"role": "user", "content": "a mill by a river"}], "max_tokens": 40, "logprobs": True, **fields}
    for _ in range(60):
        try:
            address = f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions"
            with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode()), timeout=60) as reply:
                return json.load(reply)["choices"][0]
        except OSError:
            time.sleep(1)
    raise SystemExit("the server does not answer")


greedy = ask(temperature=0, top_logprobs=5)
entries = greedy["logprobs"]["content"]
wrong = sum(entry["logprob"] < max(best["logprob"] for best in entry["top_logprobs"]) for entry in entries)
first = sum(entry["id"] == entry["top_logprobs"][0]["id"] for entry in entries)
plain = ask(temperature=0)["logprobs"]["content"]
chosen = [entry["id"] for entry in plain]
likeliest = [max(entry["top_logprobs"], key=lambda best: best["logprob"])["id"] for entry in entries]
print(f"{len(entries)} tokens: {wrong} entries are not the likeliest of their list, {first} are the first of it")
print("without top_logprobs the entries are the chosen tokens:", chosen == likeliest, "| fields:", sorted(plain[0]))
assert wrong > 0 and first == len(entries) and chosen == likeliest and "bytes" not in entries[0], "it has changed"
drawn = dict(temperature=1.0, seed=1)
listed, ids = ask(top_logprobs=2, **drawn)["logprobs"]["content"], [e["id"] for e in ask(**drawn)["logprobs"]["content"]]
absent = sum(number not in [best["id"] for best in entry["top_logprobs"]] for entry, number in zip(listed, ids))
print(f"temperature 1: {absent} of {len(ids)} drawn tokens are not in their lists")
assert absent > 0, "the behaviour has changed"
print("as described")
PY
