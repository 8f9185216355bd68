"""The live screen of ``ds4-eval``, made of Textual's widgets.

    from ds4ref.eval.tui import show

    show(make_runner, questions, epochs, log, title="ds4ref on local", interrupt=interrupt)

``show`` sets up and restores the terminal, ``app`` has layout, keys and the loop, ``widgets`` what is drawn. ``board``
holds the state, ``work`` the thread that asks.
"""

from .show import show

__all__ = ["show"]
