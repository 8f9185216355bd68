"""Make the logs of other programs in tests/data/judged: a server with a script, asked by inspect_ai and lm-eval.

    python -m tests.eval.others FOLDER          in an environment with inspect_ai and lm_eval[api]

inspect_ai asks twice (two epochs), lm-eval once. What is said covers every grade, and an end by the limit.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from ds4ref.eval import packs
from ds4ref.eval.packs import Header, Pack, Question

from .plausible import plausible

PACK = Pack(Header("judged", 1), (
    *plausible(7),
    Question("words-00000007", "words", "spelling", "easy", "exact", "Spell the number after four, in small letters.",
             (), "five"),
))  # fmt: skip
SAID = (
    "It is constant.\n\nAnswer: C",  # right
    "A degree has sixty minutes.\n\nThe answer is probably C, I think.",  # states nothing; lenient judges take it
    "Nine of them.\n\n\\boxed{9}",  # right
    "Answer: 3 or 4",  # ambiguous
    "Answer: A",  # wrong
    "Answer: B, because of equipment",  # ambiguous
    "<think>16 + 9 + 4 + 1, or 17?</think>Answer: 30",  # right, with thinking
    "five",
)
"""What is said to each question; the second answer to the first is cut off, the second one to the third is empty."""
INSPECT = """
from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, TaskState, generate, multiple_choice, solver

@solver
def asked():
    chosen, plain = multiple_choice(), generate()
    async def solve(state: TaskState, call: Generate) -> TaskState:
        return await (chosen if state.choices else plain)(state, call)
    return solve

@task
def judged():
    data = json_dataset("questions.jsonl", FieldSpec(input="question", target="answer", id="id", choices="choices"))
    return Task(dataset=data, solver=asked(), scorer=includes())
"""
LM_EVAL = """
task: judged
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}{% for c in choices %}\\n{{'ABCDEFGHIJ'[loop.index0]}}. {{c}}{% endfor %}\\n\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: [], max_gen_toks: 64}
metric_list: [{metric: exact_match, ignore_case: true}, {metric: bleu}]
filter_list:
  - name: last-letter
    filter: [{function: regex, regex_pattern: "([A-J0-9])", group_select: -1}, {function: take_first}]
  - name: strict-match
    filter: [{function: regex, regex_pattern: "Answer: ([A-J0-9]+)"}, {function: take_first}]
"""


class Server(BaseHTTPRequestHandler):
    """Say what the script says."""

    times: Counter[str] = Counter()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = str(body["messages"][-1]["content"])
        at = next(i for i, q in enumerate(PACK.questions) if q.question in text)
        self.times[PACK.questions[at].id] += 1
        again = self.times[PACK.questions[at].id] == 2
        cut = at == 0 and again
        text = "Answer: C" if cut else "" if at == 2 and again else SAID[at]
        said = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": said, "finish_reason": "length" if cut else "stop"}
        usage = {"prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52}
        out = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "script", "choices": [choice],
                          "usage": usage}).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def main(folder: Path) -> None:
    """Ask with both programs and keep their logs."""
    folder.mkdir(parents=True, exist_ok=True)
    packs.write(PACK, folder / "pack.jsonl")
    work = folder / "work"
    work.mkdir()
    lines = b"".join(msgspec.json.encode(msgspec.to_builtins(q)) + b"\n" for q in PACK.questions)
    (work / "questions.jsonl").write_bytes(lines)
    (work / "judged.py").write_text(INSPECT)
    (work / "judged.yaml").write_text(LM_EVAL)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    env = {**os.environ, "OPENAI_API_KEY": "none", "SCRIPTED_API_KEY": "none", "SCRIPTED_BASE_URL": url,
           "HF_HOME": str(work.resolve() / "hf"), "HF_HUB_OFFLINE": "1"}  # fmt: skip
    bin = Path(sys.executable).parent
    for kind, more in (("eval", ["--limit", "2"]), ("json", ["--epochs", "2"])):
        Server.times.clear()
        subprocess.run([bin / "inspect", "eval", "judged.py", "--model", "openai-api/scripted/script", *more,
                        "--max-connections", "1", "--max-retries", "1", "--log-format", kind, "--log-dir", "logs",
                        "--display", "plain"], cwd=work, env=env, check=True)  # fmt: skip
        shutil.copy(next((work / "logs").glob(f"*.{kind}")), folder / f"inspect.{kind}")
    data = (folder / "inspect.json").read_bytes()
    (folder / "inspect.json").unlink()
    (folder / "inspect.json.gz").write_bytes(gzip.compress(data, mtime=0))
    Server.times.clear()
    subprocess.run([bin / "lm_eval", "--model", "local-chat-completions", "--tasks", "judged", "--include_path", ".",
                    "--model_args", f"model=script,base_url={url}/chat/completions,num_concurrent=1,max_retries=1",
                    "--apply_chat_template", "--log_samples", "--output_path", "out"],
                   cwd=work, env=env, check=True)  # fmt: skip
    shutil.copy(next((work / "out").rglob("samples_judged_*.jsonl")), folder / "samples_judged.jsonl")
    server.shutdown()
    shutil.rmtree(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
