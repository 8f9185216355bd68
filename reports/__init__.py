"""ds4-report: what was measured, kept, compared and shown.

store       every run with its environment, in one SQLite file
stats       intervals, tests and verdicts
compare     two runs, one verdict, an exit code
figures     the plots of a report
build       one HTML file and its Markdown twin
cli         the command

``reports.store`` is the one part that other tools import; it imports none of them.
"""
