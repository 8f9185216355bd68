"""The exception that all verifiers raise."""


class Unverified(Exception):
    """Raised if the computed answer differs from the key, or cannot be computed."""
