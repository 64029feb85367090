"""Shakespeare: windows are the role's own text, training and test share no text, and invalid files are refused."""

import gzip
import json
import os
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl.data.shakespeare import ALPHABET, UNKNOWN, WINDOW, Shakespeare, disjoint_windows, encode, sliding_windows
from filfl.errors import DataError, PluginError
from filfl.models.lstm import LSTM

FOLDER = Path(os.environ.get("FILFL_DATA", "/nowhere"))
real = pytest.mark.skipif(
    "FILFL_DATA" not in os.environ,
    reason="FILFL_DATA (the folder with real data) is not set",
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILFL_CACHE", str(tmp_path / "cache"))


def prose(length: int, seed: int) -> str:
    """Random text, in which all windows are different with near certainty."""
    return "".join(np.random.default_rng(seed).choice(list(ALPHABET), size=length))


def write_speeches(path: Path, speeches: list[tuple[str, str, str]]) -> Path:
    lines = [json.dumps({"play": p, "role": r, "n": n, "text": t}) for n, (p, r, t) in enumerate(speeches)]
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_leaf(folder: Path, **splits: dict[str, tuple[list[Any], list[Any]]]) -> Path:
    for split, users in splits.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        user_data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
        content = {"users": list(users), "num_samples": [len(x) for x, _ in users.values()], "user_data": user_data}
        (folder / split / "all_data.json").write_text(json.dumps(content))
    return folder


def windows(text: str) -> tuple[list[str], list[str]]:
    starts = range(len(text) - WINDOW)
    return [text[i : i + WINDOW] for i in starts], [text[i + WINDOW] for i in starts]


def decode(codes: np.ndarray) -> str:
    return "".join(ALPHABET[code] for code in codes)


def pairs(x: np.ndarray, y: np.ndarray) -> list[str]:
    return [decode(row) + ALPHABET[label] for row, label in zip(x, y, strict=True)]


def held_by(data: filfl.FederatedData, k: int) -> list[str]:
    mine = slice(data.offsets[k], data.offsets[k + 1])
    return pairs(data.x[mine], data.y[mine])


TEXTS = {("Lear", "FOOL"): prose(1200, 0), ("Lear", "KENT"): prose(900, 1), ("Hamlet", "FOOL"): prose(1500, 2)}


@pytest.fixture
def speeches(tmp_path: Path) -> Path:
    """Three roles with two speeches each, which alternate."""
    halves = [(play, role, text[:400]) for (play, role), text in TEXTS.items()]
    halves += [(play, role, text[400:]) for (play, role), text in TEXTS.items()]
    return write_speeches(tmp_path / "roles.jsonl.gz", halves)


def test_the_alphabet_is_that_of_leaf() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert ALPHABET[:13] == "\n !\"&'(),-.01" and ALPHABET[-1] == "}" and ALPHABET[UNKNOWN] == " " and UNKNOWN == 1
    codes, unknown = encode("aé\x7f}😀\ud800\n")
    assert (codes.tolist(), unknown) == ([53, 1, 1, 79, 1, 1, 0], 4)
    assert decode(encode(ALPHABET)[0]) == ALPHABET


@given(st.integers(0, 400))
def test_sliding_and_disjoint_windows(length: int) -> None:
    text = prose(length, 3)
    codes, _ = encode(text)
    assert [decode(row) for row in sliding_windows(codes)] == [text[i : i + 81] for i in range(length - 80)]
    assert "".join(decode(row) for row in disjoint_windows(codes)) == text[: length // 81 * 81]


def test_windows_are_the_text_of_the_role_with_the_next_character(speeches: Path) -> None:
    data = Shakespeare(path=str(speeches), min_chars=1).load(0)
    assert data.names.tolist() == ["Lear: FOOL", "Lear: KENT", "Hamlet: FOOL"]
    assert data.x.dtype == np.int8 and data.sample_shape == (80,) and data.classes == 80
    for k, text in enumerate(t[:400] + "\n" + t[400:] for t in TEXTS.values()):
        cut = len(text) - len(text) // 10
        mine, tested = held_by(data, k), data.test_clients == k
        assert Counter(mine) == Counter(text[i : i + 81] for i in range(cut - 80)), "training ends before the test part"
        assert pairs(data.test_x[tested], data.test_y[tested]) == [
            text[i : i + 81] for i in range(cut, len(text) - 80)
        ], "the test begins where training ends"
        assert data.offsets[k + 1] - data.train_ends[k] == len(mine) // 5


def test_most_keeps_the_first_windows_and_the_same_fraction_of_the_test(speeches: Path) -> None:
    data = Shakespeare(path=str(speeches), min_chars=1, most=50).load(0)
    for k, text in enumerate(t[:400] + "\n" + t[400:] for t in TEXTS.values()):
        assert Counter(held_by(data, k)) == Counter(text[i : i + 81] for i in range(50))
    # 1201 characters: 1081 for training, 1001 windows; 120 for the test, 40 windows; 50/1001 of 40 is 2 (rounded up).
    assert np.bincount(data.test_clients)[0] == 2
    large = Shakespeare(path=str(speeches), min_chars=1, most=10**6).load(0)
    assert large.fingerprint() == Shakespeare(path=str(speeches), min_chars=1).load(0).fingerprint()


def test_spread_windows_start_at_equal_distances_over_the_text(speeches: Path) -> None:
    data = Shakespeare(path=str(speeches), min_chars=1, most=50, spread=True).load(0)
    for k, text in enumerate(t[:400] + "\n" + t[400:] for t in TEXTS.values()):
        cut = len(text) - len(text) // 10
        windows = cut - 80
        starts = [i * windows // 50 for i in range(50)]
        assert Counter(held_by(data, k)) == Counter(text[i : i + 81] for i in starts)
        assert starts[-1] > windows * 0.97, "up to the end of the text"
    first = Shakespeare(path=str(speeches), min_chars=1, most=50).load(0)
    assert np.array_equal(np.bincount(data.test_clients), np.bincount(first.test_clients))
    # Role 0 has 40 test windows, which start at 1081, and keeps 2 of them: those at 0 and 20.
    text = next(t[:400] + "\n" + t[400:] for t in TEXTS.values())
    mine = data.test_clients == 0
    assert pairs(data.test_x[mine], data.test_y[mine]) == [text[1081 + i : 1162 + i] for i in (0, 20)]
    every = Shakespeare(path=str(speeches), min_chars=1, spread=True).load(0)
    assert every.fingerprint() == Shakespeare(path=str(speeches), min_chars=1).load(0).fingerprint()


def test_clients_are_drawn_with_the_seed(speeches: Path) -> None:
    drawn = {tuple(Shakespeare(path=str(speeches), min_chars=1, clients=2).load(seed).names) for seed in range(20)}
    assert len(drawn) == 3 and all(len(names) == 2 for names in drawn)
    data = Shakespeare(path=str(speeches), min_chars=1, clients=2).load(0)
    assert set(data.test_clients) == {0, 1}
    with pytest.raises(DataError, match=r"data.clients must be between 1 and the 3 clients .* \(got 4\)"):
        Shakespeare(path=str(speeches), min_chars=1, clients=4).load(0)


def test_dropped_roles_and_replaced_characters_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [("a", "LONG", prose(300, 4) + "é~"), ("a", "SHORT", "hm"), ("a", "MUTE", ""), ("a", "MUTE", " ")]
    path = write_speeches(tmp_path / "roles.jsonl", [*lines, ("a", "TINY", "x" * 80)])
    for _ in range(2):  # parsed, and then from the cache
        caplog.clear()
        data = Shakespeare(path=str(path), min_chars=10, test=0.4).load(0)
        assert data.names.tolist() == ["a: LONG"]
        assert [record.getMessage().removeprefix(f"{path}: ") for record in caplog.records] == [
            "roles without text, left out: 1",
            "characters outside the alphabet, replaced by spaces: 2",
            "roles with fewer than data.min_chars = 10 characters, or too few for a training window, left out: 2",
        ]
        assert {record.name for record in caplog.records} == {"filfl"}
    with pytest.raises(DataError, match=r"every role has fewer than data.min_chars = 2000 .*lower data.min_chars"):
        Shakespeare(path=str(path)).load(0)


def test_the_filtering_windows_do_not_overlap(speeches: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = prose(2754, 5)
    (tmp_path / "own.txt").write_text(text)
    data = Shakespeare(path=str(speeches), min_chars=1, text=str(tmp_path / "own.txt")).load(0)
    assert len(data.filter_y) == 34 and "".join(pairs(data.filter_x, data.filter_y)) == text

    ours = resources.files("filfl.data").joinpath("filtering_text.txt").read_text()
    data = Shakespeare(path=str(speeches), min_chars=1).load(0)
    assert len(ours) >= 2900 and set(ours) <= set(ALPHABET)
    assert "".join(pairs(data.filter_x, data.filter_y)) == ours[: len(ours) // 81 * 81]
    assert not caplog.records


def test_a_leaf_folder_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ann, bob, cy, new = (windows(prose(100, seed)) for seed in (6, 7, 8, 9))
    folder = write_leaf(tmp_path / "leaf", train={"ann": ann, "bob": bob, "nil": ([], [])}, test={"bob": new, "cy": cy})
    data = Shakespeare(path=str(folder)).load(0)
    assert data.names.tolist() == ["ann", "bob"] and data.num_train.tolist() == [16, 16] and data.classes == 80
    assert Counter(held_by(data, 1)) == Counter(x + y for x, y in zip(*bob, strict=True))
    assert pairs(data.test_x, data.test_y) == [x + y for user in (new, cy) for x, y in zip(*user, strict=True)]
    assert data.test_clients.tolist() == [1] * 20 + [-1] * 20
    assert [record.getMessage().removeprefix(f"{folder}: ") for record in caplog.records] == [
        "roles without text, left out: 1",
        "users without training data, whose test samples belong to no client: 1",
    ]
    capped = Shakespeare(path=str(folder), most=5).load(0)
    assert len(capped.y) == 10 and np.bincount(capped.test_clients + 1).tolist() == [5, 0, 5]
    assert set(Shakespeare(path=str(folder), clients=2).load(0).test_clients) == {1}, "only drawn clients are tested"


def test_the_cache_is_used_and_a_damaged_one_is_written_again(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = write_leaf(tmp_path / "leaf", train={"ann": windows(prose(99, 9))}, test={"ann": windows(prose(99, 10))})
    both = [Shakespeare(path=str(speeches), min_chars=1), Shakespeare(path=str(leaf))]
    first = [dataset.load(0).fingerprint() for dataset in both]
    stored = sorted((tmp_path / "cache").iterdir())
    assert len(stored) == 2
    with monkeypatch.context() as patch:
        for parser in ("parse_speeches", "parse_leaf"):
            patch.setattr(f"filfl.data.shakespeare.{parser}", lambda _: pytest.fail("parsed again"))
        assert [dataset.load(0).fingerprint() for dataset in both] == first
        both[0].load(1), Shakespeare(path=str(speeches), min_chars=1, most=9, clients=1).load(0)
    whole = [path.read_bytes() for path in stored]
    for damage in (
        lambda content: content[:300] + b"damage" + content[306:],
        lambda content: b"",
        lambda content: b"no",
    ):
        for path, content in zip(stored, whole, strict=True):
            path.write_bytes(damage(content))
        assert [dataset.load(0).fingerprint() for dataset in both] == first
        assert [path.read_bytes() for path in stored] == whole, "the cache is written again"


GOOD = windows(prose(90, 11))


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ((["x" * 79, "x" * 80], ["a", "b"]), r"all_data.json: user ann, sample 0: x must be .*80 .*\(got 79 charac"),
        (
            ([*GOOD[0][:1], "x" * 81], ["a", "b"]),
            r"user ann, sample 1: x must be a string of 80 .*\(got 81 charac",
        ),
        (([7], ["a"]), r"user ann, sample 0: x must be a string of 80 characters \(got int\)"),
        ((["x" * 80], ["ab"]), r"user ann, sample 0: y must be a string of one character \(got 'ab'\)"),
        ((["x" * 80], [""]), r"y must be a string of one character"),
        ((["x" * 80], [3]), r"y must be a string of one character \(got 3\)"),
        ((["x" * 80], []), r"x and y of user ann must be lists of the same length"),
    ],
)
def test_invalid_windows_are_refused_with_file_and_user(
    train: tuple[list[Any], list[Any]], reason: str, tmp_path: Path
) -> None:
    folder = write_leaf(tmp_path / "leaf", train={"ann": train}, test={"ann": GOOD})
    with pytest.raises(DataError, match=reason):
        Shakespeare(path=str(folder)).load(0)


def test_invalid_leaf_folders_are_refused(tmp_path: Path) -> None:
    folder = write_leaf(tmp_path / "leaf", test={"ann": GOOD})
    with pytest.raises(DataError, match=r"leaf/train has no .json file; LEAF's scripts write train/\*.json and test/"):
        Shakespeare(path=str(folder)).load(0)
    write_leaf(folder, train={"ann": ([], [])})
    with pytest.raises(DataError, match="leaf: no role has a training window"):
        Shakespeare(path=str(folder)).load(0)
    file = write_leaf(folder, train={"ann": GOOD}) / "train" / "all_data.json"
    file.write_text(file.read_text()[:200])
    with pytest.raises(DataError, match=r"all_data.json is not valid JSON"):
        Shakespeare(path=str(folder)).load(0)
    write_leaf(folder, train={"ann": GOOD}, test={"ann": ([], [])})
    with pytest.raises(DataError, match="the test set is empty"):
        Shakespeare(path=str(folder)).load(0)


LINE = b'{"play": "a", "role": "b", "n": 0, "text": "c"}\n'


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("roles.jsonl", LINE * 2 + b'{"play": "a", "ro', r"roles.jsonl, line 3 is not valid JSON"),
        ("roles.jsonl", LINE + b"\nno json\n" + LINE, r"roles.jsonl, line 3 is not valid JSON"),
        ("roles.jsonl", b"\xff\xfe\xfd\n", r"roles.jsonl, line 1 is not valid JSON"),
        ("roles.jsonl", LINE + b"[" * 100_000, r"line 2 is not valid JSON"),
        ("roles.jsonl", b'{"play": "a", "text": "c"}', r"line 1 is not a speech: play, role and text must be strings"),
        ("roles.jsonl", b'{"play": "a", "role": "b", "text": 3}', r"line 1 is not a speech"),
        ("roles.jsonl", b'["play", "role", "text"]', r"line 1 is not a speech"),
        ("roles.jsonl", b"", r"roles.jsonl has no speeches; set data.path"),
        ("roles.jsonl", LINE.replace(b'"c"', b'""'), r"none of its 1 roles has any text"),
        ("roles.jsonl.gz", gzip.compress(LINE * 500)[:-20], r"roles.jsonl.gz is damaged or truncated .*copy it again"),
        ("roles.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\xff" * 50, r"is damaged or truncated"),
        ("roles.jsonl.gz", LINE, r"roles.jsonl.gz is damaged or truncated \(Not a gzipped file"),
    ],
)
def test_invalid_files_of_speeches_are_refused(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason):
        Shakespeare(path=str(tmp_path / name)).load(0)
    assert not list((tmp_path / "cache").glob("*")), "invalid data is not cached"


def test_without_a_path_the_file_in_FILFL_DATA_is_read(
    tmp_path: Path, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FILFL_DATA", raising=False)
    with pytest.raises(DataError, match=r"data.path is not set; set it to LEAF.s shakespeare folder"):
        Shakespeare().load(0)
    monkeypatch.setenv("FILFL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"data.path is not set"):
        Shakespeare().load(0)
    with pytest.raises(DataError, match=r"data.path: .*nothing.jsonl does not exist"):
        Shakespeare(path=str(tmp_path / "nothing.jsonl")).load(0)
    speeches.rename(tmp_path / "shakespeare_roles.jsonl.gz")
    assert Shakespeare(min_chars=1).load(0).num_clients == 3


def test_invalid_filtering_texts_are_refused(speeches: Path, tmp_path: Path) -> None:
    for content, reason in (
        (b"too short", "at least 81 characters: .* has 9"),
        (b"\xff" * 99, "text file in UTF-8"),
    ):
        (tmp_path / "own.txt").write_bytes(content)
        with pytest.raises(DataError, match=reason):
            Shakespeare(path=str(speeches), min_chars=1, text=str(tmp_path / "own.txt")).load(0)
    with pytest.raises(DataError, match=r"data.text: .*none.txt cannot be read: No such file"):
        Shakespeare(path=str(speeches), min_chars=1, text=str(tmp_path / "none.txt")).load(0)


def test_the_lstm_has_the_shapes_of_leaf() -> None:
    shapes = {name: tuple(value.shape) for name, value in LSTM().build((80,), 80).state_dict().items()}
    assert shapes == {
        "embedding.weight": (80, 8),
        "lstm.weight_ih_l0": (1024, 8),
        "lstm.weight_hh_l0": (1024, 256),
        "lstm.bias_ih_l0": (1024,),
        "lstm.bias_hh_l0": (1024,),
        "lstm.weight_ih_l1": (1024, 256),
        "lstm.weight_hh_l1": (1024, 256),
        "lstm.bias_ih_l1": (1024,),
        "lstm.bias_hh_l1": (1024,),
        "dense.weight": (80, 256),
        "dense.bias": (80,),
    }
    for options, size in ((LSTM(), 819_920), (LSTM(hidden=64, layers=1), 24_784)):
        assert sum(p.numel() for p in options.build((80,), 80).parameters()) == size


def test_the_lstm_uses_the_last_step_and_refuses_images() -> None:
    import torch

    module = LSTM(hidden=8, layers=1).build((80,), 80)
    x = torch.randint(80, (3, 80))
    hidden = module.lstm(module.embedding(x))[1][0][-1]
    assert torch.equal(module(x), module.dense(hidden)) and module(x).shape == (3, 80)
    with pytest.raises(PluginError, match=r"sequences of whole numbers.*got samples of shape \[1, 8, 8\]"):
        LSTM().build((1, 8, 8), 10)


def test_a_run_on_shakespeare_is_reproducible(speeches: Path) -> None:
    table = {"name": "shakespeare", "path": str(speeches), "min_chars": 1, "most": 20}
    config = {"rounds": 1, "data": table, "model": {"name": "lstm", "hidden": 8, "layers": 1}, "selection.k": 2}
    config |= {"filter.least": 2}
    first, again = filfl.simulate(config), filfl.simulate(config)
    assert first.records == again.records and not first.records[0]["refused"]
    assert len(first.records[0]["selected"]) == 2 and 3 < first.records[0]["test_loss"] < 6


@real
def test_the_real_speeches() -> None:
    texts: dict[tuple[str, str], str] = {}
    with gzip.open(FOLDER / "shakespeare_roles.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            speech = json.loads(line)
            who = (speech["play"], speech["role"])
            texts[who] = texts[who] + "\n" + speech["text"] if who in texts else speech["text"]
    long = {f"{play}: {role}": text for (play, role), text in texts.items() if len(text) >= 2000}
    assert len(texts) == 1384 and len(long) == 447
    data = Shakespeare(clients=447, most=40).load(0)
    assert data.names.tolist() == list(long) and len(data.y) == 447 * 40
    for k in (0, 100, 446):
        text = long[data.names[k]].translate({ord(c): " " for c in set(long[data.names[k]]) - set(ALPHABET)})
        assert Counter(held_by(data, k)) == Counter(text[i : i + 81] for i in range(40))
        tested = pairs(data.test_x[data.test_clients == k], data.test_y[data.test_clients == k])
        assert tested and tested == [text[-(len(text) // 10) :][i : i + 81] for i in range(len(tested))]
    few = Shakespeare(clients=5).load(0)
    sizes = [len(long[name]) for name in few.names]
    assert np.diff(few.offsets).tolist() == [size - size // 10 - 80 for size in sizes]
    assert np.bincount(few.test_clients).tolist() == [size // 10 - 80 for size in sizes]


@real
def test_the_real_leaf_file(tmp_path: Path) -> None:
    (source,) = (FOLDER / "leaf" / "shakespeare" / "test").glob("*.json")
    content = json.loads(source.read_text())
    copy = content["user_data"][content["users"][0]]
    folder = write_leaf(tmp_path / "leaf", train={}, test={"new": (["a" * 80, copy["x"][0]], ["a", copy["y"][0]])})
    (folder / "train" / source.name).symlink_to(source)
    data = Shakespeare(path=str(folder)).load(0)
    tested = {"a" * 80, copy["x"][0]}
    assert data.num_clients == 109 and data.names.tolist() == content["users"]
    assert sum(content["num_samples"]) == 16_507 and len(data.y) < 16_507, "copies of test windows are dropped"
    for k, name in enumerate(data.names):
        user = content["user_data"][name]
        expected = [x + y for x, y in zip(user["x"], user["y"], strict=True) if x not in tested]
        assert Counter(held_by(data, k)) == Counter(expected)
    with pytest.raises(DataError, match=r"shakespeare/train has no .json file"):
        Shakespeare(path=str(source.parent.parent)).load(0)
