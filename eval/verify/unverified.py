"""The exception of all verifiers."""


class Unverified(Exception):
    """The computed answer differs from the key, or cannot be computed."""
