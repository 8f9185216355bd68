"""ds4-report: stores, compares and shows measured runs.

sources     runs from the store and from results files
compare     comparison of two runs: verdict and exit code
figures     the plots of a report
build       one HTML file and its Markdown twin
cli         the command
The run store, statistics and provenance are ``ds4ref.runs``.
"""
