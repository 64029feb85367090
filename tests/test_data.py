"""Federated data: no sample is lost, duplicated or given to another client."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl import FederatedData
from filfl.data.digits import Digits, Mnist5k
from filfl.data.partition import dirichlet, iid, shards
from filfl.data.sources import cache_folder
from filfl.data.split import floored
from filfl.errors import ConfigError, DataError

sizes = st.integers(1, 30)


@given(st.lists(sizes, min_size=1, max_size=8), st.sampled_from([0.0, 0.1, 0.4]), st.integers(0, 5))
def test_from_arrays_puts_every_sample_in_exactly_one_part(counts: list[int], share: float, seed: int) -> None:
    owners = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    x = np.arange(len(owners), dtype=np.float32)[:, None]
    test = (np.zeros((1, 1), dtype=np.float32), [0])
    data = FederatedData.from_arrays(x, owners % 2, owners, test=test, filtering=share, validation=share, seed=seed)
    samples = np.concatenate([data.x[:, 0], data.filter_x[:, 0]]).astype(int)
    assert sorted(samples) == list(range(len(owners)))
    for k, count in enumerate(counts):
        mine = data.x[data.offsets[k] : data.offsets[k + 1], 0].astype(int)
        assert (owners[mine] == k).all()
        num_filter = int(share * count)
        num_validation = int(share * count)
        assert data.num_train[k] == count - num_filter - num_validation >= 1
        assert len(mine) == count - num_filter
    index = data.x[:, 0].astype(int)
    assert (data.y == owners[index] % 2).all()


def test_test_samples_cut_from_clients_keep_their_client() -> None:
    owners = np.repeat(["ann", "bob", "cy"], [10, 20, 5])
    data = FederatedData.from_arrays(np.arange(35.0)[:, None], np.zeros(35, dtype=int), owners, test=0.2)
    assert data.names.tolist() == ["ann", "bob", "cy"]
    assert np.bincount(data.test_clients).tolist() == [2, 4, 1]
    assert (owners[data.test_x[:, 0].astype(int)] == data.names[data.test_clients]).all()


def test_test_samples_given_with_client_ids_keep_their_client() -> None:
    x = np.arange(6.0)[:, None]
    data = FederatedData.from_arrays(x, [0] * 6, list("aabbcc"), test=(x[:3], [0, 0, 0], ["c", "x", "a"]))
    assert data.test_clients.tolist() == [2, -1, 0]


def test_shares_are_rounded_down_without_floating_point_errors() -> None:
    assert floored(0.29, 100) == 29 and floored(0.2, 9) == 1 and floored(0.05, 60) == 3 and floored(0.1, 9) == 0


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 100), st.sampled_from([0.01, 0.5, 100.0]))
def test_partitions_give_every_sample_to_one_client_and_every_client_min_size(
    clients: int, min_size: int, seed: int, alpha: float
) -> None:
    labels = np.random.default_rng(seed).integers(4, size=60)
    for parts in (
        iid(labels, clients, min_size, np.random.default_rng(seed)),
        dirichlet(labels, clients, min_size, np.random.default_rng(seed), alpha=alpha),
        shards(labels, clients, min_size, np.random.default_rng(seed), shards_each=2),
    ):
        assert len(parts) == clients
        assert sorted(np.concatenate(parts)) == list(range(60))
        assert min(map(len, parts)) >= min_size


def test_small_alpha_is_heterogeneous_and_one_shard_is_one_class() -> None:
    labels = np.repeat(np.arange(10), 200)

    def classes_per_client(parts: list[np.ndarray]) -> float:
        return float(np.mean([len(np.unique(labels[part])) for part in parts]))

    def rng() -> np.random.Generator:
        return np.random.default_rng(0)

    uneven = classes_per_client(dirichlet(labels, 20, 5, rng(), alpha=0.1))
    even = classes_per_client(dirichlet(labels, 20, 5, rng(), alpha=100.0))
    assert uneven < 5 < 9.5 < even
    assert classes_per_client(shards(labels, 20, 5, rng(), shards_each=1)) == 1


def test_too_many_clients_are_refused_with_the_largest_possible_number() -> None:
    with pytest.raises(DataError, match=r"5000 clients cannot have data.min_size = 10 .* at most 129 clients can"):
        Digits(clients=5000).load(0)


def test_only_noisy_clients_have_random_labels() -> None:
    clean, noisy = Digits(clients=20).load(3), Digits(clients=20, noisy=0.3).load(3)
    assert noisy.noisy.sum() == 6
    for k in range(20):
        mine = slice(clean.offsets[k], clean.offsets[k + 1])
        agreement = (clean.y[mine] == noisy.y[mine]).mean()
        assert agreement < 0.5 if noisy.noisy[k] else agreement == 1
    validation = np.concatenate(
        [np.arange(noisy.train_ends[k], noisy.offsets[k + 1]) for k in np.flatnonzero(noisy.noisy)]
    )
    assert (clean.y[validation] == noisy.y[validation]).mean() < 0.5, "validation labels are random too"
    for name in ("x", "filter_x", "filter_y", "test_x", "test_y", "offsets", "train_ends"):
        assert np.array_equal(getattr(clean, name), getattr(noisy, name)), name
    assert clean.fingerprint() != noisy.fingerprint()


def test_the_split_depends_on_the_seed_only() -> None:
    assert Digits().load(0).fingerprint() == Digits().load(0).fingerprint() != Digits().load(1).fingerprint()
    data = Digits().load(0)
    assert replace(data, y=data.y[::-1]).fingerprint() != data.fingerprint()


def test_filter_size_keeps_m_of_the_servers_samples() -> None:
    data = Digits().load(0)
    smaller = data.with_filter_size(17, seed=0)
    assert len(smaller.filter_y) == 17
    label = {row.tobytes(): y for row, y in zip(data.filter_x, data.filter_y, strict=True)}
    assert [label[row.tobytes()] for row in smaller.filter_x] == smaller.filter_y.tolist(), "each with its own label"
    assert smaller.filter_y.tolist() != data.filter_y[:17].tolist(), "drawn, not the first"
    assert data.with_filter_size(None, seed=0) is data
    assert data.with_filter_size(17, seed=None).filter_y.tolist() == data.filter_y[:17].tolist(), "the first ones"


def test_a_filtering_set_can_lack_classes() -> None:
    data = Digits().load(0)
    first = data.with_filter_size(None, seed=0, classes=4)
    assert set(first.filter_y.tolist()) == {0, 1, 2, 3} and len(first.filter_y) == int((data.filter_y < 4).sum())
    fewer = data.with_filter_size(10, seed=0, classes=4)
    assert len(fewer.filter_y) == 10 and fewer.filter_y.max() < 4
    for classes in (0, 11):
        with pytest.raises(ConfigError, match=r"filter.classes must be"):
            filfl.simulate({"filter.classes": classes}, progress=False)
    with pytest.raises(ConfigError, match=r"filter.size must be between 1 and the \d+ samples"):
        filfl.simulate({"filter.classes": 2, "filter.size": len(data.filter_y)}, progress=False)
    config = {"rounds": 1, "filter.classes": 2}
    assert filfl.simulate(config, progress=False).summary["filtering_set"].startswith(f"{(data.filter_y < 2).sum()} ")


def test_sizes_of_the_datasets_without_download() -> None:
    digits, mnist = Digits().load(0), Mnist5k(clients=50).load(0)
    assert digits.sample_shape == (1, 8, 8) and mnist.sample_shape == (1, 28, 28)
    assert len(digits.y) + len(digits.filter_y) + len(digits.test_y) == 1797
    assert len(mnist.y) + len(mnist.filter_y) + len(mnist.test_y) == 5000
    assert digits.x.dtype == mnist.x.dtype == np.uint8
    assert digits.x.max() * digits.scale == 1.0 and mnist.x.max() * mnist.scale == pytest.approx(1.0)
    assert digits.classes == mnist.classes == 10


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x": [[1.0], [2.0]]}, "x, y and client_ids must have the same length"),
        (
            {"x": [[1.0], [np.nan], [3.0], [4.0]]},
            r"must be finite \(got other values in 1 samples, first in sample 1",
        ),
        ({"y": [0, 1, -1, 0]}, r"must have labels 0, 1, 2, ... \(got -1\)"),
        ({"y": [0.0, 1.0, np.inf, 0.0]}, "y must be finite"),
        ({"y": ["a", "b", None, "d"]}, r"y must have a label for every sample \(got 1 missing of 4\)"),
        ({"y": np.array(["a", "b", 3, "d"], dtype=object)}, "y has values of mixed types, such as 'a' and 3"),
        ({"y": list("abab"), "test": ([[1.0]], [0])}, "test y must have texts as labels, like y"),
        ({"x": [[1.0], [2.0, 3.0], [4.0], [5.0]]}, "cannot be converted to an array"),
        ({"client_ids": [[0, 0, 1, 1]] * 4}, "one client per sample"),
        ({"client_ids": 3}, "one client per sample"),
        ({"client_ids": [0, None, 1, 1]}, r"integers or names \(got 1 missing of 4\)"),
        ({"client_ids": np.array(["a", "a", 1, 1], dtype=object)}, "client_ids has values of mixed types"),
        ({"client_ids": [0.0, 0.5, 1.0, 1.0]}, "integers or names"),
        ({"x": [], "y": [], "client_ids": np.array([], dtype=int)}, "there are no samples"),
        ({"filtering": 0.5, "validation": 0.5}, "must leave training samples"),
        ({"test": "all"}, "test must be a share"),
        ({"test": ([[1.0]],)}, r"test must be a share or arrays \(x, y\) \(got 1 arrays\)"),
        ({"test": (np.zeros((0, 1)), [])}, "targets"),
        ({"test": 1.0}, "test must be a share"),
        ({"validation": -0.1}, r"validation must be a share of at least 0 and below 1 \(got -0.1\)"),
        ({"test": 0.1}, "the test set is empty"),
        ({"test": ([[1.0, 2.0]], [0])}, r"test samples are float32\[2\]"),
        ({"filtering": ([[1.0]],)}, r"filtering must be a share or arrays \(x, y\) \(got 1 arrays\)"),
        ({"filtering": ([[1.0]], [0, 1])}, "filtering x and y must have the same length"),
    ],
)
def test_bad_arrays_are_refused_with_a_reason(arguments: dict, reason: str) -> None:
    whole = {"x": [[1.0], [2.0], [3.0], [4.0]], "y": [0, 1, 0, 1], "client_ids": [0, 0, 1, 1], "test": 0.5}
    with pytest.raises(DataError, match=reason):
        FederatedData.from_arrays(**{**whole, **arguments})


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME is a convention of Linux")
def test_the_cache_folder_is_FILFL_CACHE_or_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FILFL_CACHE", raising=False)
    assert cache_folder() == tmp_path / "filfl"
    monkeypatch.setenv("FILFL_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def table(sites: int = 6, each: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples that say whose they are: x is the number of the client, then that of the sample."""
    owner = np.repeat(np.arange(sites), each)
    return np.stack([owner, np.arange(len(owner))], axis=1) + 0.0, np.arange(len(owner)) % 3, owner


@given(st.sets(st.integers(0, 5), min_size=1), st.floats(0.1, 0.9), st.integers(0, 100))
def test_only_trusted_clients_give_samples_to_the_filtering_set_and_the_test_set(
    trusted: set[int], share: float, seed: int
) -> None:
    x, y, owner = table()
    names = np.array([f"site-{k}" for k in owner])
    data = FederatedData.from_arrays(
        x, y, names, trusted=[f"site-{k}" for k in trusted], test=share, filtering=0.5, validation=0.2, seed=seed
    )
    assert {*data.filter_x[:, 0]} == {*data.test_x[:, 0]} == {*data.test_clients} == trusted == {*data.trusted}
    own = {k: data.offsets[k + 1] - data.offsets[k] for k in range(6)}
    assert all((own[k] == 40) == (k not in trusted) for k in range(6))
    samples = np.concatenate([part[:, 1] for part in (data.x, data.filter_x, data.test_x)])
    assert sorted(samples) == list(range(240))  # every sample is somewhere, once
    assert data.filter_from == data.test_from == "trusted"
    noisy = data.with_wrong_labels(0.5, seed)
    assert not noisy.noisy[list(trusted)].any() and noisy.noisy.sum() == min(3, 6 - len(trusted))
    assert (noisy.test_y == data.test_y).all() and (noisy.filter_y == data.filter_y).all()


def test_whose_samples_a_set_has_is_said(tmp_path: Path) -> None:
    x, y, owner = table()
    trusted = FederatedData.from_arrays(x, y, owner, trusted=[4, 2])
    assert trusted.origin(trusted.test_from) == "held-out samples of 2 trusted clients (2, 4)"
    assert (len(trusted.test_y), len(trusted.filter_y)) == (20, 30)
    trusted.save(tmp_path / "data")
    again = FederatedData.open(tmp_path / "data")
    assert (again.trusted, again.filter_from, again.test_from) == ((2, 4), "trusted", "trusted")
    anyone = FederatedData.from_arrays(x, y, owner)
    assert anyone.origin(anyone.filter_from) == "held-out samples of all 6 clients, whose labels may be wrong"
    own = FederatedData.from_arrays(x, y, owner, test=(x, y), filtering=(x, y))
    assert own.origin(own.filter_from) == own.origin(own.test_from) == "samples of the server"
    owned = FederatedData.from_arrays(x, y, owner, test=(x, y, owner), filtering=(x, y), trusted=[5])
    assert {*owned.test_x[:, 0]} == {5} and owned.test_from == "trusted" and owned.filter_from == "server"


@pytest.mark.parametrize(
    ("trusted", "reason"),
    [
        (["site-9"], "trusted: there is no client site-9; did you mean site-"),
        (["Basel"], "trusted: there is no client Basel; the first ones are site-0, site-1"),
        ([], "trusted must be a list of one or more clients"),
        ("site-1", "trusted must be a list of one or more clients"),
    ],
)
def test_trusted_clients_must_exist(trusted: Any, reason: str) -> None:
    x, y, owner = table()
    with pytest.raises(DataError, match=reason):
        FederatedData.from_arrays(x, y, [f"site-{k}" for k in owner], trusted=trusted)


def test_the_first_example_finds_the_bad_sites() -> None:
    """24 sites, of which four have exchanged labels; the server trusts two sites."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        owner = np.repeat(np.arange(24), 60)
        y = rng.integers(3, size=len(owner))
        x = rng.normal(size=(len(owner), 8)) + np.eye(3, 8)[y] * 2
        y = np.where(owner < 4, (y + 1) % 3, y)
        data = FederatedData.from_arrays(x, y, [f"site-{k:02}" for k in owner], trusted=["site-05", "site-11"])
        config = {"rounds": 15, "filter.name": "prune", "selection.k": 4, "model.hidden": [16], "training.epochs": 2}
        result = filfl.simulate(config, data=data, say=lambda text: None)
        hurt = set(result.clients.query("verdict == 'hurts'")["name"])
        assert {"site-00", "site-01", "site-02", "site-03"} == hurt
        assert result.summary["test_set"] == "30 held-out samples of 2 trusted clients (site-05, site-11)"
