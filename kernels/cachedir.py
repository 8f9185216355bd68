"""The cache folder for everything that is made once and kept: compiled kernels, generated models, past diagnoses.

$DS4_CACHE_DIR, else $XDG_CACHE_HOME/ds4ref, else ~/.cache/ds4ref        (macOS: ~/Library/Caches/ds4ref)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """Return the cache folder, which may not exist yet; raise FileNotFoundError if there is no home directory."""
    configured = os.environ.get("DS4_CACHE_DIR")
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(home):  # the XDG rules: a relative path counts as unset
        return Path(home) / "ds4ref"
    try:
        base = Path.home()
    except RuntimeError:
        raise FileNotFoundError("no home directory: set DS4_CACHE_DIR to a writable folder") from None
    return base / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ds4ref"
