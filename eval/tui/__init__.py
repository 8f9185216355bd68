"""The live screen of ``ds4-eval``, made of Textual's widgets.

    from ds4ref.eval.tui import show

    show(make_runner, questions, epochs, log, title="ds4ref on local", signals=signals)

``show`` sets up and restores the terminal, ``app`` has the loop, ``screen`` the layout and the keys: ``header``,
``table`` (the questions), ``pane`` (the answer) and ``dialogs``. ``board`` holds the state that they draw, ``work`` the
thread that asks.
"""

from .show import show

__all__ = ["show"]
