"""Parts shared by the commands: options, tables, progress, JSON, exit codes. Nothing here imports a command."""
