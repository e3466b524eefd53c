"""Partitions and hold-outs, which assign rows to clients, and the batches of a client for one epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from typing_extensions import override

from lit_fednas.data.examples import Batch, Reader
from lit_fednas.data.tasks import Classification, Task
from lit_fednas.errors import DataError
from lit_fednas.rng import numpy_generator

#: The owner of an example that is left out.
NOBODY = -1
#: Number of clients with cached splits; a round reads the splits of its clients once per epoch.
_CACHED_CLIENTS = 64


class ClientRows(Sequence[np.ndarray]):
    """A sequence of each client's rows, int64, which may compute an array on access.

    Attributes:
        sizes: The number of rows of each client, int64 [clients], read-only.
    """

    def __init__(self, sizes: np.ndarray, rows_of: Callable[[int], np.ndarray]) -> None:
        sizes.flags.writeable = False
        self.sizes = sizes
        self._rows_of = rows_of

    @override
    def __len__(self) -> int:
        return len(self.sizes)

    @override
    def __getitem__(self, client: Any) -> Any:
        selection = range(len(self))[client]
        return self._rows_of(selection) if isinstance(selection, int) else [self[number] for number in selection]


class Partition(ClientRows):
    """Disjoint sets of rows, one per client.

    Attributes:
        rows: The rows of the first client, then those of the second, and so on, int64.
        offsets: The position in ``rows`` of each client's first row, and the length of ``rows``, int64 [clients + 1].
    """

    def __init__(self, rows: np.ndarray, offsets: np.ndarray) -> None:
        super().__init__(np.diff(offsets), self._between)
        self.rows = rows
        self.offsets = offsets

    def _between(self, client: int) -> np.ndarray:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    @classmethod
    def by_owner(cls, owners: np.ndarray, num_clients: int) -> Partition:
        """Returns the partition, rows ascending, given the client of each row (``-1`` for nobody), int64 [N]."""
        sizes = np.bincount(owners + 1, minlength=num_clients + 1)  # index 0 counts the rows of nobody
        rows = np.argsort(owners, kind="stable")[sizes[0] :]
        return cls(rows, np.cumsum(sizes) - sizes[0])

    def names(self, owners: np.ndarray) -> list[str]:
        """Returns the names of each client's owners, separated by commas, given the owner of each row, text [N]."""
        return [", ".join(np.unique(owners[rows])) for rows in self]

    def of_others(self, owners: np.ndarray, other_owners: np.ndarray) -> Partition:
        """Deals out other examples to their owners' clients, given the owners of these and of the others, text [N]."""
        numbers = np.repeat(np.arange(len(self)), self.sizes)
        clients = dict(zip(owners[self.rows].tolist(), numbers.tolist(), strict=True))
        return Partition.by_owner(np.array([clients.get(owner, NOBODY) for owner in other_owners.tolist()]), len(self))

    def class_counts(self, targets: np.ndarray, num_classes: int) -> np.ndarray:
        """Returns the dense array of :meth:`sparse_class_counts`."""
        return self.sparse_class_counts(targets, num_classes).toarray()

    def sparse_class_counts(self, targets: np.ndarray, num_classes: int) -> csr_array:
        """Returns the number of examples per client and class, int64 [clients, num_classes], given targets [N]."""
        classes = targets[self.rows]
        if classes.size and not 0 <= classes.min() <= classes.max() < num_classes:  # scipy would write beyond its array
            raise DataError(f"num_classes: {num_classes} for classes {classes.min()}..{classes.max()}; give more")
        ones = np.ones(len(classes), dtype=np.int64)
        counts = csr_array((ones, classes, self.offsets.copy()), shape=(len(self), num_classes))
        counts.sum_duplicates()
        return counts


def stratified_rows(targets: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``count`` rows, ascending, and keeps the shares of the classes to within one example."""
    classes, sizes = np.unique(targets, return_counts=True)
    share = sizes * count / max(1, len(targets))
    quota = np.floor(share).astype(int)
    largest_remainders = np.argsort(quota - share, kind="stable")
    quota[largest_remainders[: count - quota.sum()]] += 1
    parts = [
        rng.permutation(np.flatnonzero(targets == label))[:number] for label, number in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class _HoldOuts:
    """Every client's rows by split, drawn at the first use of a client; a cache holds those drawn last."""

    rows: ClientRows
    sizes: Mapping[str, np.ndarray]  # in this order, splits take their rows from a permutation
    seed: int
    first: int
    cache: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    def rows_of(self, split: str, client: int) -> np.ndarray:
        if client not in self.cache:
            if len(self.cache) == _CACHED_CLIENTS:
                del self.cache[next(iter(self.cache))]
            order = numpy_generator(self.seed, "client-split", self.first + client).permutation(self.rows[client])
            parts = np.split(order, np.cumsum([sizes[client] for sizes in self.sizes.values()])[:-1])
            self.cache[client] = dict(zip(self.sizes, map(np.sort, parts), strict=True))
        return self.cache[client][split]


def hold_outs(rows: ClientRows, val: float, test: float, seed: int, first: int = 0) -> dict[str, ClientRows]:
    """Splits every client's rows at random into ``train``, ``val`` and ``test``; shares are rounded to whole rows."""
    num_val, num_test = (np.rint(share * rows.sizes).astype(np.int64) for share in (val, test))
    # the size of train is below 1 where nothing remains
    sizes = {"val": num_val, "test": num_test, "train": rows.sizes - num_val - num_test}
    splits = _HoldOuts(rows, sizes, seed, first)
    return {split: ClientRows(size, partial(splits.rows_of, split)) for split, size in sizes.items()}


def deal_by_class(targets: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Partition:
    """Deals out the rows of each class in proportion to ``counts``, int [clients, classes], to within one row."""
    owners = np.full(len(targets), NOBODY)
    for label in np.flatnonzero(counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(targets == label))
        order = rng.permutation(len(counts))  # other clients' shares are rounded up in every class
        ends = counts[order, label].cumsum() / counts[:, label].sum() * len(rows)
        owners[rows] = np.repeat(order, np.diff(ends.round().astype(np.int64), prepend=0))
    return Partition.by_owner(owners, len(counts))


class ClientData:
    """The data of all clients, as row numbers; each client has splits ``train``, ``val`` and ``test``.

    An epoch's order is drawn on the CPU, so it is the same on every device. Augmentation draws on the device of the
    data, with a seed from the epoch's generator. All methods raise DataError for an unknown client or split.

    Args:
        reader: Reads rows of the data set.
        indices: The rows of each client, by split.
        test_reader: Reads the rows of the split ``test``, if they are in another data set.
        task: The task of the targets; the default is classification.

    Example:
        >>> from lit_fednas.data import Examples, TensorReader
        >>> from lit_fednas.rng import generator
        >>> reader = TensorReader(Examples(torch.arange(6.0).view(6, 1), torch.arange(6)))
        >>> clients = ClientData(reader, {"train": [np.array([0, 1, 2, 3]), np.array([4, 5])]})
        >>> [len(y) for x, y in clients.batches(0, 3, generator(0, "batches", 0, 0))]
        [3, 1]

    Attributes:
        sizes: The number of training examples of each client, int64 [clients], read-only.
        speeds: Multiply-accumulates per second, as measured by each client's device; ``None`` in a simulation.
    """

    sizes: np.ndarray
    speeds: Sequence[float] | None = None

    def __init__(
        self,
        reader: Reader,
        indices: Mapping[str, Sequence[np.ndarray]],
        test_reader: Reader | None = None,
        task: Task | None = None,
    ) -> None:
        self.reader = reader
        self._test_reader = reader if test_reader is None else test_reader
        self.task = Classification(int(reader.targets.max()) + 1) if task is None else task
        self._rows = dict(indices)
        self._sizes = {split: _sizes(rows) for split, rows in indices.items()}
        self.sizes = self._sizes["train"]

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    @property
    def at_server(self) -> ClientData:
        """The examples that the server may read; in a simulation, those of all clients."""
        return self

    def split_sizes(self, split: str) -> np.ndarray:
        """Returns the number of examples of each client's split, int64 [clients]; zeros if no client has the split."""
        return self._sizes.get(split, np.broadcast_to(0, self.num_clients))

    def size(self, client: int, split: str = "train") -> int:
        """Returns the number of examples of a client's split; 0 if the client has no such split."""
        if not 0 <= client < self.num_clients:
            raise DataError(f"client: {client} is not one of the {self.num_clients} clients; count from 0")
        return int(self.split_sizes(split)[client])

    def rows(self, client: int, split: str = "train") -> Tensor:
        """Returns the rows of a client's split in the data set, in their fixed order."""
        if not self.size(client, split):
            return torch.empty(0, dtype=torch.int64)
        return torch.as_tensor(np.asarray(self._rows[split][client], dtype=np.int64))

    def only(self, client: int) -> ClientData:
        """Returns the data of a single client, which becomes client 0."""
        rows = {split: [self.rows(client, split).numpy()] for split in self._rows}
        return ClientData(self.reader, rows, self._test_reader, self.task)

    def classes(self, client: int) -> tuple[int, ...]:
        """Returns the classes of a client's training examples, in ascending order."""
        return tuple(self._targets(client, "train").unique().tolist())

    def label_counts(self, client: int, num_classes: int, splits: Sequence[str] = ("train", "val")) -> np.ndarray:
        """Counts the examples per class in a client's splits, int64 [num_classes]; without classes, as class 0."""
        labels = torch.cat([self._targets(client, split) for split in splits]).cpu().numpy()
        return np.bincount(labels, minlength=num_classes)

    def batches(
        self,
        client: int,
        batch_size: int,
        generator: torch.Generator,
        *,
        split: str = "train",
        shuffle: bool = True,
        augment: bool = True,
        drop_last: bool = False,
    ) -> Iterator[Batch]:
        """Returns one pass over a client's split: batches of normalised inputs and of targets, on the data's device.

        Args:
            client: The client's number.
            batch_size: Examples per batch; the last batch may be smaller.
            generator: A CPU generator; the order and then the augmentation's seed are drawn before this returns.
            split: ``train``, ``val`` or ``test``.
            shuffle: False keeps the order of the data set.
            augment: Whether the reader's augmentation is applied.
            drop_last: Whether a smaller last batch is skipped, unless it is the client's only one.
        """
        rows = self.rows(client, split)
        if shuffle:
            rows = rows[torch.randperm(len(rows), generator=generator)]
        reader, draws = self._reader(split), None
        if augment and reader.augmentation:
            seed = int(torch.randint(2**62, (), generator=generator))
            draws = torch.Generator(device=reader.device).manual_seed(seed)
        if drop_last and len(rows) > batch_size:
            rows = rows[: len(rows) // batch_size * batch_size]
        return reader.read(rows, batch_size, draws)

    def move_to(self, device: torch.device | str) -> None:
        """Moves data in memory to ``device``; all later batches are on it."""
        for reader in {self.reader, self._test_reader}:
            reader.move_to(device)

    def _reader(self, split: str) -> Reader:
        return self._test_reader if split == "test" else self.reader

    def _targets(self, client: int, split: str) -> Tensor:
        targets = self._reader(split).targets
        return self.task.strata(targets[self.rows(client, split).to(targets.device)])


def _sizes(rows: Sequence[np.ndarray]) -> np.ndarray:
    if isinstance(rows, ClientRows):
        return rows.sizes
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    sizes.flags.writeable = False
    return sizes
