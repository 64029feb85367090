"""The longer commands behind the command line, and what all of them share."""
