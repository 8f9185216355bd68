#!/usr/bin/env bash
# gguf-py does not write a key whose value is an empty list or an empty text.
#
# Guess before the run: the key is written with a length of 0, or the call fails.
# Seen (gguf 0.19.0): add_array with [] and add_string with "" return, and the file has neither key; False and 0 are
# written.
# A reader cannot tell "none" from "not stated": a model without windowed layers gets the loader's default pattern, a
# template that is meant to be empty becomes a missing one. A converter must leave out the meaning "none", or write it
# in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install gguf==0.19.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from gguf import GGUFReader, GGUFWriter

writer = GGUFWriter("m.gguf", "llama")
writer.add_array("a.layers", [])
writer.add_string("a.text", "")
writer.add_bool("a.flag", False)
writer.add_uint32("a.count", 0)
writer.add_array("a.other", [0])
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
found = sorted(key for key in GGUFReader("m.gguf").fields if key.startswith("a."))
print("keys in the file:", found)
assert found == ["a.count", "a.flag", "a.other"], "the behaviour has changed"
print("as described")
PY
