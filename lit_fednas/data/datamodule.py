"""The federated data module: a source, dealt out to clients by a partitioner."""

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
    """Deals a source's training examples out to clients, and keeps data for the server to evaluate on.

    It has no ``train_dataloader``: the engine asks ``clients`` for the batches of one client at a time. Every rank
    reads and holds the examples.

    Args:
        source: Where the examples come from.
        partitioner: Deals them out to clients.
        num_clients: None leaves the number to the partitioner, which only a natural one knows.
        seed: Of the partition and of all hold-outs.
        server_val: What the server validates on where the source has no validation split: a number of
            training examples (int) or a fraction of them (float), drawn with the class shares kept.
        client_val: The fraction of each client's examples that it validates on, to the nearest number; small
            clients may have none, and a client that would train on nothing is an error.
        client_test: What clients are tested on: a fraction of each one's own examples; or ``official``, the source's
            test split, of which each class is dealt to the clients in proportion to their training examples of it,
            so that a client keeps all its examples for training (FedorAS, Table 7); an owner (:class:`ByColumn`) gets
            its own examples.
        eval_batch_size: Examples per batch in the server's validation and test.
        augment: False leaves the source's augmentation out.
        in_memory: False decodes examples when they are read, through a DataLoader.
        num_workers: Processes that decode, where not ``in_memory``.

    Attributes:
        clients: The clients' data; set by ``setup``, like the following.
        partition: Rows of each client, before its local hold-outs, into ``targets``.
        targets: The class of each training example that is dealt out; 0 where examples have none.
        copies: How many inputs are copies of others; ``None`` if they were not compared: before a fit, out of memory.

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
            raise ConfigError(f"data.server_val: {self.server_val} must be below 1; a number of examples is whole")
        self._client_test_share = 0.0 if isinstance(self.client_test, str) else self.client_test
        if (both := self.client_val + self._client_test_share) >= 1:
            raise ConfigError(f"data.client_val + client_test: {both:g} leaves no training data; give less than 1")
        if self.in_memory and self.num_workers:
            raise ConfigError(f"data.num_workers: {self.num_workers} needs in_memory: false; give 0, or set it so")
        self.may_change = False  # whether a checkpoint of a run with other data is accepted
        self.content: dict[str, dict[str, Any]] = {}  # what is known of each split once it has been read
        self.copies: str | None = None
        self._owners: np.ndarray | None = None  # the owner of each target, where clients are owners
        self._readers: dict[str, Reader] = {}
        self._val_batches: EvalBatches | None = None

    @property
    def num_classes(self) -> int:
        """The width of a network's output: the number of classes; known before ``setup``."""
        count = self.task.num_outputs
        if self.task.has_classes and count < 2:
            raise DataError(f"data.source: {type(self.source).__name__} has {count} class; give two at least")
        return count

    @property
    def task(self) -> Task:
        """What targets are; known before ``setup``."""
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
        """The names of what :attr:`targets` number: the classes, or one for all examples where they have none."""
        return self.class_names if self.task.labelled else ("examples",)

    @override
    def prepare_data(self) -> None:
        self.source.prepare(self.in_memory)

    def setup(self, stage: str | None = None) -> None:
        """Loads the training examples and partitions them; a second call does nothing.

        Raises:
            DataError: The data are missing, not of the task, or too few for what was asked.
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
        held = np.empty(0, dtype=np.int64)
        if val is not None:
            self._val_batches = EvalBatches(val, None, self.eval_batch_size)
        elif len(held := self._server_rows(targets)):
            self._val_batches = EvalBatches(train, torch.from_numpy(held), self.eval_batch_size)
        self.clients = self._deal(train.dataset, targets, np.delete(np.arange(len(targets)), held))

    def _warn_of_copies(self) -> None:
        """Counts equal inputs, also of the test split, which is not kept; its faults are so reported in time."""
        splits = {split: reader.dataset for split, reader in self._readers.items()}
        if self.client_test == "official" and (reader := self._reader("test")) is not None:
            splits["test"] = reader.dataset
        elif (test := self._open("test")) is not None:
            splits["test"] = test
        self.copies = copies_in(splits, self.task)
        if self.copies:
            log.warning("data.source: %s", self.copies)

    def _deal(self, train: ExampleDataset, targets: np.ndarray, pool: np.ndarray) -> ClientData:
        """Deals examples out; sets :attr:`partition` and :attr:`targets`."""
        if self.partitioner.by_class and not self.task.labelled:
            raise ConfigError(
                f"data.partitioner: {type(self.partitioner).__name__} deals out by class, and the examples of "
                f"{type(self.source).__name__} have none; use ByColumn or IID"
            )
        columns = {name: _taken(column, pool) for name, column in train.columns.items()}
        self.targets = _taken(targets, pool)
        self.partition = self.partitioner.partition(self.targets, self.num_clients, self.seed, columns)
        if (name := self.partitioner.column) is not None:
            owners = np.asarray(train.columns[name]).astype(str)
            self._owners = _taken(owners, pool)
            _warn("server_val: no training example is left of %d owners", np.setdiff1d(owners, self._owners))
        rows = self._client_rows(pool)
        return ClientData(self._readers["train"], rows, self._readers.get("test"), self.task)

    @property
    def class_counts(self) -> csr_array | np.ndarray:
        """Each client's examples of each class, before its hold-outs, after ``setup``: sparse ``[clients, strata]``."""
        return self.partition.sparse_class_counts(self.targets, len(self.strata))

    @property
    def owners(self) -> list[str]:
        """The names of each client's owners, separated by commas; empty where clients are no owners."""
        return [] if self._owners is None else self.partition.names(self._owners)

    def val_dataloader(self) -> EvalBatches | list[Any]:
        """Returns the server's validation batches; an empty list where it holds nothing out."""
        return self._val_batches or []

    def test_dataloader(self) -> EvalBatches:
        """Returns the test batches, loaded on the first call; raises DataError if the source has no test split."""
        if (batches := self.server_batches("test")) is None:
            raise DataError(f"data.source: {type(self.source).__name__} has no test split; give one, or do not test")
        return batches

    def server_batches(self, split: Literal["val", "test"]) -> EvalBatches | None:
        """Returns the server's batches of a split; ``None`` if it has none."""
        if split == "val":
            return self._val_batches
        reader = self._reader("test")
        return None if reader is None else EvalBatches(reader, None, self.eval_batch_size)

    def raw_inputs(self, count: int, anew: bool = False) -> Tensor:
        """Returns up to ``count`` raw inputs of the server's validation or else training data, read ``anew`` or not."""
        batches = self._val_batches or EvalBatches(self._readers["train"], None, count)
        split: Split = "val" if batches.reader is self._readers.get("val") else "train"
        dataset = (self.source.dataset(split) if anew else None) or batches.reader.dataset
        raw = torch.stack([dataset[int(row)][0].cpu() for row in batches.rows[:count]])
        return raw.float() if raw.is_floating_point() else raw

    def token_range(self) -> tuple[int, int] | None:
        """Returns the least and the greatest token that was read; ``None`` for other inputs, or out of memory."""
        read = [reader.dataset.inputs for reader in self._readers.values() if isinstance(reader.dataset, Examples)]
        if self.input_dtype.is_floating_point or not read:
            return None
        return min(int(inputs.min()) for inputs in read), max(int(inputs.max()) for inputs in read)

    def overview(self) -> Overview:
        """Returns what was understood of the data, to be printed; reads all splits, and deals examples out."""
        return Overview.of(self)

    def inputs_record(self) -> dict[str, Any]:
        """Returns what inputs are and how they are normalised, after ``setup`` (``lit_fednas.records``)."""
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
        saved = state_dict.get("content", {})
        for split in saved.keys() | (self.content.keys() if saved else ()):
            before, now = saved.get(split, {}), self.content.get(split, {})
            if different := [name for name in before | now if before.get(name) != now.get(name)]:
                sizes = f"{before.get('examples', 0):,} examples then, {now.get('examples', 0):,} now"
                change = f"{split} has other {', '.join(different)} than in the checkpoint's run ({sizes})"
                if not self.may_change:
                    raise CheckpointError(
                        f"data.source: {change}; restore the data, or allow the change with --changed '[data.source]'"
                    )
                log.warning("data.source: %s", change)

    @override
    def predict_dataloader(self) -> EvalBatches:
        return self.test_dataloader()

    @override
    def teardown(self, stage: str) -> None:
        for reader in self._readers.values():  # garbage collection would wait five seconds for each process
            reader.close()

    def move_to(self, device: torch.device | str) -> None:
        """Moves the data, where in memory; all later batches are on ``device``."""
        for reader in self._readers.values():
            reader.move_to(device)

    def _open(self, split: Split) -> ExampleDataset | None:
        """Returns a split, if the source has it; says which classes it lacks."""
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
        missing = [name for label, name in enumerate(names) if label not in present]
        _warn(f"source: {split} has no example of %d of {len(names)} classes", missing)
        return data

    def _reader(self, split: Split) -> Reader | None:
        """Returns the reader of a split, if the source has it; opened at the first call."""
        if split not in self._readers and (data := self._open(split)) is not None:
            augmentation = self.source.augmentation if self.augment and split == "train" else ()
            settings = data, self.source.normalization or as_float, augmentation
            in_memory = isinstance(data, Examples) and self.in_memory
            reader = TensorReader(*settings) if in_memory else LoaderReader(*settings, self.num_workers)
            self._readers[split] = reader
            reader.move_to(self._readers["train"].device)
        return self._readers.get(split)

    def _server_rows(self, targets: np.ndarray) -> np.ndarray:
        """Returns the training rows that the server keeps for validation."""
        share = self.server_val
        count = round(share * len(targets)) if isinstance(share, float) else share
        if count >= len(targets):
            raise DataError(f"data.server_val: {count} of {len(targets)} examples leave none to train on; give less")
        return stratified_rows(targets, count, numpy_generator(self.seed, "server-val"))

    def _client_rows(self, pool: np.ndarray, first: int = 0) -> Mapping[str, ClientRows]:
        """Splits each client's rows."""
        dealt, count = self.partition, len(self._readers["train"])
        if len(pool) < count:
            dealt = Partition(pool[dealt.rows], dealt.offsets)
        rows = hold_outs(dealt, self.client_val, self._client_test_share, self.seed, first)
        if (left := rows["train"].sizes).min() < 1:
            client = int((left < 1).argmax())
            raise DataError(
                f"data.client_val: {self.client_val} + client_test {self.client_test}: client {first + client} has "
                f"{dealt.sizes[client]} examples and would keep none to train on; give less, or fewer clients, or "
                "leave small clients out (ByColumn's least)"
            )
        if not (self.client_val or self._client_test_share):
            rows = {"train": dealt}
        if self.client_test == "official":
            rows["test"] = self._official_test_rows()
        for split, fraction in (("val", self.client_val), ("test", self.client_test)):
            if fraction and not rows[split].sizes.all():
                log.info(
                    "client_%s: %s leaves %d of %d clients without an example in %s",
                    *(split, fraction, np.count_nonzero(rows[split].sizes == 0), len(dealt), split),
                )
        return rows

    def _official_test_rows(self) -> Partition:
        """Deals the test split out; returns each client's rows of it."""
        reader = self._reader("test")
        if reader is None:
            name = type(self.source).__name__
            raise DataError(f"data.client_test: official is a test split, which {name} does not have; give a fraction")
        if self._owners is not None:
            name, field = str(self.partitioner.column), "data.client_test: official"
            if name not in reader.dataset.columns:
                raise DataError(f"{field} needs {name!r} in the test split, as in train; add it, or give a fraction")
            owners = np.asarray(reader.dataset.columns[name]).astype(str)
            rows, clients = self.partition.of_others(self._owners, owners), self._owners[self.partition.rows]
            if not len(rows.rows):
                raise DataError(f"{field} has no example of any client, by {name!r}; give a fraction")
            _warn("client_test: official has no example of %d owners", np.setdiff1d(clients, owners))
            _warn("client_test: official has examples of %d owners without a client", np.setdiff1d(owners, clients))
            return rows
        counts = self.partition.class_counts(self.targets, len(self.strata))
        strata = self.task.strata(reader.targets).cpu().numpy()
        return deal_by_class(strata, counts, numpy_generator(self.seed, "client-test"))


def _warn(text: str, names: Sequence[Any] | np.ndarray) -> None:
    """Warns with the number of names, if there are any, and the first of them."""
    if len(names):
        log.warning(f"data.{text}: %s", len(names), ", ".join([*map(str, names[:5]), *["..."] * (len(names) > 5)]))


def _taken(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns rows of an array, which ascend; no copy where they are all."""
    return array if len(rows) == len(array) else array[rows]
