"""Tables as federated data: frames of pandas and polars, .csv and .parquet files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl import FederatedData
from filfl.data.table import Table
from filfl.errors import ConfigError, DataError


def patients(count: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, size=count)
    return pd.DataFrame(
        {
            "site": [f"site-{i % 5}" for i in range(count)],
            "age": age,
            "crp": rng.lognormal(5, 1, size=count),
            "sex": rng.choice(["m", "f"], size=count),
            "smoker": rng.random(count) < 0.5,
            "diagnosis": np.where(age > 50, "malignant", "benign"),
        }
    )


def of(frame: Any, **options: Any) -> FederatedData:
    return FederatedData.from_frame(frame, client="site", target="diagnosis", **options)


def every_row(data: FederatedData) -> np.ndarray:
    return np.concatenate([data.x, data.filter_x, data.test_x])


def test_a_small_table_by_hand() -> None:
    frame = pd.DataFrame(
        {
            "who": ["bo", "al", "bo", "al"],
            "kind": ["x", "y", "x", "z"],
            "n": [1.0, 3.0, 5.0, 7.0],
            "label": ["yes", "no", "no", "yes"],
        }
    )
    given = {"client": "who", "target": "label", "test": frame, "filtering": frame.head(1), "validation": 0.0}
    data = FederatedData.from_frame(frame, **given)
    assert data.names.tolist() == ["al", "bo"] and data.class_names == ("no", "yes") and data.classes == 2
    assert data.encoding.feature_names == ["kind=x", "kind=y", "kind=z", "n"]
    # n has the mean 4 and the standard deviation sqrt((9 + 1 + 1 + 9) / 4) = sqrt(5).
    n = np.array([-3, -1, 1, 3]) / np.sqrt(5)
    kinds = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert np.allclose(data.test_x, np.column_stack([kinds, n])) and data.test_y.tolist() == [1, 0, 0, 1]
    assert data.test_clients.tolist() == [1, 0, 1, 0], "the client of each test row is known by its column"
    assert np.allclose(data.filter_x, data.test_x[:1]) and data.filter_y.tolist() == [1]
    raw = FederatedData.from_frame(frame, **given, standardise=False)
    assert raw.test_x[:, -1].tolist() == [1, 3, 5, 7]
    only = FederatedData.from_frame(frame, **given, features=["kind"])
    assert only.encoding.feature_names == ["kind=x", "kind=y", "kind=z"]


@given(st.data())
def test_rows_are_standardised_and_can_be_encoded_again(draw: st.DataObject) -> None:
    count = draw.draw(st.integers(20, 40))
    numbers = st.floats(-1e6, 1e6, width=32)
    frame = pd.DataFrame(
        {
            "site": [i % 3 for i in range(count)],
            "a": draw.draw(st.lists(numbers, min_size=count, max_size=count)),
            "b": draw.draw(st.lists(st.sampled_from(["u", "v", "w"]), min_size=count, max_size=count)),
            "diagnosis": ["no", "yes"] * (count // 2) + ["no"] * (count % 2),
        }
    )
    data = of(frame)
    scale = max(1.0, abs(data.encoding.columns[0].mean) / data.encoding.columns[0].std)
    assert abs(data.x[:, 0].mean()) < 1e-4 * scale, "the mean is that of the clients' samples"
    spread = 1 if len(np.unique(data.x[:, 0])) > 1 else 0
    assert data.x[:, 0].std() == pytest.approx(spread, abs=1e-4 * scale)
    again = data.encoding.inputs(frame.drop(columns=["site", "diagnosis"]))
    assert sorted(row.tobytes() for row in again) == sorted(row.tobytes() for row in every_row(data))


def test_frames_and_files_give_the_same_data(tmp_path: Path) -> None:
    frame = patients()
    frame["sex"] = frame["sex"].astype("category")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "semicolon.csv", index=False, sep=";")
    frame.to_csv(tmp_path / "bom.csv.gz", index=False, encoding="utf-8-sig")
    frame.to_parquet(tmp_path / "a.parquet")
    nullable = frame.astype({"age": "Int64", "smoker": "boolean", "site": object, "diagnosis": "string"})
    others = [pl.DataFrame(frame.to_dict("list")), nullable, *sorted(tmp_path.iterdir()), str(tmp_path / "a.csv")]
    expected = of(frame)
    for other in others:
        data = of(other)
        assert data.fingerprint() == expected.fingerprint()
        assert data.names.tolist() == expected.names.tolist() == [f"site-{i}" for i in range(5)]
        assert data.class_names == ("benign", "malignant") and data.encoding == expected.encoding


def test_client_ids_of_files_keep_their_zeros(tmp_path: Path) -> None:
    frame = patients()
    frame["site"] = [f"{i % 5:03d}" for i in range(len(frame))]
    frame.to_csv(tmp_path / "zeros.csv", index=False)
    assert of(tmp_path / "zeros.csv").names.tolist() == ["000", "001", "002", "003", "004"]
    frame["site"] = [i % 12 for i in range(len(frame))]
    frame.to_csv(tmp_path / "numbers.csv", index=False)
    assert of(tmp_path / "numbers.csv").names.tolist() == list(range(12)), "numbers are in the order of numbers"
    frame["site"] = frame["site"].astype(float)
    assert of(frame).names.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("labels", "names"),
    [([7, 3, 10], ("3", "7", "10")), ([True, False], ("False", "True")), (["b", "a"], ("a", "b"))],
)
def test_labels_of_any_type_are_classes(labels: list[Any], names: tuple[str, ...]) -> None:
    frame = patients()
    frame["diagnosis"] = [labels[i % len(labels)] for i in range(len(frame))]
    data = of(frame, test=frame)
    assert data.class_names == names and data.classes == len(names)
    assert [data.class_names[k] for k in data.test_y] == [str(label) for label in frame["diagnosis"]]


def test_numeric_targets_are_standardised_and_learned(caplog: pytest.LogCaptureFixture) -> None:
    frame = patients(400)
    frame["diagnosis"] = 1000.0 * frame["age"] + 50_000.5
    data = of(frame)
    assert data.classes == 0 and data.class_names == () and abs(data.y.mean()) < 1e-5
    back = data.test_y * data.encoding.target_std + data.encoding.target_mean
    assert np.isin(np.round(back), np.round(frame["diagnosis"])).all()
    result = filfl.simulate({"rounds": 4, "selection.k": 3}, data=data)
    assert result.records[-1]["test_loss"] < 0.1, "always predicting the mean is a loss of 1"
    frame["diagnosis"] = frame["age"]
    assert of(frame).classes > 50 and 'set task = "regression" if it is a number' in caplog.text
    assert of(frame, task="regression").classes == 0
    frame["diagnosis"] = (frame["age"] > 50).astype(float)
    assert of(frame).classes == 0 and 'set task = "classification" if these are classes' in caplog.text
    assert of(frame, task="classification").class_names == ("0", "1")


def test_missing_values_are_refused_dropped_or_filled(caplog: pytest.LogCaptureFixture) -> None:
    frame = patients().astype({"age": float})
    frame.loc[[3, 4], "age"] = np.nan
    frame.loc[5, "sex"] = None
    for table in (frame, pl.from_dict(frame.astype(object).where(frame.notna(), None).to_dict("list"), strict=False)):
        with pytest.raises(DataError, match=r"column age has 2, column sex has 1 of 60; set missing = \"drop\""):
            of(table)
        data = of(table, missing="drop")
        assert len(every_row(data)) == 57 and "rows with missing values, dropped: 3" in caplog.text
        filled = of(table, missing="fill", standardise=False)
        assert filled.encoding.columns[0].fill == frame["age"].median()
        assert np.sort(every_row(filled)[:, 0]).tolist() == sorted(frame["age"].fillna(frame["age"].median()))
        assert (every_row(filled)[:, 2:4].sum(axis=1) == 0).sum() == 1, "a missing category is 0 in all its inputs"
    frame.loc[0, "site"] = None
    with pytest.raises(DataError, match=r"column site has 1 of 60; set missing = \"drop\" to leave out such rows$"):
        of(frame, missing="fill")


def written(text: str, folder: Path, name: str = "table.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def changed(**columns: Any) -> pd.DataFrame:
    return patients().assign(**columns)


@pytest.mark.parametrize(
    ("frame", "options", "reason"),
    [
        (lambda: patients().drop(columns="site"), {}, "no column site; it has age, crp, sex, smoker, diagnosis"),
        (patients, {"features": ["age", "weight"]}, "no column weight"),
        (patients, {"features": ["age", "site"]}, "column site cannot be a feature"),
        (lambda: patients()[["site", "diagnosis"]], {}, "no columns besides site and diagnosis"),
        (lambda: patients().head(0), {}, "the table has no rows"),
        (lambda: changed(site="a"), {}, r"column site has a single client \(a\)"),
        (lambda: changed(diagnosis="well"), {}, r"column diagnosis has a single class \(well\)"),
        (lambda: changed(age=["x"] + ["7"] * 59), {}, "column age has numbers and 1 texts, such as 'x'"),
        (lambda: changed(age=pd.Series(["x", 3] * 30, dtype=object)), {}, "column age has values of mixed types"),
        (lambda: patients(300).assign(note=[f"text {i}" for i in range(300)]), {}, "note has 300 different texts"),
        (lambda: changed(day=pd.Timestamp("2026-01-01")), {}, "column day has dates or times; turn it into numbers"),
        (lambda: changed(crp=np.inf), {}, "column crp has 60 values that are infinite or too large"),
        (lambda: changed(site=np.linspace(0, 1, 60)), {}, "column site must be integers or names"),
        (patients, {"task": "regression"}, "column diagnosis must be numbers for regression"),
        (patients, {"task": "ranking"}, "task must be"),
        (patients, {"missing": "ignore"}, "missing must be"),
        (patients, {"filtering": changed(sex="x")}, r"column sex must be one of f, m \(got x\)"),
        (patients, {"filtering": changed(diagnosis="?")}, r"column diagnosis must be one of benign, malignant"),
        (patients, {"filtering": changed(age="old")}, "column age must be numbers"),
        (lambda: {"site": [1]}, {}, "must be a pandas or polars frame, or the path .*got dict"),
        (lambda: pl.from_pandas(patients().astype(object)).lazy(), {}, "lazy frame has no rows yet"),
        (lambda: pd.concat([patients(), patients()], axis=1), {}, "several columns called site"),
        (lambda: Path("nowhere.csv"), {}, "nowhere.csv does not exist; give a .csv or .parquet file"),
        (lambda: Path(), {}, "is a folder"),
    ],
)
def test_mistakes_are_reported(frame: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        of(frame(), **options)


def test_files_that_are_not_tables_are_refused(tmp_path: Path) -> None:
    for name, text, reason in [
        ("empty.csv", "", "empty.csv is empty"),
        ("header.csv", "site,age,diagnosis\n", "the table has no rows"),
        ("broken.csv", 'site,age\n"a,1\n', "broken.csv cannot be read as .csv"),
        ("broken.parquet", "no parquet", "broken.parquet cannot be read as .parquet"),
        ("table.xlsx", "x", "table.xlsx must be a .csv or .parquet file"),
    ]:
        with pytest.raises(DataError, match=reason):
            of(written(text, tmp_path, name))
    (tmp_path / "latin.csv").write_bytes("site,age,diagnosis\nKöln,1,no\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"cannot be read as .csv: 'utf-8' codec"):
        of(tmp_path / "latin.csv")


def test_an_index_that_was_written_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    patients().to_csv(tmp_path / "index.csv")
    assert of(tmp_path / "index.csv").encoding == of(patients()).encoding
    assert "a column without a name, which is left out" in caplog.text


def test_saved_data_keeps_names_and_encoding(tmp_path: Path) -> None:
    data = of(patients())
    data.save(tmp_path / "saved")
    back = FederatedData.open(tmp_path / "saved")
    assert back.class_names == data.class_names and back.encoding == data.encoding
    assert np.array_equal(back.encoding.inputs(patients()), data.encoding.inputs(patients()))
    assert json.loads((tmp_path / "saved" / "data.json").read_text())["class_names"] == ["benign", "malignant"]
    run = {"rounds": 2, "selection.k": 2, "data.name": "saved", "data.path": str(tmp_path / "saved")}
    named = filfl.simulate(run)
    assert named.records == filfl.simulate({"rounds": 2, "selection.k": 2}, data=data).records
    assert set(named.clients["name"]) <= set(data.names.tolist())


def test_the_plugin_equals_from_frame(tmp_path: Path) -> None:
    patients().to_csv(tmp_path / "t.csv", index=False)
    columns = {"client": "site", "target": "diagnosis"}
    data = Table(path=str(tmp_path / "t.csv"), **columns, features=("age", "sex")).load(3)
    same = FederatedData.from_frame(patients(), **columns, features=["age", "sex"], seed=3)
    assert data.fingerprint() == same.fingerprint() and data.encoding == same.encoding
    with pytest.raises(ConfigError, match=r"data.target must be set to columns of .*t.csv, which has site, age, crp"):
        Table(path=str(tmp_path / "t.csv"), client="site").load(0)
    with pytest.raises(DataError, match=r"data.path is not set; set it to a .csv or .parquet file"):
        Table(**columns).load(0)


def test_a_filtering_set_can_be_a_table_file(tmp_path: Path) -> None:
    from filfl.data.filter_file import with_filter_file

    data = of(patients())
    patients(7, seed=1).drop(columns="site").to_csv(tmp_path / "v.csv", index=False)
    made = with_filter_file(data, str(tmp_path / "v.csv"))
    assert np.array_equal(made.filter_x, data.encoding.inputs(patients(7, seed=1))) and len(made.filter_y) == 7
