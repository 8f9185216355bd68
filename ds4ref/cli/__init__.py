"""The commands, one thin module each: parse, call, print."""
