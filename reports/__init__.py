"""ds4-report: stores, compares and shows measured runs.

sources     loads runs from the store and from results files
tables      prints runs as text
export      writes runs as one CSV or JSON table
build       writes a report as one HTML file, and the same as Markdown
graded      the section of a report on graded runs
figures     the plots of a report
cli         the command line

The run store, statistics, comparisons and metadata of runs are in ``ds4ref.runs``.
"""
