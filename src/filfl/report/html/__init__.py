"""The report as an HTML page, as a file or served while runs are in progress."""
