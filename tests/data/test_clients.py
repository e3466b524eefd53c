import itertools

import numpy as np
import pytest
import torch

from lit_fednas.data import (
    ClientData,
    Examples,
    LoaderReader,
    Normalize,
    RandomCrop,
    RandomFlip,
    TensorReader,
    readers,
)
from lit_fednas.data.rows import ClientRows
from lit_fednas.errors import DataError
from lit_fednas.rng import generator

ROWS = {
    "train": [np.arange(0, 10), np.arange(10, 40), np.array([44])],
    "val": [np.array([40, 41]), np.array([42]), np.empty(0, dtype=int)],
}


def examples() -> Examples:
    """Every pixel of example k is k, and so is its target."""
    values = torch.arange(50, dtype=torch.uint8)
    return Examples(values.view(-1, 1, 1, 1).expand(-1, 3, 4, 4).contiguous(), torch.arange(50))


def clients(kind: type[readers.Reader], **settings: object) -> ClientData:
    reader = kind(examples(), Normalize([0.0] * 3, [1 / 255] * 3), **settings)  # type: ignore[arg-type]
    return ClientData(reader, ROWS)


@pytest.fixture(params=[TensorReader, LoaderReader])
def kind(request: pytest.FixtureRequest) -> type[readers.Reader]:
    return request.param


def test_sizes(kind: type[readers.Reader]) -> None:
    data = clients(kind)
    assert (data.num_clients, data.sizes.tolist()) == (3, [10, 30, 1])
    assert [data.size(client, "val") for client in range(3)] == [2, 1, 0]
    assert data.size(0, "test") == 0


class Untouched(ClientRows):
    """Notes who was asked for."""

    def __init__(self) -> None:
        self.sizes = np.array([2, 0, 1])
        self.asked: list[int] = []

    def of(self, client: int) -> np.ndarray:
        self.asked.append(client)
        return np.arange(client, client + self.sizes[client])


def test_rows_are_made_when_a_client_is_asked_for() -> None:
    rows = Untouched()
    data = ClientData(TensorReader(examples()), {"train": rows})
    assert data.sizes.tolist() == data.split_sizes("train").tolist() == [2, 0, 1]
    assert data.split_sizes("val").tolist() == [0, 0, 0]
    assert (data.num_clients, data.size(2), len(data.rows(1))) == (3, 1, 0)
    assert rows.asked == []
    assert data.rows(2).tolist() == [2]
    assert rows.asked == [2]
    with pytest.raises(ValueError, match="read-only"):
        data.sizes[0] = 1
    with pytest.raises(DataError, match="split: 'dev'"):
        data.split_sizes("dev")


def test_the_classes_of_a_client_are_those_of_its_training_examples(kind: type[readers.Reader]) -> None:
    classes = examples().targets % 3
    reader = kind(Examples(examples().inputs, classes))  # type: ignore[call-arg, arg-type]
    data = ClientData(reader, {"train": [np.array([4, 0, 3]), np.array([2, 5, 1, 8])]})
    assert data.classes(0) == (0, 1)
    assert data.classes(1) == (1, 2)
    assert clients(kind).classes(2) == (44,)
    with pytest.raises(DataError, match="client: 2 is not one of the 2"):
        data.classes(2)


def test_an_epoch_is_every_example_once_and_inputs_stay_with_targets(kind: type[readers.Reader]) -> None:
    batches = list(clients(kind).batches(1, 8, generator(0, "b")))
    assert [len(y) for _, y in batches] == [8, 8, 8, 6]
    targets = torch.cat([y for _, y in batches])
    assert targets.sort().values.tolist() == list(range(10, 40))
    assert targets.tolist() != list(range(10, 40))
    for x, y in batches:
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y.view(-1, 1, 1, 1).expand(-1, 3, 4, 4).float())


def test_order_is_that_of_the_generator(kind: type[readers.Reader]) -> None:
    data = clients(kind)
    expected = torch.arange(10, 40)[torch.randperm(30, generator=generator(7, "b"))]
    assert torch.equal(torch.cat([y for _, y in data.batches(1, 4, generator(7, "b"))]), expected)
    draws = generator(7, "b")
    first, second = (torch.cat([y for _, y in data.batches(1, 4, draws)]) for _ in range(2))
    assert not torch.equal(first, second)  # epochs differ


def test_balanced_draws_take_every_class_equally_often(kind: type[readers.Reader]) -> None:
    """Of 24, 4 and 2 examples a third each, and of a class each example equally often, by chi-squared."""
    classes = torch.tensor([0] * 24 + [2] * 4 + [3] * 2 + [1] * 20)
    reader = kind(Examples(torch.arange(50)[:, None], classes))  # type: ignore[call-arg, arg-type]
    data = ClientData(reader, {"train": [np.arange(30), np.empty(0, dtype=int)]})
    passes = [list(data.batches(0, 8, generator(0, "b", epoch), balanced=True)) for epoch in range(100)]
    assert all([len(targets) for _, targets in batches] == [8, 8, 8, 6] for batches in passes)
    drawn = np.bincount(torch.cat([x for batches in passes for x, _ in batches]).flatten(), minlength=50)
    expected = 1000 / np.array([24] * 24 + [4] * 4 + [2] * 2)
    assert ((drawn[:30] - expected) ** 2 / expected).sum() < 52.3  # its quantile 0.995, of 29 degrees of freedom
    assert not drawn[30:].any()
    again = list(data.batches(0, 8, generator(0, "b", 7), balanced=True))
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(again, passes[7], strict=True))
    assert list(data.batches(1, 8, generator(0, "b"), balanced=True)) == []


def test_without_shuffle_nothing_is_drawn(kind: type[readers.Reader]) -> None:
    draws = generator(0, "b")
    before = draws.get_state()
    batches = clients(kind).batches(0, 4, draws, split="val", shuffle=False, augment=False)
    assert torch.cat([y for _, y in batches]).tolist() == [40, 41]
    assert torch.equal(before, draws.get_state())


def test_draws_happen_before_the_first_batch_is_asked_for(kind: type[readers.Reader]) -> None:
    draws = generator(0, "b")
    before = draws.get_state()
    clients(kind).batches(0, 4, draws)
    assert not torch.equal(before, draws.get_state())


def test_drop_last(kind: type[readers.Reader]) -> None:
    data = clients(kind)
    assert [len(y) for _, y in data.batches(1, 8, generator(0, "b"), drop_last=True)] == [8, 8, 8]
    assert [len(y) for _, y in data.batches(2, 8, generator(0, "b"), drop_last=True)] == [1]


def test_an_empty_split_has_no_batches(kind: type[readers.Reader]) -> None:
    data = clients(kind)
    assert list(data.batches(2, 8, generator(0, "b"), split="val")) == []
    assert list(data.batches(0, 8, generator(0, "b"), split="test")) == []


@pytest.mark.parametrize(("client", "split"), [(3, "train"), (-1, "train"), (0, "training")])
def test_refuses(kind: type[readers.Reader], client: int, split: str) -> None:
    with pytest.raises(DataError, match=f"{'split' if client == 0 else 'client'}: "):
        clients(kind).batches(client, 8, generator(0, "b"), split=split)


def test_augmentation_follows_the_generator_and_can_be_left_out(kind: type[readers.Reader]) -> None:
    data = clients(kind, augmentation=[RandomCrop(2), RandomFlip()])

    def epoch(seed: int, augment: bool = True) -> torch.Tensor:
        return torch.cat([x for x, _ in data.batches(1, 8, generator(seed, "b"), augment=augment)])

    assert torch.equal(epoch(0), epoch(0))
    assert not torch.equal(epoch(0), epoch(0, augment=False))
    assert (epoch(0) == 0).any()  # black padding, before normalisation
    plain = torch.cat([x for x, _ in clients(kind).batches(1, 8, generator(0, "b"))])
    assert torch.equal(epoch(0, augment=False), plain)
    unchanged = torch.cat([x for x, _ in data.batches(1, 8, generator(0, "b"), augment=False)])
    assert torch.equal(unchanged, plain)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(clients(TensorReader).batches(1, 4, generator(0, "b")))
    monkeypatch.setattr(readers, "CHUNK_BYTES", 4 * 48 * 9)  # nine examples: two batches of four
    parts = list(clients(TensorReader).batches(1, 4, generator(0, "b")))
    assert len(whole) == len(parts) == 8
    for (x, y), (u, v) in zip(whole, parts, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)


def test_global_generators_stay_where_they_are(kind: type[readers.Reader]) -> None:
    state = torch.get_rng_state()
    list(clients(kind, augmentation=[RandomFlip()]).batches(1, 8, generator(0, "b")))
    assert torch.equal(state, torch.get_rng_state())


def test_batches_do_not_alias_the_data_set() -> None:
    source = Examples(torch.ones(4, 2), torch.arange(4))
    data = ClientData(TensorReader(source), {"train": [np.arange(4)]})
    for x, _ in data.batches(0, 4, generator(0, "b")):
        x.zero_()
    assert (source.inputs == 1).all()


def test_workers_give_the_same_batches_and_one_pass_at_a_time() -> None:
    data = clients(LoaderReader, num_workers=1)
    alone = clients(LoaderReader)
    for client, seed in ((1, 0), (0, 1)):
        batches = zip(
            data.batches(client, 8, generator(seed, "b")),
            alone.batches(client, 8, generator(seed, "b")),
            strict=True,
        )
        for (x, y), (u, v) in batches:
            assert torch.equal(x, u)
            assert torch.equal(y, v)
    abandoned = data.batches(1, 4, generator(0, "b"))
    next(abandoned)
    fresh = [y for _, y in data.batches(0, 4, generator(1, "b"))]
    expected = [y for _, y in alone.batches(0, 4, generator(1, "b"))]
    assert all(torch.equal(a, b) for a, b in itertools.zip_longest(fresh, expected))
    with pytest.raises(RuntimeError, match="new pass"):
        next(abandoned)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_move_to_gives_the_same_order_on_a_gpu(kind: type[readers.Reader]) -> None:
    here, there = clients(kind), clients(kind, augmentation=[RandomCrop(1), RandomFlip()])
    there.move_to("cuda")
    plain = zip(
        here.batches(1, 8, generator(0, "b")),
        there.batches(1, 8, generator(0, "b"), augment=False),
        strict=True,
    )
    for (x, y), (u, v) in plain:
        assert u.device.type == v.device.type == "cuda"
        torch.testing.assert_close(x, u.cpu())
        assert torch.equal(y, v.cpu())
    first, again = (torch.cat([x for x, _ in there.batches(1, 8, generator(0, "b"))]) for _ in range(2))
    assert torch.equal(first, again)


class TestExamples:
    @pytest.mark.parametrize(
        ("targets", "columns"),
        [
            (torch.zeros(2, dtype=torch.int64), {}),
            (torch.zeros(3, dtype=torch.int64), {"a": [1]}),
        ],
    )
    def test_refuses(self, targets: torch.Tensor, columns: dict[str, list[int]]) -> None:
        with pytest.raises(DataError):
            Examples(torch.zeros(3), targets, {name: np.array(values) for name, values in columns.items()})


class TestLabelCounts:
    def clients(self) -> ClientData:
        examples = Examples(torch.zeros(7, 1), torch.tensor([0, 2, 2, 1, 0, 2, 1]))
        rows = {
            "train": [np.array([0, 1, 2]), np.array([4])],
            "val": [np.array([3]), np.array([], dtype=int)],
            "test": [np.array([5]), np.array([6])],
        }
        return ClientData(TensorReader(examples), rows)

    def test_counts_training_and_validation_examples(self) -> None:
        counts = self.clients().label_counts(0, 4)
        assert counts.dtype == np.int64
        assert counts.tolist() == [1, 1, 2, 0]
        assert self.clients().label_counts(1, 4).tolist() == [1, 0, 0, 0]

    def test_counts_the_splits_that_are_asked_for(self) -> None:
        data = self.clients()
        assert data.label_counts(0, 3, ("train",)).tolist() == [1, 0, 2]
        assert data.label_counts(0, 3, ("train", "val", "test")).tolist() == [1, 1, 3]
        assert data.label_counts(1, 3, ("val",)).tolist() == [0, 0, 0]

    def test_refuses(self) -> None:
        with pytest.raises(DataError, match=r"num_classes: 2 for classes 0\.\.2 of client 0; give at least 3"):
            self.clients().label_counts(0, 2)
        with pytest.raises(DataError, match="client: 2 is not one of the 2"):
            self.clients().label_counts(2, 3)
        with pytest.raises(DataError, match="split: 'dev'"):
            self.clients().label_counts(0, 3, ("dev",))
