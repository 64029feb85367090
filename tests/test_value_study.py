"""The page on client values is generated from the stored study."""

import json

import value_study


def test_the_page_is_that_of_the_stored_numbers() -> None:
    page = value_study.PAGE.read_text(encoding="utf-8")
    study = json.loads(value_study.RESULTS.read_text(encoding="utf-8"))
    assert f"{value_study.BEGIN}\n\n{value_study.render(study)}\n{value_study.END}" in page
    assert {row["fault"] for row in study["detection"]} == set(value_study.FAULTS)
    half = [row for row in study["limits"] if row["V"] == "half of the classes"]
    assert half and all(row["warned"] for row in half), "a warning before the first round"
