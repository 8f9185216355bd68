"""The endpoints that generate, one module per API.

``requests`` declares the fields of each API's request; ``fields`` parses a request and refuses fields that are not
supported; ``reading`` turns fields into parts of a turn; ``common`` holds the code shared by the replies.
"""
