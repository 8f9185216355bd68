"""Shared parts of the commands: options, tables, progress, JSON, exit codes. They import no command."""
