"""docs/config.md: made from the code, complete, and up to date."""

from pathlib import Path

import pytest

from filfl.config.config import GENERAL, Config
from filfl.config.experiment import Compare
from filfl.config.figure import Figure
from filfl.config.plugins import KINDS
from filfl.config.reference import descriptions, options, render
from filfl.config.schema import options_of
from filfl.config.sections import FilterOptions

PAGE = Path(__file__).parent.parent / "docs" / "config.md"
DOCUMENTED = [
    (Config, ""),
    (FilterOptions, "filter"),
    (Compare, "compare"),
    (Figure, "figure"),
    *((cls, section) for section, cls in GENERAL.items()),
    *((cls, section) for section, kind in KINDS.items() for cls in (kind.base, *kind.registry.values())),
]


@pytest.mark.parametrize(("cls", "section"), DOCUMENTED, ids=lambda part: getattr(part, "__name__", part))
def test_every_option_is_described_at_its_field(cls: type, section: str) -> None:
    generated = (f"{cls.__name__}(*", f"{cls.__name__}()")
    assert cls.__doc__ and not cls.__doc__.startswith(generated), "add a docstring"
    missing = [option.key for option in options(cls, section) if not option.description]
    assert not missing, f"add a string below these fields of {cls.__name__}"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run make reference"


def test_the_page_has_every_option() -> None:
    page = render()
    for cls, section in DOCUMENTED:
        for name in options_of(cls):
            assert f"`{section}.{name}`" in page or f"- `{name}`" in page


def test_descriptions_come_from_the_field_or_a_base_class() -> None:
    texts = descriptions(KINDS["selection"].registry["power-of-choice"])
    assert texts["d"].startswith("The number of candidates, at least K.")
    assert texts["k"].startswith("K, the number of clients")


def test_defaults_are_written_as_in_toml() -> None:
    made = {option.key: option.default for cls, section in DOCUMENTED for option in options(cls, section)}
    assert made["filter.optimum"] == "false" and made["filter.size"] == "unset" and made["availability.n"] == "required"
    assert made["model.channels"] == "[16, 32]" and made["filter.when"] == '"algorithm-1"'
