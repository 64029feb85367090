"""The data of all clients: one contiguous array, split by offsets."""

import hashlib
import numbers
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filfl.data.encoding import Encoding, Missing, Task, encode
from filfl.data.folder import digest_of, open_arrays, save_arrays
from filfl.data.frames import is_frame
from filfl.data.huggingface import HuggingFace
from filfl.data.images import ImageFolder, read_classes
from filfl.data.labels import as_names, is_text, several
from filfl.data.samples import (
    Array,
    Owned,
    Pair,
    as_inputs,
    as_targets,
    client_indices,
    client_numbers,
    numbered,
    samples_like,
)
from filfl.data.sources import user_path
from filfl.data.split import split_samples
from filfl.data.texts import Tokenizer, tokenize
from filfl.data.torch_dataset import clients_of, is_dataset, read_samples
from filfl.display import as_html, as_text, some
from filfl.errors import DataError
from filfl.rng import SETUP, stream

Origin = Literal["server", "trusted", "clients"]
"""Whose samples a set has: the server's own, those of trusted clients, or those of all clients."""
METADATA = ("classes", "filter_from", "test_from", "trusted", "class_names", "encoding")
"""The fields that are not arrays."""
KINDS = {
    "offsets": "i",
    "train_ends": "i",
    "test_clients": "i",
    "names": "iuU",
    "noisy": "b",
    "scale": "f",
    "shift": "f",
}
"""The kinds of numpy's types that a stored array may have; others hold numbers."""


@dataclass(frozen=True)
class FederatedData:
    """The samples of the clients, the server's filtering set and the global test set.

    The samples of client k are `x[offsets[k]:offsets[k + 1]]`: training samples up to `train_ends[k]`, then validation
    samples. Images are uint8 and become `x * scale + shift` in the batch; other integers are tokens.
    """

    x: Array
    y: Array
    offsets: NDArray[np.int64]
    train_ends: NDArray[np.int64]
    filter_x: Array
    filter_y: Array
    test_x: Array
    test_y: Array
    test_clients: NDArray[np.int64]
    """The client of each test sample; -1 if it is not known."""
    classes: int
    """The number of classes; 0 if the targets are not class labels."""
    names: Array
    """The names of the clients in the source: strings or integers."""
    noisy: NDArray[np.bool_]
    """Whether each client was given wrong labels."""
    scale: NDArray[np.float32]
    shift: NDArray[np.float32]
    filter_from: Origin = "server"
    """Whose samples the filtering set has."""
    test_from: Origin = "server"
    """Whose samples the test set has."""
    trusted: tuple[int, ...] = ()
    """The clients whose samples are trusted; empty if none were named."""
    class_names: tuple[str, ...] = ()
    """The names of the classes 0, 1, ... in the source; empty if it had numbers."""
    encoding: Encoding | None = None
    """How the columns of a table became inputs and targets; None if the data is not from a table."""

    @property
    def num_clients(self) -> int:
        return len(self.train_ends)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @property
    def num_train(self) -> NDArray[np.int64]:
        """The number of training samples of each client."""
        return self.train_ends - self.offsets[:-1]

    def origin(self, source: Origin) -> str:
        """Whose samples a set has, in words."""
        if source == "server":
            return "samples of the server"
        if source == "clients":
            return f"held-out samples of all {self.num_clients} clients, whose labels may be wrong"
        listed = some(self.names[list(self.trusted)])
        clients = "1 trusted client" if len(self.trusted) == 1 else f"{len(self.trusted)} trusted clients"
        return f"held-out samples of {clients} ({listed})"

    def facts(self) -> dict[str, str]:
        """A description in a few numbers, which takes no time for any number of samples."""
        sizes, train = np.diff(self.offsets), self.num_train
        noisy = f" ({int(self.noisy.sum())} with random labels)" if self.noisy.any() else ""
        return {
            "clients": f"{self.num_clients:,}{noisy}",
            **({"names": some(self.names).encode("utf-8", "replace").decode()} if self.names.dtype.kind == "U" else {}),
            "samples per client": f"{sizes.min():,} / {np.median(sizes):,.0f} / {sizes.max():,} (min / median / max)",
            "training samples": f"{train.min():,} / {np.median(train):,.0f} / {train.max():,}",
            "shape of a sample": f"{self.x.dtype} {list(self.sample_shape)}",
            **({"features": ", ".join(self.encoding.feature_names)} if self.encoding else {}),
            "classes": str(self.classes) if self.classes else "none (numeric targets)",
            **({"class names": ", ".join(self.class_names)} if self.class_names else {}),
            "filtering set": f"{len(self.filter_y):,} {self.origin(self.filter_from)}",
            "test set": f"{len(self.test_y):,} {self.origin(self.test_from)}",
        }

    def __repr__(self) -> str:
        return as_text(*self._description())

    def _repr_html_(self) -> str:
        return as_html(*self._description())

    def _description(self) -> tuple[str, dict[str, str]]:
        return f"FederatedData: {len(self.x):,} samples of {self.num_clients:,} clients", self.facts()

    def fingerprint(self) -> str:
        """A hash of everything but the names. Datasets with equal fingerprints give equal runs."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in self._arrays().items():
            if name != "names":
                digest.update(f"{name} {array.dtype} {array.shape} {digest_of(array)}".encode())
        return digest.hexdigest()

    def save(self, directory: str | Path) -> None:
        """Write this data to a new folder, from which `open` maps it."""
        metadata = {name: getattr(self, name) for name in METADATA}
        metadata["encoding"] = asdict(self.encoding) if self.encoding else None
        save_arrays(user_path(directory), self._arrays(), metadata)

    @classmethod
    def open(cls, directory: str | Path) -> "FederatedData":
        """Map data that `save` wrote into memory: of a million clients, only those that take part are read.

        A file is refused if its size differs from the saved one, or if its modification time and its hash do. If the
        modification time is the saved one, the saved hash is used, so that nothing is read for the fingerprint.
        """
        directory = user_path(directory)
        arrays, metadata = open_arrays(directory, [f.name for f in fields(cls) if f.name not in METADATA])
        if type(classes := metadata.get("classes")) is not int or classes < 0:
            raise DataError(f"{directory} has no valid number of classes (got {classes!r:.40}); save the data again")
        arrays["x"].advise_random_access()
        arrays["y"].advise_random_access()
        try:
            encoding = metadata["encoding"]
            data = cls(
                **arrays,
                classes=classes,
                filter_from=metadata["filter_from"],
                test_from=metadata["test_from"],
                trusted=tuple(metadata["trusted"]),
                class_names=tuple(metadata["class_names"]),
                encoding=Encoding.read(encoding) if encoding else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"the metadata of {directory} is damaged ({error}); save the data again") from None
        if problem := data._inconsistency():
            raise DataError(f"{directory} has inconsistent arrays: {problem}; save the data again")
        return data

    def _arrays(self) -> dict[str, Array]:
        return {f.name: np.asanyarray(getattr(self, f.name)) for f in fields(self) if f.name not in METADATA}

    def _inconsistency(self) -> str | None:
        """The first inconsistency of the types, the lengths or the metadata, or None."""
        for name, array in self._arrays().items():
            if array.dtype.kind not in KINDS.get(name, "bifu") or not array.dtype.isnative:
                return f"{name} has the type {array.dtype.str}"
        for part in ("filter", "test"):
            for own, other in (("x", f"{part}_x"), ("y", f"{part}_y")):
                ours, theirs = getattr(self, own), getattr(self, other)
                if ours.dtype != theirs.dtype or ours.shape[1:] != theirs.shape[1:]:
                    return f"{other} is not like {own}"
        lengths = {name: array.shape[0] if array.ndim else "no" for name, array in self._arrays().items()}
        clients = ("train_ends", "names", "noisy")
        for group in (clients, ("x", "y"), ("filter_x", "filter_y"), ("test_x", "test_y", "test_clients")):
            if len({lengths[name] for name in group}) > 1:
                return ", ".join(f"{name} has {lengths[name]}" for name in group) + " entries"
        if lengths["offsets"] != self.num_clients + 1:
            return f"offsets must have {self.num_clients + 1} entries (got {lengths['offsets']})"
        covers_all = self.offsets[0] == 0 and self.offsets[-1] == len(self.x)
        if not covers_all or (self.offsets[:-1] > self.train_ends).any() or (self.train_ends > self.offsets[1:]).any():
            return f"offsets and train_ends do not split the {len(self.x)} samples into clients"
        origins = get_args(Origin)
        if self.filter_from not in origins or self.test_from not in origins:
            return f"filter_from and test_from must be one of {', '.join(origins)}"
        if not all(type(k) is int and 0 <= k < self.num_clients for k in self.trusted):
            return "trusted must be numbers of clients"
        if not all(isinstance(name, str) for name in self.class_names):
            return "class_names must be texts"
        return None

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        client_ids: ArrayLike,
        *,
        trusted: Sequence[Any] | None = None,
        test: float | Pair | Owned | None = None,
        filtering: float | Pair | None = None,
        validation: float = 0.1,
        seed: int = 0,
        scale: ArrayLike = 1 / 255,
        shift: ArrayLike = 0.0,
    ) -> "FederatedData":
        """Federated data from your own arrays: sample `x[i]` with target `y[i]` belongs to client `client_ids[i]`.

        client_ids: integers or names.
        filtering: the server's filtering set, arrays `(x, y)` that you trust.
        trusted: or some of the clients, whose labels you trust: the filtering set and the test set are held out from
            the samples of these clients only. Without both, they are held out from every client, bad ones included,
            and the judgement of the clients can be wrong.
        test: arrays `(x, y)`, or `(x, y, client_ids)` with the client of each test sample.
        test, filtering, validation: or shares. `test` is a share of a client's samples, `filtering` and `validation`
            are shares of the remaining ones. Counts are rounded down; what is left are training samples. By default,
            test is 0.2 and filtering 0.1 of every client's samples; of those of trusted clients, 0.25 and 0.5.
        y: integer targets are classes 0, 1, ...; texts are classes in alphabetical order, whose names are kept as
            `class_names`; floating-point targets are numbers.
        scale, shift: uint8 inputs, which are images, become `x * scale + shift` in the batch. Images of 1, 3 or 4
            channels may have them first or last.
        """
        class_names: tuple[str, ...] = ()
        if is_text(y):
            y, test, filtering, class_names = numbered(y, test, filtering)
        x, y, owners = as_inputs("x", x), as_targets("y", y), as_names("client_ids", client_ids)
        if not len(x) == len(y) == len(owners):
            raise DataError(f"x, y and client_ids must have the same length (got {len(x)}, {len(y)}, {len(owners)})")
        if len(x) == 0:
            raise DataError("there are no samples")
        names, owners = np.unique(owners, return_inverse=True)
        holders = np.full(len(names), trusted is None)
        if trusted is not None:
            holders[client_numbers("trusted", trusted, names)] = True
        test = test if test is not None else 0.2 if trusted is None else 0.25
        filtering = filtering if filtering is not None else 0.1 if trusted is None else 0.5
        shares = {
            "test": 0.0 if isinstance(test, tuple | list) else test,
            "filtering": 0.0 if isinstance(filtering, tuple | list) else filtering,
            "validation": validation,
        }
        for key, share in shares.items():
            if not isinstance(share, numbers.Real) or not 0 <= share < 1:
                or_arrays = "" if key == "validation" else ", or arrays (x, y)"
                raise DataError(f"{key} must be a share of at least 0 and below 1{or_arrays} (got {share})")
        if shares["filtering"] + shares["validation"] >= 1:
            raise DataError(f"filtering and validation must leave training samples (got {filtering} and {validation})")

        split = split_samples(owners, holders, **shares, seed=seed)
        test_x, test_y, test_clients = x[split.test], y[split.test], split.test_clients
        filter_x, filter_y = x[split.filtering], y[split.filtering]
        if isinstance(test, tuple | list):
            test_x, test_y = samples_like("test", test[:2] if len(test) == 3 else test, x, y)
            test_clients = client_indices(names, test[2], len(test_y)) if len(test) == 3 else np.full(len(test_y), -1)
            if trusted is not None and len(test) == 3:
                judged = np.isin(test_clients, np.flatnonzero(holders))
                test_x, test_y, test_clients = test_x[judged], test_y[judged], test_clients[judged]
        if isinstance(filtering, tuple | list):
            filter_x, filter_y = samples_like("filtering", filtering, x, y)
        if len(test_x) == 0:
            few = " (the trusted clients have too few samples)" if trusted is not None else ""
            raise DataError(f"the test set is empty{few}; raise the share `test`, or set test to arrays (x, y)")
        all_targets = np.concatenate([y, test_y, filter_y])
        held_out: Origin = "clients" if trusted is None else "trusted"
        return cls(
            x=np.ascontiguousarray(x[split.clients]),
            y=np.ascontiguousarray(y[split.clients]),
            offsets=split.offsets,
            train_ends=split.train_ends,
            filter_x=filter_x,
            filter_y=filter_y,
            test_x=test_x,
            test_y=test_y,
            test_clients=test_clients,
            classes=len(class_names) or (int(all_targets.max()) + 1 if all_targets.dtype.kind == "i" else 0),
            class_names=class_names,
            names=names if names.dtype.kind in "iuU" else np.array([str(name) for name in names]),
            noisy=np.zeros(len(names), dtype=bool),
            scale=np.asarray(scale, dtype=np.float32),
            shift=np.asarray(shift, dtype=np.float32),
            filter_from=held_out if shares["filtering"] > 0 else "server",
            test_from=held_out if (test_clients >= 0).any() else "server",
            trusted=() if trusted is None else tuple(np.flatnonzero(holders).tolist()),
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        target: str,
        features: Sequence[str] | None = None,
        task: Task | None = None,
        missing: Missing = "error",
        standardise: bool = True,
        **options: Any,
    ) -> "FederatedData":
        """Federated data from a table: a pandas or polars frame, or the path of a .csv or .parquet file.

        client, target: the columns with the client and the target of each row.
        features: the columns to use as inputs; by default all others. Numbers become one input; texts and truth
            values become one input per category, which is 0 or 1.
        task: "classification" or "regression"; by default regression if the target is a floating-point number.
        missing: "error" refuses missing values, "drop" leaves out their rows, "fill" replaces a number by the median
            of its column and leaves all inputs of a category 0.
        standardise: subtract the mean of every column of numbers, and of a numeric target, and divide by its standard
            deviation. Both are those of the clients' samples outside the test and filtering sets.
        options: those of `from_arrays`. `test` and `filtering` can also be tables like this one.

        `encoding` keeps how columns became inputs: `data.encoding.inputs(frame)` encodes new rows.
        """
        encoding, *samples = encode(frame, client, target, features, task, missing)
        for key in ("test", "filtering"):
            if is_frame(options.get(key)):
                options[key] = encoding.samples(options[key], with_client=key == "test")
        data = cls.from_arrays(*samples, **options)
        return data.with_encoding(encoding, standardise)

    def with_encoding(self, encoding: Encoding, standardise: bool) -> "FederatedData":
        """This data, whose samples `encoding` encoded, with the encoding, and standardised if wanted."""
        if standardise:
            encoding = encoding.standardised(self.x, self.y)
        x, y = encoding.rescale(self.x, self.y)
        filter_x, filter_y = encoding.rescale(self.filter_x, self.filter_y)
        test_x, test_y = encoding.rescale(self.test_x, self.test_y)
        scaled = replace(self, x=x, y=y, filter_x=filter_x, filter_y=filter_y, test_x=test_x, test_y=test_y)
        names = encoding.classes
        return replace(scaled, encoding=encoding, class_names=names, classes=len(names))

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        y: ArrayLike,
        client_ids: ArrayLike,
        *,
        tokenizer: Tokenizer,
        length: int,
        **options: Any,
    ) -> "FederatedData":
        """Federated data from texts of any length. `y` and `client_ids` are those of `from_arrays`.

        tokenizer: (text) -> a list of whole numbers of at least 0.
        length: the tokens per sample: a longer text is cut at its end, a shorter one is filled with 0 at its start.
        options: those of `from_arrays`. `test` and `filtering` can also be texts: `(texts, y)`.
        """
        for key in ("test", "filtering"):
            if isinstance(given := options.get(key), tuple | list) and given and is_text(given[0]):
                options[key] = (tokenize(given[0], tokenizer, length), *given[1:])
        return cls.from_arrays(tokenize(texts, tokenizer, length), y, several("client_ids", client_ids), **options)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        client_of: Sequence[Any] | Callable[[Any], Any],
        *,
        channels_last: bool = False,
        **options: Any,
    ) -> "FederatedData":
        """Federated data from a map-style dataset of PyTorch, whose samples are `(x, y)` or begin with these two.

        client_of: the client of each sample, as a list; or a function of a sample, such as `lambda sample: sample[2]`.
        channels_last: images are [height, width, channels]. Images of PIL and bytes with 1, 3 or 4 channels are
            recognised without it.
        options: those of `from_arrays`. `test` and `filtering` can also be datasets.
        """
        for key in ("test", "filtering"):
            if is_dataset(options.get(key)):
                options[key] = read_samples(options[key], channels_last, key)[:2]
        x, y, samples = read_samples(dataset, channels_last, "dataset")
        return cls.from_arrays(x, y, several("client_of", clients_of(samples, client_of)), **options)

    @classmethod
    def from_image_folder(
        cls,
        path: str | Path,
        *,
        client_table: str | Path | None = None,
        size: int | tuple[int, int] | None = None,
        **options: Any,
    ) -> "FederatedData":
        """Federated data from a folder of images: `path/client/class/file.png`.

        client_table: a .csv or .parquet file with the columns `file` and `client`, for images in `path/class/file.png`.
            `file` is the path inside the folder, such as cat/001.png.
        size: the height and width to which images are resized, one number for both; by default they must be equal.
        options: those of `from_arrays`. `test` and `filtering` can also be folders `path/class/file.png`, whose images
            are resized to those of the clients.
        """
        x, y, owners = ImageFolder(user_path(path), client_table, size).read()
        for key in ("test", "filtering"):
            if isinstance(given := options.get(key), str | Path):
                options[key] = read_classes(user_path(given), x.shape[1:])
        return cls.from_arrays(x, y, owners, **options)

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        client: str,
        target: str | None = None,
        input: str | None = None,
        split: str = "train",
        test_split: str = "test",
        tokenizer: Tokenizer | None = None,
        length: int | None = None,
        channels_last: bool = False,
        **options: Any,
    ) -> "FederatedData":
        """Federated data from a Hugging Face dataset: a `Dataset`, a `DatasetDict`, or a folder of `save_to_disk`.

        client: the column with the client of each sample.
        target, input: the columns of targets and inputs (images, lists of numbers, texts); by default those with a
            usual name, such as label and image.
        split, test_split: of a dataset with splits, that of the clients, and that of the test set, if it exists.
        tokenizer, length: for texts, see `from_texts`. channels_last: for images, see `from_dataset`.
        options: those of `from_arrays`. `test` and `filtering` can also be datasets of Hugging Face.
        """
        source = HuggingFace(client, target, input, split, test_split, tokenizer, length, channels_last)
        x, y, owners, test, class_names = source.read(dataset)
        for key in ("test", "filtering"):
            if hasattr(options.get(key), "column_names"):
                options[key] = source.samples(options[key])
        if test is not None:
            options = {"test": test, **options}
        data = cls.from_arrays(x, y, several(f"column {client}", owners), **options)
        return replace(data, classes=len(class_names), class_names=class_names) if class_names else data

    def with_wrong_labels(self, share: float, seed: int, kind: str = "random") -> "FederatedData":
        """A copy in which a share of the clients have random or permuted labels, in training and in validation.

        The labels of the test set and of the filtering set stay as they are, and so do those of trusted clients.
        """
        count = round(share * self.num_clients)
        if count == 0:
            return self
        if self.classes == 0:
            raise DataError("data.noisy needs class labels, but the targets of this dataset are numbers; set it to 0")
        drawn = stream(seed, SETUP, "noisy").permutation(self.num_clients)
        chosen = drawn[~np.isin(drawn, self.trusted)][:count]
        y, noisy = np.array(self.y), np.array(self.noisy)
        permutation = _derangement(self.classes, stream(seed, SETUP, "permuted-labels"))
        for k in chosen:
            mine = slice(self.offsets[k], self.offsets[k + 1])
            if kind == "permuted":
                y[mine] = permutation[y[mine]]
            else:
                y[mine] = stream(seed, SETUP, "random-labels", int(k)).integers(self.classes, size=y[mine].shape)
            noisy[k] = True
        return replace(self, y=y, noisy=noisy)

    def with_filter_size(self, size: int | None, seed: int | None, classes: int | None = None) -> "FederatedData":
        """A copy with m = `size` of the server's filtering samples of the first `classes` classes, drawn with the seed,
        or the first ones if the seed is None. A size of None keeps all of them."""
        if size is None and classes is None:
            return self
        m = len(self.filter_y)
        drawn = np.arange(m) if seed is None else stream(seed, SETUP, "filtering-set").permutation(m)
        drawn = drawn if classes is None else drawn[np.isin(self.filter_y[drawn], np.arange(classes))]
        chosen = np.sort(drawn[:size])
        return replace(self, filter_x=self.filter_x[chosen], filter_y=self.filter_y[chosen])


def _derangement(classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random cyclic permutation of the classes: with two or more classes, none keeps its number."""
    order = rng.permutation(classes)
    permutation = np.empty(classes, dtype=np.int64)
    permutation[order] = np.roll(order, 1)
    return permutation
