"""The fuzz campaign: seeded random cases with a time budget, and a corpus of what once broke.

    python -m tests.fuzz --seconds 120 --seed 0          # all parts, in equal shares of the time
    python -m tests.fuzz configs data --seconds 30       # some parts
    python -m tests.fuzz data --seed 0 --case 17         # one case again, as a failure prints it

Whatever a case does, filfl must answer with a result or with one sentence: no traceback, no wrong byte, and nothing
damaged that is accepted. `make fuzz` runs it for two minutes, `make test` a short slice.
"""
