"""An inspect_ai task: read a file with a tool and repeat the secret word in it."""

import os

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def read_file():
    async def execute(path: str):
        """Read a text file.

        Args:
            path: absolute path of the file
        """
        with open(path) as file:
            return file.read()

    return execute


@task
def secret():
    """Return the task, which has one sample."""
    sample = Sample(input=os.environ["SMOKE_PROMPT"], target=os.environ["SMOKE_WORD"])
    return Task(dataset=[sample], solver=[use_tools(read_file()), generate()], scorer=includes())
