"""The federated data module, which deals out a source's examples to clients by a partitioner."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mode
from typing import Any, Literal

import numpy as np
import torch
from lightning import LightningDataModule
from scipy.sparse import csr_array
from torch import Tensor
from typing_extensions import override

from lit_fednas.data.clients import ClientData, ClientRows, Partition, deal_by_class, hold_outs, stratified_rows
from lit_fednas.data.examples import (
    EvalBatches,
    ExampleDataset,
    Examples,
    LoaderReader,
    Reader,
    TensorReader,
    check_inputs,
    content_of,
    copies_in,
)
from lit_fednas.data.overview import Overview
from lit_fednas.data.partitioners import Partitioner
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.tasks import Task
from lit_fednas.data.transforms import as_float
from lit_fednas.errors import CheckpointError, ConfigError, DataError
from lit_fednas.formatting import announce
from lit_fednas.ranges import NonNegativeInt, PositiveInt, ShareBelowOne, checked
from lit_fednas.rng import numpy_generator

log = logging.getLogger(__name__)


@checked("data")
@dataclass(eq=False, repr=False)
class FederatedDataModule(LightningDataModule):
    """Deals out a source's training examples to clients, and holds out examples for the server's evaluation.

    It has no ``train_dataloader``: the engine asks ``clients`` for the batches of one client at a time. Every rank
    reads and holds the examples.

    Args:
        source: The source of the examples.
        partitioner: Deals out the training examples to clients.
        num_clients: Number of clients; None takes it from a natural partition, such as :class:`ByColumn`.
        seed: The seed of the partition and of all hold-outs.
        server_val: Training examples that the server validates on if the source has no validation split: a number
            (int) or a fraction (float), with the same class shares.
        client_val: Fraction of each client's examples for its validation, rounded to whole examples. A small client
            may validate on no example; every client must train on one.
        client_test: Test examples of clients: a fraction of each client's examples, or ``official``, the source's test
            split. ``official`` deals out each class in proportion to the clients' training examples of it, and clients
            keep all their examples for training (FedorAS, Table 7); with :class:`ByColumn`, it deals out by owner.
        eval_batch_size: Examples per batch in the server's validation and test.
        augment: Whether the source's augmentation is applied.
        in_memory: Whether examples are decoded before training; False decodes on access, through a DataLoader.
        num_workers: Number of decoding processes if ``in_memory`` is False.

    Attributes:
        clients: The clients' data, set by ``setup`` like all attributes.
        partition: The positions in ``targets`` of each client's examples, before the client's hold-outs.
        targets: The class of each dealt training example; 0 for tasks without classes.
        copies: A text on inputs that equal others; ``None`` before a fit, or if inputs are too large or not in memory.

    Example:
        >>> from lit_fednas.data import IID, Digits
        >>> data = FederatedDataModule(Digits(), IID(), num_clients=10)
        >>> data.setup("fit")
        >>> data.clients.num_clients, len(data.targets), len(data.val_dataloader())
        (10, 1294, 1)
    """

    source: DataSource
    partitioner: Partitioner
    num_clients: PositiveInt | None = None
    seed: NonNegativeInt = 0
    server_val: NonNegativeInt | ShareBelowOne = 0.1
    client_val: ShareBelowOne = 0.0
    client_test: ShareBelowOne | Literal["official"] = 0.0
    eval_batch_size: PositiveInt = 512
    augment: bool = True
    in_memory: bool = True
    num_workers: NonNegativeInt = 0
    clients: ClientData = field(init=False)
    partition: Partition = field(init=False)
    targets: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        super().__init__()
        if isinstance(self.server_val, float) and self.server_val >= 1:
            raise ConfigError(f"data.server_val: {self.server_val} is not below 1; give a fraction or a whole number")
        self._client_test_share = 0.0 if isinstance(self.client_test, str) else self.client_test
        if (share := self.client_val + self._client_test_share) >= 1:
            raise ConfigError(f"data.client_val + client_test: {share:g} leaves no training data; give less than 1")
        if self.in_memory and self.num_workers:
            raise ConfigError(f"data.num_workers: {self.num_workers} needs in_memory: false; set that, or give 0")
        self.may_change = False  # whether a checkpoint of a run with other data is accepted
        self.content: dict[str, dict[str, Any]] = {}  # fingerprints of the splits that have been read
        self.copies: str | None = None
        self._owners: np.ndarray | None = None  # the owner of each target, if clients are owners
        self._readers: dict[str, Reader] = {}
        self._val_batches: EvalBatches | None = None

    @property
    def num_classes(self) -> int:
        """The width of a network's output: the number of classes; known before ``setup``."""
        count = self.task.num_outputs
        if self.task.has_classes and count < 2:
            raise DataError(f"data.source: {type(self.source).__name__} has {count} class; give at least two")
        return count

    @property
    def task(self) -> Task:
        """The task of the targets; known before ``setup``."""
        return self.source.task

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; known before ``setup``."""
        return self.source.input_shape

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of batches; known before ``setup``."""
        return self.source.input_dtype

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class or other output; known before ``setup``."""
        return self.source.class_names

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of the classes in :attr:`targets`; a single name for tasks without classes."""
        return self.class_names if self.task.labelled else ("examples",)

    @override
    def prepare_data(self) -> None:
        self.source.prepare(self.in_memory)

    def setup(self, stage: str | None = None) -> None:
        """Loads the training examples and partitions them; a second call does nothing.

        Raises:
            DataError: The data are missing, do not fit the task, or are too few.
        """
        if hasattr(self, "clients"):
            return
        announce(f"reading {type(self.source).__name__}")
        train = self._reader("train")
        if train is None or not len(train):
            raise DataError(f"data.source: {type(self.source).__name__} has no training examples; give some")
        val = self._reader("val")
        names = [name.strip() if self.task.labelled else name for name in self.class_names]  # tokens may be white space
        if len(set(names)) < len(names):
            raise DataError(f"data.source: two classes are {mode(names)!r}, apart from white space; rename one")
        self.content = {split: content_of(reader.dataset) for split, reader in self._readers.items()}
        if stage in ("fit", None):
            self._warn_of_copies()
        targets = self.task.strata(train.targets).cpu().numpy()
        server_rows = np.empty(0, dtype=np.int64)
        if val is not None:
            self._val_batches = EvalBatches(val, None, self.eval_batch_size)
        elif len(server_rows := self._server_rows(targets)):
            self._val_batches = EvalBatches(train, torch.from_numpy(server_rows), self.eval_batch_size)
        self.clients = self._deal(train.dataset, targets, np.delete(np.arange(len(targets)), server_rows))

    def _warn_of_copies(self) -> None:
        """Counts equal inputs of all splits. Faults of the test split are thereby reported before training."""
        splits = {split: reader.dataset for split, reader in self._readers.items()}
        if self.client_test == "official" and (reader := self._reader("test")) is not None:
            splits["test"] = reader.dataset
        elif (test := self._open("test")) is not None:
            splits["test"] = test
        self.copies = copies_in(splits, self.task)
        if self.copies:
            log.warning("data.source: %s", self.copies)

    def _deal(self, train: ExampleDataset, targets: np.ndarray, pool: np.ndarray) -> ClientData:
        """Deals out the rows ``pool`` of the training examples; sets :attr:`partition` and :attr:`targets`."""
        if self.partitioner.by_class and not self.task.labelled:
            fault = f"deals out by class, but examples of {type(self.source).__name__} have no class"
            raise ConfigError(f"data.partitioner: {type(self.partitioner).__name__} {fault}; use ByColumn or IID")
        columns = {name: _rows_of(column, pool) for name, column in train.columns.items()}
        self.targets = _rows_of(targets, pool)
        self.partition = self.partitioner.partition(self.targets, self.num_clients, self.seed, columns)
        if (name := self.partitioner.column) is not None:
            owners = np.asarray(train.columns[name]).astype(str)
            self._owners = _rows_of(owners, pool)
            _warn("server_val: no training example is left of %d owners", np.setdiff1d(owners, self._owners))
        rows = self._client_rows(pool)
        return ClientData(self._readers["train"], rows, self._readers.get("test"), self.task)

    @property
    def class_counts(self) -> csr_array | np.ndarray:
        """The number of examples per client and class before clients' hold-outs, sparse ``[clients, strata]``."""
        return self.partition.sparse_class_counts(self.targets, len(self.strata))

    @property
    def owners(self) -> list[str]:
        """The names of each client's owners, separated by commas; empty if clients are not owners."""
        return [] if self._owners is None else self.partition.names(self._owners)

    def val_dataloader(self) -> EvalBatches | list[Any]:
        """Returns the server's validation batches; an empty list without validation examples."""
        return self._val_batches or []

    def test_dataloader(self) -> EvalBatches:
        """Returns the test batches, loaded on the first call; raises DataError if the source has no test split."""
        if (batches := self.server_batches("test")) is None:
            raise DataError(f"data.source: {type(self.source).__name__} has no test split; give one, or do not test")
        return batches

    def server_batches(self, split: Literal["val", "test"]) -> EvalBatches | None:
        """Returns the server's batches of a split; ``None`` if the server lacks the split."""
        if split == "val":
            return self._val_batches
        reader = self._reader("test")
        return None if reader is None else EvalBatches(reader, None, self.eval_batch_size)

    def raw_inputs(self, count: int, reload: bool = False) -> Tensor:
        """Returns up to ``count`` raw inputs of the server's validation data, or else of the training data."""
        batches = self._val_batches or EvalBatches(self._readers["train"], None, count)
        split: Split = "val" if batches.reader is self._readers.get("val") else "train"
        dataset = (self.source.dataset(split) if reload else None) or batches.reader.dataset
        raw = torch.stack([dataset[int(row)][0].cpu() for row in batches.rows[:count]])
        return raw.float() if raw.is_floating_point() else raw

    def token_range(self) -> tuple[int, int] | None:
        """Returns the smallest and largest token in memory; ``None`` if there are no tokens in memory."""
        tokens = [reader.dataset.inputs for reader in self._readers.values() if isinstance(reader.dataset, Examples)]
        if self.input_dtype.is_floating_point or not tokens:
            return None
        return min(int(inputs.min()) for inputs in tokens), max(int(inputs.max()) for inputs in tokens)

    def overview(self) -> Overview:
        """Returns a summary of the data, to be printed; reads all splits and deals out the examples."""
        return Overview.of(self)

    def inputs_record(self) -> dict[str, Any]:
        """Returns the record of the inputs and their normalisation, after ``setup`` (``lit_fednas.records``)."""
        normalization, dtype = self.source.normalization, self.raw_inputs(1).dtype
        return {
            "input_shape": list(self.input_shape),
            "input_type": str(dtype).removeprefix("torch."),
            "input_range": [0, 255] if dtype == torch.uint8 else None,
            "preprocessing": dict(self.source.preprocessing),
            "mean": normalization and list(normalization.mean),
            "std": normalization and list(normalization.std),
            "class_names": list(self.class_names),
            "task": type(self.task).__name__,
            "metrics": dict(self.task.metrics),
        }

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"content": self.content}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Validates that the data are those of the checkpoint's run."""
        contents = state_dict.get("content", {})
        for split in contents.keys() | (self.content.keys() if contents else ()):
            saved, current = contents.get(split, {}), self.content.get(split, {})
            if changes := [name for name in saved | current if saved.get(name) != current.get(name)]:
                sizes = f"{saved.get('examples', 0):,} examples then, {current.get('examples', 0):,} now"
                change = f"{split} has other {', '.join(changes)} than in the checkpoint's run ({sizes})"
                if not self.may_change:
                    raise CheckpointError(f"data.source: {change}; restore the data, or use --changed '[data.source]'")
                log.warning("data.source: %s", change)

    @override
    def predict_dataloader(self) -> EvalBatches:
        return self.test_dataloader()

    @override
    def teardown(self, stage: str) -> None:
        for reader in self._readers.values():  # garbage collection would wait five seconds for each process
            reader.close()

    def move_to(self, device: torch.device | str) -> None:
        """Moves data in memory to ``device``; all later batches are on it."""
        for reader in self._readers.values():
            reader.move_to(device)

    def _open(self, split: Split) -> ExampleDataset | None:
        """Returns a validated split, if the source has it; warns of classes without examples."""
        data = self.source.load(split) if self.in_memory else self.source.dataset(split)
        if data is None:
            return None
        if len(data):
            check_inputs(data, split, self.input_shape, self._readers["train"].dataset if self._readers else data)
        if isinstance(data, Examples) and (row := data.first_not_finite()) is not None:
            raise DataError(f"data.source: example {row} of {split} holds NaN or infinity; correct or remove it")
        try:
            self.task.check(data.targets)
        except DataError as error:
            raise DataError(f"data.source: {split} {error}") from None
        if self.source.left_out[split]:
            log.warning("data.source: %s has %s", split, self.source.read_text(split, len(data)))
        present = set(self.task.strata(data.targets).unique().tolist())
        names = self.strata
        absent = [name for label, name in enumerate(names) if label not in present]
        _warn(f"source: {split} has no example of %d of {len(names)} classes", absent)
        return data

    def _reader(self, split: Split) -> Reader | None:
        """Returns the reader of a split, if the source has it; opens it on the first call."""
        if split not in self._readers and (data := self._open(split)) is not None:
            augmentation = self.source.augmentation if self.augment and split == "train" else ()
            settings = data, self.source.normalization or as_float, augmentation
            in_memory = isinstance(data, Examples) and self.in_memory
            reader = TensorReader(*settings) if in_memory else LoaderReader(*settings, self.num_workers)
            self._readers[split] = reader
            reader.move_to(self._readers["train"].device)
        return self._readers.get(split)

    def _server_rows(self, targets: np.ndarray) -> np.ndarray:
        """Returns the training rows that the server holds out for validation."""
        share = self.server_val
        count = round(share * len(targets)) if isinstance(share, float) else share
        if count >= len(targets):
            raise DataError(f"data.server_val: {count} of {len(targets)} examples leave no training data; give less")
        return stratified_rows(targets, count, numpy_generator(self.seed, "server-val"))

    def _client_rows(self, pool: np.ndarray, first: int = 0) -> Mapping[str, ClientRows]:
        """Splits each client's rows, given the dealt rows ``pool`` and the number of the ``first`` client."""
        partition = self.partition
        if len(pool) < len(self._readers["train"]):
            partition = Partition(pool[partition.rows], partition.offsets)
        rows = hold_outs(partition, self.client_val, self._client_test_share, self.seed, first)
        if (train_sizes := rows["train"].sizes).min() < 1:
            client = int((train_sizes < 1).argmax())
            fault = f"leave no training example to client {first + client}, which has {partition.sizes[client]}"
            remedy = "give less, or fewer clients, or leave out small clients (ByColumn's least)"
            raise DataError(f"data.client_val, client_test: {self.client_val}, {self.client_test} {fault}; {remedy}")
        if not (self.client_val or self._client_test_share):
            rows = {"train": partition}
        if self.client_test == "official":
            rows["test"] = self._official_test_rows()
        for split, fraction in (("val", self.client_val), ("test", self.client_test)):
            if fraction and (num_empty := np.count_nonzero(rows[split].sizes == 0)):
                text = "client_%s: %s leaves %d of %d clients without an example in %s"
                log.info(text, split, fraction, num_empty, len(partition), split)
        return rows

    def _official_test_rows(self) -> Partition:
        """Deals out the test split; returns each client's rows of it."""
        reader = self._reader("test")
        if reader is None:
            name = type(self.source).__name__
            raise DataError(f"data.client_test: official needs a test split, which {name} lacks; give a fraction")
        if self._owners is not None:
            name, field = str(self.partitioner.column), "data.client_test: official"
            if name not in reader.dataset.columns:
                raise DataError(f"{field} needs {name!r} in the test split, as in train; add it, or give a fraction")
            test_owners = np.asarray(reader.dataset.columns[name]).astype(str)
            rows, owners = self.partition.of_others(self._owners, test_owners), self._owners[self.partition.rows]
            if not len(rows.rows):
                raise DataError(f"{field} has no example of any client, by {name!r}; give a fraction")
            _warn("client_test: official has no example of %d owners", np.setdiff1d(owners, test_owners))
            _warn("client_test: official has examples of %d owners without a client", np.setdiff1d(test_owners, owners))
            return rows
        counts = self.partition.class_counts(self.targets, len(self.strata))
        strata = self.task.strata(reader.targets).cpu().numpy()
        return deal_by_class(strata, counts, numpy_generator(self.seed, "client-test"))


def _warn(text: str, names: Sequence[Any] | np.ndarray) -> None:
    """Warns with the number of names and the first five of them, if there are any."""
    if len(names):
        log.warning(f"data.{text}: %s", len(names), ", ".join([*map(str, names[:5]), *["..."] * (len(names) > 5)]))


def _rows_of(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the ascending ``rows`` of an array, without a copy if these are all rows."""
    return array if len(rows) == len(array) else array[rows]
