"""Models, tokens, health, the page."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ds4ref.server.service import Settings


def test_models(serving):
    server = serving(settings=Settings(max_tokens=393216, title="Some Model"), ctx=2048)
    answer = server.client.get("/v1/models")
    assert answer.content.endswith(b"\n") and b": " not in answer.content.replace(b"...", b"")[:200]
    found = answer.json()
    assert found["object"] == "list" and len(found["data"]) == 1
    model = found["data"][0]
    assert model["id"] == "deepseek-v4-flash" and model["object"] == "model" and model["name"] == "Some Model"
    assert model["created"] == 1767225600 and model["owned_by"]
    assert model["context_length"] == 2048
    assert model["top_provider"] == {"context_length": 2048, "max_completion_tokens": 2048, "is_moderated": False}
    assert {"tools", "tool_choice", "stream", "seed"} <= set(model["supported_parameters"])
    # Anthropic's
    assert model["type"] == "model" and model["display_name"] == "Some Model"
    assert model["created_at"] == "2026-01-01T00:00:00Z"
    assert found["first_id"] == found["last_id"] == model["id"] and found["has_more"] is False
    # Codex's: what it needs of an entry (clients.md 2)
    entry = found["models"][0]
    assert entry["display_name"] == "Some Model"
    assert {
        "slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api",
        "priority", "support_verbosity", "truncation_policy", "experimental_supported_tools", "base_instructions",
    } <= entry.keys()  # fmt: skip
    assert entry["slug"] == model["id"] and entry["context_window"] == 2048 and entry["base_instructions"]
    assert entry["shell_type"] == "shell_command" and entry["truncation_policy"].keys() == {"mode", "limit"}


# --- tokens


TEXTS = ["", "Hello", "a\u00e4\U0001f600", "<\uff5cUser\uff5c>hi", "  spaces \n\n", "x" * 5000]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_and_back(scripted, text):
    found = scripted.client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert found["tokens"] == scripted.engine.tokenizer.encode_rendered(text)
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 4096
    assert scripted.client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}


def test_control_strings_are_control_tokens(scripted):
    info = scripted.client.get("/tokenizer_info").json()
    tokenizer = scripted.engine.tokenizer
    found = scripted.client.post("/tokenize", json={"prompt": info["eos_token"] + "a" + info["bos_token"]}).json()
    assert found["tokens"][0] == tokenizer.eos and found["tokens"][-1] == tokenizer.bos
    with_bos = scripted.client.post("/tokenize", json={"prompt": "a", "add_special_tokens": True}).json()
    assert with_bos["tokens"] == [tokenizer.bos, *tokenizer.encode("a")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}), ("/tokenize", {"prompt": None}), ("/tokenize", {"prompt": ["a"]}), ("/tokenize", []),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}),
        ("/detokenize", {}), ("/detokenize", {"tokens": "abc"}), ("/detokenize", {"tokens": [True]}),
        ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [1.5]}), ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [[1]]}), ("/detokenize", 7), ("/detokenize", {"tokens": [10**30]}),
    ],
)  # fmt: skip
def test_wrong_questions(scripted, path, body):
    answer = scripted.client.post(path, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


# --- how it goes


def test_the_page_is_one_small_file_that_reaches_nobody_else(scripted):
    answer = scripted.client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8" and len(answer.text.splitlines()) < 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert not re.search(r"https?://|//[a-z]+\.", answer.text.replace("http://www.w3.org/", ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\son\w+=", answer.text)


def test_health(scripted):
    assert scripted.client.get("/health").json() == {"status": "ok"}
    scripted.service.draining = True
    answer = scripted.client.get("/health")
    assert answer.status_code == 503 and answer.headers["connection"] == "close"


@pytest.mark.parametrize(("path", "body", "held"), [
    ("/tokenize", {"prompt": "a long one"}, "encode_rendered"), ("/detokenize", {"tokens": [1, 2]}, "decode"),
])  # fmt: skip
def test_health_does_not_wait_for_a_long_text(scripted, monkeypatch, path, body, held):
    """By the order of events: the text is not done before health has been answered, twice."""
    begun, go = threading.Event(), threading.Event()
    tokenizer = scripted.engine.tokenizer
    work = getattr(tokenizer, held)

    def slow(*args):
        begun.set()
        assert go.wait(60), "health was never answered"
        return work(*args)

    monkeypatch.setattr(type(tokenizer), held, lambda self, *args: slow(*args))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(scripted.client.post, path, json=body)
        assert begun.wait(30)
        try:
            for _ in range(2):
                assert scripted.client.get("/health", timeout=30).status_code == 200
            assert not asked.done()
        finally:
            go.set()
        assert asked.result().status_code == 200


def test_health_of_a_server_without_a_thread(scripted):
    scripted.worker.shut_down(1)
    assert scripted.client.get("/health").status_code == 503
