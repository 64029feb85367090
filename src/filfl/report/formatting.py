"""Numbers, and tables as text."""

from collections.abc import Callable, Sequence

from filfl.report.statistics import Spread

NONE = "\u2013"
MINUS = "\u2212"


def spread_text(
    spread: Spread | None, form: str = "{:.3f}", *, scale: float = 1.0, between: str = "±", with_std: bool = True
) -> str:
    """0.512±0.020; the mean alone if there is one seed."""
    if spread is None:
        return NONE
    std = between + form.format(scale * spread.std) if with_std and spread.count > 1 else ""
    return form.format(scale * spread.mean) + std


def percent(spread: Spread | None) -> str:
    """86.7 ± 0.7 %"""
    return NONE if spread is None else spread_text(spread, "{:.1f}", scale=100, between=" ± ") + " %"


def points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign: +5.9"""
    return signed(100 * difference, "{:+.1f}")


def signed(value: float, form: str = "{:+.3g}") -> str:
    """A number with its sign: +0.25; 0 has none."""
    text = form.format(value)
    if not text.strip("+-0."):
        return text[1:]
    return MINUS + text[1:] if text.startswith("-") else text


def megabytes(num_bytes: float) -> str:
    """17.0 MB; large ones in GB, small ones in kB."""
    unit, size = ("GB", num_bytes / 1e9) if num_bytes >= 1e10 else ("MB", num_bytes / 1e6)
    if num_bytes < 1e5:
        unit, size = "kB", num_bytes / 1e3
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{size:,.{digits}f} {unit}"


def to_target(spread: Spread | None, text: Callable[[float], str], finished: bool = True) -> str:
    """The mean over the seeds that reached the target, and how many did, if not all: 27 (2/3)"""
    if spread is None:
        return "never" if finished else "not yet"
    return text(spread.mean) + (f" ({spread.count}/{spread.of})" if spread.count < spread.of else "")


def p_value(p: float | None) -> str:
    """0.0123, or <0.0001"""
    return NONE if p is None else f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def p_equals(p: float) -> str:
    """p = 0.0123, or p < 0.0001"""
    return f"p = {p:.4f}" if p >= 0.0001 else "p < 0.0001"


def markdown_rows(headings: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---") -> list[str]:
    """The lines of a Markdown table; `align` is the rule below every heading but the first."""
    rule = ["---", *[align] * (len(headings) - 1)]
    texts = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (headings, rule, *rows)]
    return [f"| {' | '.join(row)} |" for row in texts]
