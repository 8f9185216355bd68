"""The tools' parameters, declared once: from each class here follow the schema shown to the model, the defaults, and
the check of a call. Docstrings and descriptions are part of what the model sees.

Checks are lenient, because models are imprecise: null counts as absent, numbers and booleans may come as text, and
unknown parameters are ignored.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..text.dsml import ToolCall
from .workspace import ToolError

TIMEOUT, MAX_TIMEOUT = 120, 3600
_File = Annotated[str, Meta(description="path inside the workspace")]


class Read(msgspec.Struct):
    """Read a text file, numbered line by line."""

    path: _File
    start_line: Annotated[int, Meta(ge=1, description="first line")] = 1
    max_lines: Annotated[int, Meta(ge=1, description="at most so many lines")] = 500


class List(msgspec.Struct):
    """List a folder: kind (d, l, -), size and name of each entry."""

    path: Annotated[str, Meta(description="folder inside the workspace")] = "."


class Search(msgspec.Struct):
    """Find lines in the files of a folder, or in one file."""

    query: Annotated[str, Meta(min_length=1, description="text or pattern, looked for line by line")]
    path: Annotated[str, Meta(description="file or folder inside the workspace")] = "."
    mode: Annotated[Literal["literal", "regex"], Meta(description="what query is")] = "literal"
    glob: Annotated[str, Meta(description="only files of such names, as *.py")] = ""
    max_results: Annotated[int, Meta(ge=1, le=500, description="at most so many matches")] = 50
    case_sensitive: Annotated[bool, Meta(description="whether case counts")] = True


class Edit(msgspec.Struct):
    """Change a file: new in place of old, which must be there exactly once. Refused if the file changed since it was
    read."""

    path: _File
    old: Annotated[str, Meta(min_length=1, description="exact text, white space included, without line numbers")]
    new: Annotated[str, Meta(description='text to put there; "" deletes')]


class Write(msgspec.Struct):
    """Make a file, or replace all of it."""

    path: _File
    content: Annotated[str, Meta(description="the whole content")]


class Bash(msgspec.Struct):
    """Run a shell command in the workspace, without input. It and all that it started end with it."""

    command: Annotated[str, Meta(min_length=1, description="what to run")]
    timeout_sec: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT, description="most seconds it may take")] = TIMEOUT


PARAMETERS: dict[str, type[msgspec.Struct]] = {
    "read": Read, "list": List, "search": Search, "edit": Edit, "write": Write, "bash": Bash,
}  # fmt: skip
_Parameters = TypeVar("_Parameters", bound=msgspec.Struct)


def schema(tool: str) -> str:
    """Return the JSON description of a tool (name, description, parameters) for the model."""
    kind = PARAMETERS[tool]
    whole = msgspec.json.schema_components((kind,))[1][kind.__name__]
    parameters = {name: whole[name] for name in ("type", "properties", "required")}
    about = " ".join(whole["description"].split())
    return json.dumps({"name": tool, "description": about, "parameters": parameters})


def members(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments without nulls; raises ToolError if they are not a JSON object."""
    try:
        values = msgspec.json.decode(call.arguments.strip() or "{}", type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments of {call.name} are no JSON object: {error}") from None
    return {name: value for name, value in values.items() if value is not None}


def checked(call: ToolCall, kind: type[_Parameters]) -> _Parameters:
    """Return a call's arguments as ``kind``; raises ToolError, listing the parameters, if they do not fit."""
    try:
        return msgspec.convert(members(call), kind, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(kind.__struct_fields__)
        raise ToolError(f"{call.name}: {error} (parameters: {names})") from None
