import multiprocessing
import pickle
import re
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_fednas.data import (
    IID,
    ArraySource,
    ByColumn,
    Dirichlet,
    DistortedDigits,
    Examples,
    FederatedDataModule,
    Partitioner,
    RandomCrop,
    Shards,
)
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.rng import generator, numpy_generator


def examples(count: int = 200, start: int = 0) -> Examples:
    """Returns examples with input k = k, four classes of unequal sizes, and ten sites."""
    values = torch.arange(start, start + count)
    targets = torch.bucketize(values % 10, torch.tensor([0, 2, 5]))  # 1, 2, 3 and 4 tenths
    return Examples(values.float().view(-1, 1), targets, {"site": (values // 20).numpy()})


def module(partitioner: Partitioner | None = None, num_clients: int | None = 5, **settings: Any) -> FederatedDataModule:
    source = settings.pop("source", None) or ArraySource(examples(), test=examples(30, 1000))
    data = FederatedDataModule(source, partitioner or IID(), num_clients, **settings)
    data.setup("fit")
    return data


def values(batches: Any) -> list[int]:
    return [int(value) for x, _ in batches for value in x.flatten()]


def client_values(data: FederatedDataModule, client: int, split: str = "train") -> list[int]:
    return values(data.clients.batches(client, 7, generator(0, "b"), split=split, shuffle=False))


@pytest.mark.parametrize("in_memory", [True, False])
def test_every_training_example_is_in_one_split(in_memory: bool) -> None:
    data = module(client_val=0.2, client_test=0.1, server_val=0.15, in_memory=in_memory)
    splits = [client_values(data, client, split) for client in range(5) for split in ("train", "val", "test")]
    splits.append(values(data.val_dataloader()))
    assert sorted(value for split in splits for value in split) == list(range(200))
    assert len(splits[-1]) == 30
    assert [data.clients.size(0, split) for split in ("train", "val", "test")] == [24, 7, 3]
    assert sorted(values(data.test_dataloader())) == list(range(1000, 1030))


def test_the_official_test_set_is_dealt_in_proportion_to_clients_classes() -> None:
    official = examples(130, 1000)
    settings: dict[str, Any] = {"source": ArraySource(examples(400), test=official), "client_val": 0.2}
    data = module(Dirichlet(0.3, min_size=5), client_test="official", **settings)
    without = module(Dirichlet(0.3, min_size=5), **settings)
    class_counts = [data.clients.label_counts(client, 4) for client in range(5)]
    total = np.bincount(official.targets)
    test_values = [client_values(data, client, "test") for client in range(5)]
    assert sorted(value for part in test_values for value in part) == list(range(1000, 1130))
    for client in range(5):
        for split in ("train", "val"):  # clients keep all their examples for training
            assert client_values(data, client, split) == client_values(without, client, split)
        counts = np.bincount([official.targets[value - 1000] for value in test_values[client]], minlength=4)
        assert (np.abs(counts - total * class_counts[client] / sum(class_counts)) <= 1).all()
    batches = data.clients.only(3).batches(0, 500, generator(0, "b"), split="test", shuffle=False)
    assert values(batches) == test_values[3]
    assert sorted(values(data.test_dataloader())) == list(range(1000, 1130))  # the server tests on all examples


def owned(owners: list[str], start: int = 0) -> Examples:
    """Returns an example per entry of ``owners``, in four classes."""
    values = torch.arange(start, start + len(owners))
    return Examples(values.float().view(-1, 1), torch.arange(len(owners)) % 4, {"site": np.array(owners)})


def test_owners_are_merged_only_by_the_setting() -> None:
    source = ArraySource(owned(list("dacbabcdabcd")))
    assert module(ByColumn("site"), 4, source=source, server_val=0).owners == ["a", "b", "c", "d"]
    assert module(IID(), 4, source=source).owners == []
    with pytest.raises(DataError, match=r"num_clients: 3 for 4 values of 'site'; give null, .*merge: true"):
        module(ByColumn("site"), 3, source=source, server_val=0)
    merged = module(ByColumn("site", merge=True), 3, source=source, server_val=0)
    owners = [name.split(", ") for name in merged.owners]
    assert sorted(map(len, owners)) == [1, 1, 2]  # four owners are dealt out in turn
    sites = np.array(list("dacbabcdabcd"))
    assert [sorted(set(sites[rows])) for rows in merged.partition] == owners


def test_the_official_test_set_is_dealt_by_the_column_of_the_owners(caplog: pytest.LogCaptureFixture) -> None:
    train, test = owned(list("abcdabcd")), owned(["b", "new", "d", " a", "b"], 1000)
    data = module(ByColumn("site"), None, source=ArraySource(train, test=test), client_test="official", server_val=0)
    assert [client_values(data, client, "test") for client in range(4)] == [[1003], [1000, 1004], [], [1002]]
    assert "client_test: official has no example of 1 owners: c" in caplog.text
    assert "client_test: official has examples of 1 owners without a client: new" in caplog.text
    for columns, message in (({}, "needs 'site' in the test split"), ({"site": list("xyzxy")}, "no example of any")):
        other = Examples(test.inputs, test.targets, columns)
        with pytest.raises(DataError, match=rf"client_test: official {message}|official has {message}"):
            module(ByColumn("site"), None, source=ArraySource(train, test=other), client_test="official")


def test_an_owner_without_training_examples_is_named(caplog: pytest.LogCaptureFixture) -> None:
    data = module(ByColumn("site"), None, source=ArraySource(owned(list("abcdefgh"))), server_val=4)
    absent = set("abcdefgh") - set(data.owners)
    assert f"server_val: no training example is left of 4 owners: {', '.join(sorted(absent))}" in caplog.text


IMAGES = torch.arange(40 * 64, dtype=torch.int64).view(40, 1, 8, 8) % 256


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            IMAGES.byte(),
            IMAGES.float(),
            r"test has inputs of type float32 .*those of train are uint8; save both as one",
        ),
        (IMAGES.float(), IMAGES.byte(), r"test has inputs of type uint8 .*those of train are float32"),
        (IMAGES, IMAGES, r"train has .*int64 .*whole numbers other than uint8 are tokens; save images as uint8"),
        (IMAGES.view(40, 8, 8, 1).byte(), None, r"train .*shape \[8, 8, 1\], with the channels last; put them first"),
        (
            IMAGES.float() / 255,
            IMAGES.float(),
            "test has inputs from 0 to 255, and train from 0 to 1; scale them alike",
        ),
        (IMAGES / 127.5 - 1, IMAGES / 255, "test has inputs from 0 to 1, and train from -1 to 1; scale them alike"),
        (IMAGES.float(), IMAGES.double(), None),
        (IMAGES.float().view(40, 1, 16, 4), None, None),
        (IMAGES.float().view(40, 8, 4, 2), None, None),
        (IMAGES.float().view(40, 8, 8, 1)[:, :, :6], None, r"inputs of shape \[8, 6, 1\], read as 8"),
        (IMAGES.flatten(1), IMAGES.flatten(1).int(), None),  # tokens
    ],
)
@pytest.mark.parametrize("in_memory", [True, False])
def test_splits_are_of_one_kind_and_scale(
    train: Tensor, test: Tensor | None, message: str | None, in_memory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    splits = [None if inputs is None else Examples(inputs, torch.arange(40) % 4) for inputs in (train, test)]
    try:
        module(source=ArraySource(splits[0], test=splits[1]), in_memory=in_memory)  # type: ignore[arg-type]
    except DataError as error:
        texts = [str(error)]
    else:
        texts = [text for text in caplog.messages if "copies" not in text and "several" not in text]
    assert len(texts) == (message is not None)
    assert message is None or re.search(message, texts[0])


def test_copies_are_counted_by_content(caplog: pytest.LogCaptureFixture) -> None:
    def split(*values: float) -> Examples:
        return Examples(torch.tensor(values).float()[:, None], torch.tensor([int(value) % 4 for value in values]))

    train, test = split(0, 1, 2, 3, 4, 4.0), split(4, 5, 0)
    test.targets[2] = 1  # 0 is of class 0 in train
    text = (
        "1 of 6 examples of train are copies of others; 2 of 3 examples of test are copies of training examples; "
        "1 different inputs have several classes"
    )
    data = module(source=ArraySource(train, test=test), num_clients=2, server_val=0)
    assert data.copies == text
    assert f"data.source: {text}" in caplog.messages
    assert f"copies   {text[:30]}" in str(data.overview())
    assert module(source=DistortedDigits(copies=1, size=8, val=0.25)).copies == ""


def test_omissions_are_counted_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    class Sieve(ArraySource):
        def load(self, split: Any) -> Examples | None:
            self.left_out["train"] = Counter({"hidden": 2, ".heic": 1_204})
            return super().load(split)

    source = Sieve(examples(1000), test=examples(30, 1000))
    source.load("train")  # a second reading does not add to the counts
    module(source=source).test_dataloader()
    assert [text for text in caplog.messages if "left out" in text] == [
        "data.source: train has 1,000 examples of 4 classes; 1,206 left out: 1,204 .heic, 2 hidden"
    ]


def test_the_partition_indexes_the_targets() -> None:
    data = module(Dirichlet(1.0, min_size=1), server_val=20)
    val_targets = examples().targets[values(data.val_dataloader())]
    assert np.bincount(val_targets).tolist() == [2, 4, 6, 8]  # the shares of the classes
    for client, rows in enumerate(data.partition):
        assert data.targets[rows].tolist() == examples().targets[client_values(data, client)].tolist()


def test_a_clients_splits_are_drawn_from_its_generator() -> None:
    """The splits depend neither on the order of access nor on the process."""
    data = module(Dirichlet(1.0, min_size=2), 40, source=ArraySource(examples(2000)), client_val=0.3, client_test=0.1)
    data = pickle.loads(pickle.dumps(data))
    pool = np.setdiff1d(np.arange(2000), values(data.val_dataloader()))
    for client in np.random.default_rng(0).permutation(np.repeat(np.arange(40), 3)).tolist():
        rows = pool[data.partition[client]]
        order = numpy_generator(0, "client-split", client).permutation(rows)
        num_val, num_test = round(0.3 * len(rows)), round(0.1 * len(rows))
        parts = np.split(order, [num_val, num_val + num_test])
        for split, part in zip(("val", "test", "train"), parts, strict=True):
            assert data.clients.rows(client, split).tolist() == sorted(part.tolist())
            assert data.clients.size(client, split) == data.clients.split_sizes(split)[client] == len(part)


@pytest.mark.parametrize(
    ("partitioner", "settings"),
    [
        (IID(), {}),
        (Shards(1), {"client_val": 0.3}),
        (Dirichlet(100.0, min_size=1), {"client_test": "official"}),
        (ByColumn("site"), {"client_val": 0.2, "client_test": 0.2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_setup_has_no_loop_over_clients(partitioner: Partitioner, settings: dict[str, Any]) -> None:
    """The number of function calls is about the same for 3,000 clients as for 30."""

    def calls(num_clients: int) -> int:
        sites = {"site": np.arange(30 * num_clients) % num_clients}
        targets = torch.arange(30 * num_clients) % 4
        train = Examples(targets.float()[:, None], targets, sites)
        data = FederatedDataModule(ArraySource(train, test=train), partitioner, num_clients, **settings)
        events: list[str] = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            data.setup("fit")
        finally:
            sys.setprofile(None)
        return events.count("call") + events.count("c_call")

    calls(30)  # imports happen here
    assert calls(3000) < 1.1 * calls(30)


def test_columns_reach_the_partitioner_and_the_server_may_hold_nothing() -> None:
    data = FederatedDataModule(ArraySource(examples()), ByColumn("site"), server_val=0)
    assert (data.num_classes, data.input_shape, data.class_names) == (4, (1,), ("0", "1", "2", "3"))  # before setup
    data.setup("fit")
    clients = data.clients
    data.setup("test")  # keeps the clients
    assert data.clients is clients
    assert data.clients.num_clients == 10
    assert {value // 20 for value in client_values(data, 3)} == {3}
    assert data.val_dataloader() == []


@pytest.mark.parametrize("augment", [True, False])
def test_augmentation_is_for_training_and_can_be_disabled(augment: bool) -> None:
    images = Examples(torch.full((40, 1, 4, 4), 255, dtype=torch.uint8), torch.arange(40) % 2)
    data = module(source=ArraySource(images, augmentation=[RandomCrop(2)]), augment=augment, num_clients=2)
    batches = data.clients.batches(0, 40, generator(0, "b"))
    assert (torch.cat([x for x, _ in batches]) == 0).any() == augment
    assert all((x == 1).all() for x, _ in data.val_dataloader())


def test_teardown_ends_the_readers_processes():
    data = module(in_memory=False, num_workers=1)
    expected = client_values(data, 2)
    assert len(multiprocessing.active_children()) == 1
    data.teardown("fit")
    assert not multiprocessing.active_children()
    assert client_values(data, 2) == expected
    data.teardown("fit")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"server_val": 1.0}, "server_val: 1.0"),
        ({"client_val": 0.5, "client_test": 0.5}, r"client_val \+ client_test: 1"),
        ({"num_clients": 180, "client_val": 0.6}, "client 0, which has 1;"),
        ({"client_test": "official"}, "client_test: official needs a test split, which ArraySource lacks"),
        ({}, "ArraySource has no test split"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        module(source=ArraySource(examples()), **settings).test_dataloader()


@pytest.mark.parametrize("in_memory", [True, False])
def test_evaluation_batches_mix_the_classes_of_sorted_data(in_memory: bool) -> None:
    """Networks that normalise by batch statistics need batches with all classes."""
    whole = Examples(torch.arange(390.0)[:, None], torch.arange(390) // 100)
    source = ArraySource(whole, val=whole, test=whole)
    data = FederatedDataModule(source, IID(), num_clients=4, eval_batch_size=100, in_memory=in_memory)
    data.setup()
    for loader in (data.val_dataloader(), data.test_dataloader()):
        batches = list(loader)
        assert [len(targets) for _, targets in batches] == [98, 98, 98, 96]
        assert len(loader) == 4
        assert sorted(values(batches)) == list(range(390))
        for _, targets in batches:
            assert torch.bincount(targets, minlength=4).min() >= 12  # the expected number is 25
        assert values(loader) == values(batches)
