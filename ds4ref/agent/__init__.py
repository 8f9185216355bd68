"""A small coding agent: a model that works in one folder with six tools. It shows whether tool use works, and protects
the user's files.

    loop.py        the turns of a conversation: send the messages, run the tool calls of the answer, send back the
                   results; works with any target
    parameters.py  the tools as the model sees them: one declaration gives schema, defaults and checks
    tools.py       executes tool calls
    search.py      listing a folder, finding lines
    edit.py        a file's text as lines, and edits of it; no file access
    workspace.py   the folder, and the check that no path leads out of it
    shell.py       shell commands with a time limit, in an environment without API keys
    permit.py      which tools are allowed, and how the user is asked about others
    log.py         the transcript of a session, as a file

Left out on purpose: background commands, compaction of long conversations, saved sessions (docs/reference/agent.md).
"""
