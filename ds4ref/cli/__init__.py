"""The commands: one module a command, thin: parse, call, print."""
