"""The live screen of ``ds4-eval``.

    from eval.tui import show

    show(make, questions, epochs, log, title="ds4ref on local", signals=signals)

``work`` runs, ``board`` knows, ``app`` shows: ``header``, ``questions`` (the list), ``pane`` (the answer) and
``dialogs``. ``text`` makes foreign text harmless, ``document`` says what there is about a sample.
"""

from .show import show

__all__ = ["show"]
