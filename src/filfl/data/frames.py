"""The columns of a table: a pandas or polars frame, or a .csv or .parquet file."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.data.labels import is_missing
from filfl.data.limits import OPENERS, refuse_bomb, refuse_compressed_bomb
from filfl.data.sources import log, user_path
from filfl.errors import DataError, one_line

Columns = dict[str, NDArray[Any]]
"""Columns of equal length, by name."""
SEPARATORS = ",;\t"


def is_frame(value: object) -> bool:
    """Whether this is a table: a frame, or the path of a file."""
    return isinstance(value, str | Path) or (hasattr(value, "columns") and hasattr(value, "__getitem__"))


def read_columns(table: Any, texts: Sequence[str] = ()) -> Columns:
    """The columns of a table. The columns `texts` of a .csv are not turned into numbers, so that 007 stays 007."""
    if isinstance(table, str | Path):
        table = _read_file(user_path(table), texts)
    elif hasattr(table, "collect_schema") and hasattr(table, "collect"):
        raise DataError("a lazy frame has no rows yet; give frame.collect()")
    elif not is_frame(table):
        kinds = "a pandas or polars frame, or the path of a .csv or .parquet file"
        raise DataError(f"the table must be {kinds} (got {type(table).__name__})")
    names = [str(name) for name in table.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"the table has several columns called {twice[0]}; rename them")
    columns = {name: _column(table, given) for name, given in zip(names, table.columns, strict=True)}
    unnamed = [name for name in columns if re.fullmatch(r"|Unnamed: \d+", name)]
    for name in unnamed:  # the index of a frame that was written to a file
        log.warning("the table has a column without a name, which is left out")
        del columns[name]
    if not columns or not len(next(iter(columns.values()))):
        raise DataError("the table has no rows")
    return columns


def _column(table: Any, name: Any) -> NDArray[Any]:
    try:
        return np.asarray(table[name])
    except Exception as error:  # the texts of a .parquet are decoded only here
        reason = one_line(str(error) or type(error).__name__)
        raise DataError(f"column {one_line(str(name))} of the table cannot be read: {reason}") from None


def _read_file(path: Path, texts: Sequence[str]) -> Any:
    try:
        import pandas
    except ImportError:
        raise DataError(f"{path}: reading a table needs pandas: pip install 'filfl[table]'") from None
    if not path.is_file():
        raise DataError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; give a .csv or .parquet file")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    try:
        if suffixes[-1:] == [".parquet"]:
            _refuse_parquet_bomb(path)
            return pandas.read_parquet(path)
        if suffixes[-1:] and suffixes[-1] in (".csv", ".tsv", *OPENERS) and {".csv", ".tsv"} & {*suffixes[-2:]}:
            refuse_compressed_bomb(path)
            read = partial(pandas.read_csv, path, encoding="utf-8-sig", low_memory=False)
            separator = max(SEPARATORS, key=lambda each: len(read(sep=each, nrows=0).columns))
            return read(sep=separator, dtype=dict.fromkeys(texts, str))
    except DataError:
        raise
    except pandas.errors.EmptyDataError:
        raise DataError(f"{path} is empty") from None
    except ImportError:
        raise DataError(f"{path}: reading .parquet needs pyarrow: pip install 'filfl[table]'") from None
    except Exception as error:  # a damaged file can raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read as {path.suffix}: {reason}") from None
    raise DataError(f"{path} must be a .csv or .parquet file; a .csv may be compressed ({', '.join(OPENERS)})")


def _refuse_parquet_bomb(path: Path) -> None:
    """Refuse a table whose columns, of at least 8 bytes per value, would fill more memory than the limit."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        values = file.metadata.num_rows * file.metadata.num_columns
    refuse_bomb(str(path), 8 * values, path.stat().st_size)


def whole_numbers(names: NDArray[Any]) -> NDArray[Any]:
    """Names that are all whole numbers, such as 7 and 7.0 but not 007, as integers; other names as they are."""
    if is_missing(names).any():
        return names
    try:
        if names.dtype.kind == "f":
            return names.astype(np.int64) if (names == np.floor(names)).all() else names
        numbers = [int(str(name)) for name in names.tolist()] if names.dtype.kind in "OU" else []
    except (ValueError, OverflowError):
        return names
    same = all(str(number) == str(name) for number, name in zip(numbers, names.tolist(), strict=False))
    return np.array(numbers) if numbers and same else names
