"""Numbers as a person reads them."""

from filfl.report.statistics import Spread

NONE = "\u2013"
MINUS = "\u2212"


def percent(spread: Spread | None) -> str:
    """86.7 ± 0.7 %"""
    return _with_std(spread, 100, 1, " %")


def plain(spread: Spread | None, digits: int) -> str:
    """0.512 ± 0.020"""
    return _with_std(spread, 1, digits, "")


def points(difference: float | None) -> str:
    """A difference of two shares in percentage points, with its sign: +5.9"""
    return NONE if difference is None else f"{100 * difference:+.1f}".replace("-", MINUS)


def megabytes(num_bytes: float) -> str:
    """17 MB; large ones in GB."""
    unit, size = ("GB", num_bytes / 1e9) if num_bytes >= 1e10 else ("MB", num_bytes / 1e6)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{size:,.{digits}f} {unit}"


def p_value(p: float | None) -> str:
    """0.0123; below what four digits can say, < 0.0001."""
    if p is None:
        return NONE
    return f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


def p_sentence(p: float) -> str:
    """p = 0.0123"""
    return f"p {p_value(p)}" if p < 0.0001 else f"p = {p_value(p)}"


def counted(number: int, what: str) -> str:
    """1 seed, 3 seeds"""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _with_std(spread: Spread | None, scale: float, digits: int, unit: str) -> str:
    if spread is None:
        return NONE
    std = f" ± {scale * spread.std:.{digits}f}" if spread.count > 1 else ""
    return f"{scale * spread.mean:.{digits}f}{std}{unit}".replace("-", MINUS)
