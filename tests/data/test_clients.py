from collections.abc import Iterable

import numpy as np
import pytest
import torch

from lit_fednas.data import ClientData, Examples, LoaderReader, Normalize, RandomCrop, RandomFlip, TensorReader
from lit_fednas.data.examples import Batch, Reader
from lit_fednas.errors import DataError
from lit_fednas.rng import generator

ROWS = {
    "train": [np.arange(0, 10), np.arange(10, 40), np.array([44])],
    "val": [np.array([40, 41]), np.array([42]), np.empty(0, dtype=int)],
}


def examples() -> Examples:
    """Returns examples in which the pixels and the target of example k are k."""
    values = torch.arange(50, dtype=torch.uint8)
    return Examples(values.view(-1, 1, 1, 1).expand(-1, 3, 4, 4).contiguous(), torch.arange(50))


def clients(kind: type[Reader], **settings: object) -> ClientData:
    reader = kind(examples(), Normalize([0.0] * 3, [1 / 255] * 3), **settings)  # type: ignore[arg-type]
    return ClientData(reader, ROWS)


@pytest.fixture(params=[TensorReader, LoaderReader])
def kind(request: pytest.FixtureRequest) -> type[Reader]:
    return request.param


def targets_of(batches: Iterable[Batch]) -> list[int]:
    return [int(target) for _, targets in batches for target in targets]


def test_sizes_and_missing_splits(kind: type[Reader]) -> None:
    data = clients(kind)
    assert (data.num_clients, data.sizes.tolist()) == (3, [10, 30, 1])
    assert [data.size(client, "val") for client in range(3)] == [2, 1, 0]
    assert (data.size(0, "test"), data.split_sizes("test").tolist()) == (0, [0, 0, 0])
    for client, split in ((2, "val"), (0, "test")):
        assert list(data.batches(client, 8, generator(0, "b"), split=split)) == []
    for client in (3, -1):
        with pytest.raises(DataError, match="client: "):
            data.batches(client, 8, generator(0, "b"))


def test_classes_and_their_counts(kind: type[Reader]) -> None:
    reader = kind(Examples(examples().inputs, examples().targets % 3))  # type: ignore[call-arg, arg-type]
    val = [np.array([8]), np.empty(0, dtype=int)]
    data = ClientData(reader, {"train": [np.array([4, 0, 3]), np.array([2, 5])], "val": val})
    assert [data.classes(0), data.classes(1)] == [(0, 1), (2,)]  # only training examples count
    counts = data.label_counts(0, 4)  # training and validation examples count
    assert (counts.dtype, counts.tolist()) == (np.int64, [2, 1, 1, 0])
    assert data.label_counts(0, 3, ("train",)).tolist() == [2, 1, 0]
    assert data.label_counts(1, 3, ("val",)).tolist() == [0, 0, 0]


def test_an_epoch_is_every_example_once_and_inputs_stay_with_targets(kind: type[Reader]) -> None:
    data = clients(kind)
    for _ in range(2):  # changes of batches do not reach the data set
        batches = list(data.batches(1, 8, generator(0, "b")))
        assert [len(y) for _, y in batches] == [8, 8, 8, 6]
        targets = torch.cat([y for _, y in batches])
        assert targets.sort().values.tolist() == list(range(10, 40)) != targets.tolist()
        for x, y in batches:
            assert x.dtype == torch.float32
            torch.testing.assert_close(x, y.view(-1, 1, 1, 1).expand(-1, 3, 4, 4).float())
            x.zero_()
            y.zero_()
    for client, sizes in ((1, [8, 8, 8]), (2, [1])):
        assert [len(y) for _, y in data.batches(client, 8, generator(0, "b"), drop_last=True)] == sizes


def test_order_is_that_of_the_generator(kind: type[Reader]) -> None:
    data, state = clients(kind), torch.get_rng_state()
    expected = torch.arange(10, 40)[torch.randperm(30, generator=generator(7, "b"))]
    draws = generator(7, "b")
    first = data.batches(1, 4, draws)
    state_after = draws.get_state()
    assert not torch.equal(state_after, generator(7, "b").get_state())  # the order is drawn before the first batch
    assert targets_of(first) == expected.tolist() != targets_of(data.batches(1, 4, draws))  # epochs differ
    draws.set_state(state_after)
    unshuffled = data.batches(0, 4, draws, split="val", shuffle=False, augment=False)
    assert targets_of(unshuffled) == [40, 41]
    assert torch.equal(state_after, draws.get_state())
    assert torch.equal(state, torch.get_rng_state())


def test_augmentation_follows_the_generator_and_can_be_left_out(kind: type[Reader]) -> None:
    data = clients(kind, augmentation=[RandomCrop(2), RandomFlip()])
    state = torch.get_rng_state()

    def epoch(data: ClientData, augment: bool = True) -> torch.Tensor:
        return torch.cat([x for x, _ in data.batches(1, 8, generator(0, "b"), augment=augment)])

    assert torch.equal(epoch(data), epoch(data))
    assert (epoch(data) == 0).any()  # black padding, before normalisation
    assert torch.equal(epoch(data, augment=False), epoch(clients(kind)))
    assert torch.equal(state, torch.get_rng_state())


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(clients(TensorReader).batches(1, 4, generator(0, "b")))
    monkeypatch.setattr("lit_fednas.data.examples.CHUNK_BYTES", 4 * 48 * 9)  # nine examples: two batches of four
    parts = list(clients(TensorReader).batches(1, 4, generator(0, "b")))
    assert len(whole) == len(parts) == 8
    assert all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(whole, parts, strict=True))


def test_workers_give_the_same_batches_also_in_interrupted_passes() -> None:
    data = clients(LoaderReader, num_workers=1)
    reference = clients(LoaderReader)
    for client, seed in ((1, 0), (0, 1)):
        passes = (reader.batches(client, 8, generator(seed, "b")) for reader in (data, reference))
        assert all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(*passes, strict=True))
    interrupted, whole = (reader.batches(1, 4, generator(0, "b")) for reader in (data, reference))
    assert torch.equal(next(interrupted)[1], next(whole)[1])
    fresh, expected = (targets_of(reader.batches(0, 4, generator(1, "b"))) for reader in (data, reference))
    assert fresh == expected
    assert (rest := targets_of(interrupted)) == targets_of(whole)
    assert rest


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_move_to_gives_the_same_order_on_a_gpu(kind: type[Reader]) -> None:
    on_cpu, on_gpu = clients(kind), clients(kind, augmentation=[RandomCrop(1), RandomFlip()])
    on_gpu.move_to("cuda")
    plain = zip(
        on_cpu.batches(1, 8, generator(0, "b")), on_gpu.batches(1, 8, generator(0, "b"), augment=False), strict=True
    )
    for (x, y), (u, v) in plain:
        assert u.device.type == v.device.type == "cuda"
        torch.testing.assert_close(x, u.cpu())
        assert torch.equal(y, v.cpu())
    first, second = (torch.cat([x for x, _ in on_gpu.batches(1, 8, generator(0, "b"))]) for _ in range(2))
    assert torch.equal(first, second)
