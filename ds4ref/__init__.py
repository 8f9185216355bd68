"""ds4ref: a reference engine for DeepSeek V4, and the harness that measures other engines against it.

Importing the package is free of heavy work on purpose: command line help and file inspection must start
in a fraction of a second. Import what you need from the modules: ``ds4ref.engine``, ``ds4ref.weights.gguf``, ...
"""

__version__ = "0.1.0"
