"""x"""


def document(service):
    return {}
