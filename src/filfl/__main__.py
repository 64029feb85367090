"""`python -m filfl` is the command `filfl`."""

from filfl.cli import main

if __name__ == "__main__":
    main()
