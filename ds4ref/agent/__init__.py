"""A small agent: a model, six tools, one folder. It shows whether tool use works, and guards the user's files.

    loop.py        the turns: messages out, calls in, results back, with any target
    parameters.py  the tools as the model sees them: one declaration gives schema, defaults and checks
    tools.py       the execution of a call
    search.py      listing a folder, finding lines
    edit.py        a file's text as lines, and edits of it; no file access
    workspace.py   the folder, and the check that no path leads out of it
    shell.py       commands with a time limit, in an environment without keys
    permit.py      which tools are allowed, and asking the user about others
    log.py         the transcript

Left out on purpose: background commands, compaction of long conversations, saved sessions (docs/reference/agent.md).
"""
