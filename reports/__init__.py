"""ds4-report: what was measured, kept, compared and shown.

sources     runs of the store, and results files as runs
compare     two runs, one verdict, an exit code
figures     the plots of a report
build       one HTML file and its Markdown twin
cli         the command
The run store, statistics and provenance are ``ds4ref.runs``.
"""
