#!/usr/bin/env bash
# gguf-py reads an array of arrays as one list.
#
# Guess before the run: contents() returns what add_array was given, a list of lists.
# Seen (gguf 0.19.0): [[1, 2], [3]] is written as an array of two arrays, and contents() returns [1, 2, 3]; lists of texts
# the same. ReaderField.types still says ARRAY, ARRAY, INT32, but the lengths of the inner lists are only in the raw
# parts. Another grouping of the same numbers reads alike.
# A tool that copies metadata from one file to another by contents() changes it without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install gguf==0.19.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from gguf import GGUFReader, GGUFWriter

GIVEN = {"a.one": [[1, 2], [3]], "a.two": [[1], [2, 3]], "a.text": [["x"], ["y", "z"]]}
writer = GGUFWriter("m.gguf", "llama")
for key, value in GIVEN.items():
    writer.add_array(key, value)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
fields = GGUFReader("m.gguf").fields
read = {key: fields[key].contents() for key in GIVEN}
print("given", GIVEN)
print("read ", read)
assert read == {"a.one": [1, 2, 3], "a.two": [1, 2, 3], "a.text": ["x", "y", "z"]}, "the behaviour has changed"
assert [kind.name for kind in fields["a.one"].types] == ["ARRAY", "ARRAY", "INT32"]
print("as described")
PY
