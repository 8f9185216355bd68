"""The one way in which a verification fails."""


class Unverified(Exception):
    """What was computed is not what the pack says."""
