"""`python -m tests.fuzz`: see the package."""

import argparse
import sys
import warnings

from .campaign import run_part
from .parts import PARTS


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz filfl: random cases with a seed and a time budget.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--seconds", type=float, default=120, help="the time budget of all parts together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="repeat one case of one part: its number, or the name of a case of the corpus")
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"there is no part {min(unknown)}; choose from {', '.join(PARTS)}")
    chosen = given.parts or list(PARTS)
    if given.case is not None and (len(chosen) != 1 or not given.case.isdigit()):
        parser.error("--case needs one PART and the number of a case; the cases of the corpus always run first")
    warnings.simplefilter("ignore")
    only = None if given.case is None else int(given.case)
    failed = sum(run_part(PARTS[name], given.seconds / len(chosen), given.seed, only) for name in chosen)
    sys.exit(f"{failed} cases failed" if failed else 0)


if __name__ == "__main__":
    main()
