"""The live screen of ``ds4-eval``, made of Textual's widgets.

    from ds4ref.eval.tui import show

    show(make_runner, questions, epochs, log, title="ds4ref on local", interrupt=interrupt)

``show`` sets up and restores the terminal; ``app`` has layout, keys and the loop; ``widgets`` the things that are
drawn; ``board`` the state of the run; ``work`` the thread that asks the questions.
"""

from .show import show

__all__ = ["show"]
