"""The endpoints that generate, one module per API.

``fields`` parses the request fields that several APIs have; ``common`` holds the code shared by their replies.
"""
