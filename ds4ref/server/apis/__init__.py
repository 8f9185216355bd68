"""The endpoints that generate, one module an API. ``fields`` reads what their requests share, ``common`` writes what
their answers share."""
