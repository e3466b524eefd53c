"""The clients' data, as the engine asks for them: the batches of one client, for one epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lit_fednas.data.partitions import ClientRows
from lit_fednas.data.readers import Batch, Reader
from lit_fednas.data.tasks import Classification, Task
from lit_fednas.errors import DataError


class ClientData:
    """The data of all clients, as row numbers; each has splits ``train``, ``val`` and ``test``.

    An epoch's order is drawn on the CPU, so it is the same on every device; augmentation draws on the device of
    the data, from a generator seeded by the epoch's own. All methods raise DataError for a client or a split that
    does not exist.

    Args:
        reader: Reads rows of the data set.
        indices: For each split, the rows of each client, as many as for ``train``; rows of a
            :class:`~lit_fednas.data.partitions.ClientRows` are not made before a client is asked for.
        test_reader: Reads the rows of the split ``test``, where they are of another data set.
        task: What targets are; classes if not given.

    Example:
        >>> from lit_fednas.data import Examples, TensorReader
        >>> from lit_fednas.rng import generator
        >>> reader = TensorReader(Examples(torch.arange(6.0).view(6, 1), torch.arange(6)))
        >>> clients = ClientData(reader, {"train": [np.array([0, 1, 2, 3]), np.array([4, 5])]})
        >>> clients.sizes
        array([4, 2])
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
        """The number of clients in the population."""
        return len(self.sizes)

    @property
    def at_server(self) -> ClientData:
        """The examples that the server may read: in a simulation those of all clients."""
        return self

    def split_sizes(self, split: str) -> np.ndarray:
        """Returns the number of examples of each client's split, int64 [clients]; zeros where there is none."""
        if split not in ("train", "val", "test"):
            raise DataError(f"split: {split!r} does not exist; ask for 'train', 'val' or 'test'")
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

        Raises:
            DataError: A class is outside 0..num_classes - 1.
        """
        labels = torch.cat([self._targets(client, split) for split in splits]).cpu().numpy()
        if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
            raise DataError(
                f"num_classes: {num_classes} for classes {labels.min()}..{labels.max()} of client {client}; "
                f"give at least {labels.max() + 1}"
            )
        return np.bincount(labels, minlength=num_classes)

    def batches(
        self,
        client: int,
        batch_size: int,
        generator: torch.Generator,
        *,
        split: str = "train",
        shuffle: bool = True,
        balanced: bool = False,
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
            balanced: Draws as many examples with replacement instead, the classes that the client has with equal
                probability, and so the examples of a class.
            augment: False leaves the augmentation out.
            drop_last: Leaves a smaller last batch out, unless it is the client's only one.
        """
        rows = self.rows(client, split)
        if balanced and len(rows):
            _, codes, counts = self._targets(client, split).cpu().unique(return_inverse=True, return_counts=True)
            rows = rows[torch.multinomial(1 / counts[codes].double(), len(rows), True, generator=generator)]
        elif shuffle:
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
