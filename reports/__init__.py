"""ds4-report: store, compare and show measured runs.

sources     runs from the store and from results files
compare     compare two runs: verdict and exit code
figures     the plots of a report
build       one HTML file and its Markdown twin
cli         the command
The run store, statistics and provenance are ``ds4ref.runs``.
"""
