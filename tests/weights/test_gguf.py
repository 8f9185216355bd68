"""The reader against gguf-py, on golden models and on files that gguf-py wrote."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest

from ds4ref.errors import ModelFileError
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.writer import write_gguf

from .modelfile import golden, write_model

gguf = pytest.importorskip("gguf")


def assert_equal_to_gguf_py(path) -> None:
    reader = gguf.GGUFReader(path)
    with GGUFFile.open(path) as file:
        keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert {key: file.metadata[key] for key in file.metadata} == keys
        assert list(file.tensors) == [t.name for t in reader.tensors]
        for t in reader.tensors:
            info = file.tensors[t.name]
            assert (info.fmt.ggml_id, info.offset, info.nbytes) == (t.tensor_type, t.data_offset, t.n_bytes)
            assert list(info.dims) == t.shape.tolist()
            np.testing.assert_array_equal(file.raw(t.name), t.data.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("name", ["tiny", "smooth"])
def test_golden_models(name):
    assert_equal_to_gguf_py(golden(name))


@pytest.mark.parametrize("alignment", [None, 64])
def test_a_file_from_gguf_py(tmp_path, alignment):
    path = tmp_path / "m.gguf"
    out = gguf.GGUFWriter(path, "deepseek4")
    if alignment:
        out.add_custom_alignment(alignment)
    out.add_uint32("n", 7)
    out.add_float64("x", 0.1)
    out.add_bool("b", True)
    out.add_array("words", ["ä", "", "b c"])
    out.add_array("ints", [1, -2, 3])
    out.add_tensor("t", np.arange(12, dtype=np.float32).reshape(3, 4))
    out.add_tensor("u", np.arange(5, dtype=np.float16))
    out.add_tensor("q", np.arange(68, dtype=np.uint8).reshape(2, 34), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    assert_equal_to_gguf_py(path)


def test_a_real_vocabulary_is_decoded_on_demand(tmp_path):
    """129,280 tokens and as many merges: stepped over at open."""
    tokens = [f"Ġtoken{i}" for i in range(129_280)]
    merges = [f"Ġto ken{i}" for i in range(127_000)]
    path = tmp_path / "m.gguf"
    with write_gguf(path, [("t", "string[]", tokens), ("m", "string[]", merges)], []):
        pass
    tracemalloc.start()
    with GGUFFile.open(path) as file:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert file.metadata.count("t") == 129_280
        assert file.metadata.type_of("t") == "string[]"
        assert file.metadata["t"] == tokens
        assert file.metadata["m"] == merges
        assert file.metadata.first("t", 3) == tokens[:3]
    assert peak < sum(map(sys.getsizeof, tokens)) / 2, "none of them was made while the file was opened"


def test_views_are_read_only_and_outlive_the_file(tmp_path):
    path = write_model(tmp_path / "m.gguf")
    file = GGUFFile.open(path)
    view = file.raw("output.weight")
    assert not view.flags.writeable and view.base is not None
    copy = view.copy()
    file.close()
    file.close()
    np.testing.assert_array_equal(view, copy)
    with pytest.raises(ModelFileError, match="closed"):
        file.raw("output.weight")
    with pytest.raises(ModelFileError):
        file.metadata["tokenizer.ggml.tokens"]
