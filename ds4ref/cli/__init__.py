"""The commands, one thin module each: parse the command line, call the library, print."""
