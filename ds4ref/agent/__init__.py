"""A small agent: a model, six tools, one folder. Enough to see whether tool use works, and safe to let run.

    loop.py        the turns: messages out, calls in, results back, over any target
    tools.py       the tools: what the model is told of them, and what a call does
    search.py      looking through the files of the folder
    edit.py        texts as lines, and what an edit makes of them; no files
    memory.py      which lines the model has seen, so that it edits nothing it has not
    workspace.py   the folder, and that nothing outside it is reached
    shell.py       commands with a time limit, in an environment without keys
    permit.py      what may be done, and who is asked
    log.py         the transcript

Left out on purpose: background commands, compaction of long conversations, saved sessions (docs/reference/agent.md).
"""
