"""Small models that run everywhere: the embedded one, which is trained, and random ones of any dimensions.

    ds4 nano path                                  print the path of the embedded model's file, made at first use
    ds4 nano dspark                                print the path of its DSpark drafter
    ds4 nano random                                print the path of the random model's file, made at first use
    ds4 nano slice [OUT] --layers 4 --n-experts 256  write a slice, Flash with fewer layers and experts (8.5 GB; 0.9 GB
                                                   with --n-experts 8)

``trained`` makes files from the weights of the embedded model, a test instrument trained on generated tasks; ``train``
trains it. ``recipe`` generates model files of random weights, to test dimensions and speed; ``diagnostic`` one that
makes bugs visible. ``prose`` generates text for benchmarks and recall tests, ``vocab`` the tokenizer tables; ``cache``
stores model files on disk.
"""

from __future__ import annotations

from .cache import random_path
from .trained import dspark_path, embedded_path, mtp_path

__all__ = ["dspark_path", "embedded_path", "mtp_path", "random_path"]
