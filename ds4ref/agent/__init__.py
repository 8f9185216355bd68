"""A small agent: a model, six tools, one folder. Enough to see whether tool use works, and careful enough to let run.

    loop.py        the turns: messages out, calls in, results back, over any target
    parameters.py  the tools as a model is told of them: one declaration gives schema, defaults and checks
    tools.py       what a call does
    search.py      listing a folder, finding lines
    edit.py        texts as lines, and what an edit makes of them; no files
    memory.py      which lines the model was shown, so that it edits nothing else
    workspace.py   the folder, and that no path leads out of it
    shell.py       commands with a time limit, in an environment without keys
    permit.py      what may be done, and who is asked
    log.py         the transcript

Left out on purpose: background commands, compaction of long conversations, saved sessions (docs/reference/agent.md).
"""
