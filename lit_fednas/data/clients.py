"""Which rows belong to which client: partitions and hold-outs; and the batches of one client, for one epoch."""

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
#: Clients whose splits are kept; those of a round are read once per epoch.
_CLIENTS_KEPT = 64


class ClientRows(Sequence[np.ndarray]):
    """The rows of each client, int64, as a sequence that need not hold an array per client.

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
        chosen = range(len(self))[client]
        return self._rows_of(chosen) if isinstance(chosen, int) else [self[number] for number in chosen]


class Partition(ClientRows):
    """Disjoint sets of rows, one per client; a sequence of the clients' rows.

    Attributes:
        rows: The rows of the first client, then those of the second, and so on, int64.
        offsets: Where in ``rows`` each client's begin, and where the last one's end, int64 [clients + 1].
    """

    def __init__(self, rows: np.ndarray, offsets: np.ndarray) -> None:
        super().__init__(np.diff(offsets), self._between)
        self.rows = rows
        self.offsets = offsets

    def _between(self, client: int) -> np.ndarray:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    @classmethod
    def by_owner(cls, owners: np.ndarray, num_clients: int) -> Partition:
        """Returns the partition, rows ascending, by the client of each row, or ``-1`` for none, int64 [N]."""
        sizes = np.bincount(owners + 1, minlength=num_clients + 1)  # first those of nobody
        rows = np.argsort(owners, kind="stable")[sizes[0] :]
        return cls(rows, np.cumsum(sizes) - sizes[0])

    def names(self, owners: np.ndarray) -> list[str]:
        """Returns the names of each client's owners, separated by commas, by the owner of each row, text [N]."""
        return [", ".join(np.unique(owners[rows])) for rows in self]

    def of_others(self, owners: np.ndarray, others: np.ndarray) -> Partition:
        """Returns the rows of other examples that belong to the owners of each client; arguments as of ``names``."""
        numbers = np.repeat(np.arange(len(self)), self.sizes)
        clients = dict(zip(owners[self.rows].tolist(), numbers.tolist(), strict=True))
        return Partition.by_owner(np.array([clients.get(owner, NOBODY) for owner in others.tolist()]), len(self))

    def class_counts(self, targets: np.ndarray, num_classes: int) -> np.ndarray:
        """Returns the dense array of :meth:`sparse_class_counts`."""
        return self.sparse_class_counts(targets, num_classes).toarray()

    def sparse_class_counts(self, targets: np.ndarray, num_classes: int) -> csr_array:
        """Returns the number of examples per client and class, int64 [clients, num_classes], by targets [N]."""
        classes = targets[self.rows]
        if classes.size and not 0 <= classes.min() <= classes.max() < num_classes:  # scipy would write beyond its array
            raise DataError(f"num_classes: {num_classes} for classes {classes.min()}..{classes.max()}; give more")
        ones = np.ones(len(classes), dtype=np.int64)
        counts = csr_array((ones, classes, self.offsets.copy()), shape=(len(self), num_classes))
        counts.sum_duplicates()
        return counts


def stratified_rows(targets: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns ``count`` rows, ascending, drawn so that class shares are kept to within one example."""
    classes, sizes = np.unique(targets, return_counts=True)
    share = sizes * count / max(1, len(targets))
    quota = np.floor(share).astype(int)
    largest_remainders = np.argsort(quota - share, kind="stable")
    quota[largest_remainders[: count - quota.sum()]] += 1
    drawn = [
        rng.permutation(np.flatnonzero(targets == label))[:number] for label, number in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class _HoldOuts:
    """Every client's rows by split: drawn at the first use of a client; those of the clients drawn last are kept."""

    rows: ClientRows
    sizes: Mapping[str, np.ndarray]  # by split, in the order of drawing
    seed: int
    first: int
    kept: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    def rows_of(self, split: str, client: int) -> np.ndarray:
        if client not in self.kept:
            if len(self.kept) == _CLIENTS_KEPT:
                del self.kept[next(iter(self.kept))]
            order = numpy_generator(self.seed, "client-split", self.first + client).permutation(self.rows[client])
            parts = np.split(order, np.cumsum([sizes[client] for sizes in self.sizes.values()])[:-1])
            self.kept[client] = dict(zip(self.sizes, map(np.sort, parts), strict=True))
        return self.kept[client][split]


def hold_outs(rows: ClientRows, val: float, test: float, seed: int, first: int = 0) -> dict[str, ClientRows]:
    """Splits every client's rows at random into ``train``, ``val`` and ``test`` by shares, to the nearest number."""
    num_val, num_test = (np.rint(share * rows.sizes).astype(np.int64) for share in (val, test))
    # the size of train is below 1 where nothing remains
    sizes = {"val": num_val, "test": num_test, "train": rows.sizes - num_val - num_test}
    drawn = _HoldOuts(rows, sizes, seed, first)
    return {split: ClientRows(size, partial(drawn.rows_of, split)) for split, size in sizes.items()}


def deal_by_class(targets: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Partition:
    """Returns the rows of each class, dealt out in proportion to ``counts``, int [clients, classes], to within one."""
    owners = np.full(len(targets), NOBODY)
    for label in np.flatnonzero(counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(targets == label))
        order = rng.permutation(len(counts))  # whose proportions are rounded up is drawn anew for every class
        ends = counts[order, label].cumsum() / counts[:, label].sum() * len(rows)
        owners[rows] = np.repeat(order, np.diff(ends.round().astype(np.int64), prepend=0))
    return Partition.by_owner(owners, len(counts))


class ClientData:
    """The data of all clients, as row numbers; each has splits ``train``, ``val`` and ``test``.

    An epoch's order is drawn on the CPU, so it is the same on every device; augmentation draws on the device of
    the data, from a generator seeded by the epoch's own. All methods raise DataError for a client or a split that
    does not exist.

    Args:
        reader: Reads rows of the data set.
        indices: The rows of each client, by split.
        test_reader: Reads the rows of the split ``test``, where they are of another data set.
        task: What targets are; classes if not given.

    Example:
        >>> from lit_fednas.data import Examples, TensorReader
        >>> from lit_fednas.rng import generator
        >>> reader = TensorReader(Examples(torch.arange(6.0).view(6, 1), torch.arange(6)))
        >>> clients = ClientData(reader, {"train": [np.array([0, 1, 2, 3]), np.array([4, 5])]})
        >>> [len(y) for x, y in clients.batches(0, 3, generator(0, "batches", 0, 0))]
        [3, 1]

    Attributes:
        sizes: The number of training examples of each client, int64 [clients], read-only.
        speeds: Multiply-accumulates per second that each client's device has measured, if they are on devices.
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
        """The examples that the server may read: in a simulation those of all clients."""
        return self

    def split_sizes(self, split: str) -> np.ndarray:
        """Returns the number of examples of each client's split, int64 [clients]; zeros where there is none."""
        return self._sizes.get(split, np.broadcast_to(0, self.num_clients))

    def size(self, client: int, split: str = "train") -> int:
        """Returns the number of examples of a client's split; 0 where it has no such split."""
        if not 0 <= client < self.num_clients:
            raise DataError(f"client: {client} is not one of the {self.num_clients} clients; count from 0")
        return int(self.split_sizes(split)[client])

    def rows(self, client: int, split: str = "train") -> Tensor:
        """Returns the rows of a client's split in the data set, in their fixed order."""
        if not self.size(client, split):
            return torch.empty(0, dtype=torch.int64)
        return torch.as_tensor(np.asarray(self._rows[split][client], dtype=np.int64))

    def only(self, client: int) -> ClientData:
        """Returns the data of one client alone, which is then number 0."""
        rows = {split: [self.rows(client, split).numpy()] for split in self._rows}
        return ClientData(self.reader, rows, self._test_reader, self.task)

    def classes(self, client: int) -> tuple[int, ...]:
        """Returns the classes of which a client has training examples, in ascending order."""
        return tuple(self._targets(client, "train").unique().tolist())

    def label_counts(self, client: int, num_classes: int, splits: Sequence[str] = ("train", "val")) -> np.ndarray:
        """Returns a client's number of examples of each class, all of class 0 if they have none, int64 [num_classes].

        Args:
            client: The client's number.
            num_classes: The length of the result.
            splits: Which of the client's splits are counted together.
        """
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
        """Returns one pass over a client's split: normalised inputs, and targets, on the device of the data.

        Args:
            client: The client's number.
            batch_size: Examples per batch; the last batch may be smaller.
            generator: On the CPU; gives the order, then the seed of the augmentation, before this returns.
            split: ``train``, ``val`` or ``test``.
            shuffle: False keeps the order of the data set.
            augment: False leaves the augmentation out.
            drop_last: Leaves a smaller last batch out, unless it is the client's only one.
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
        """Moves the data, where in memory; all later batches are on ``device``."""
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
