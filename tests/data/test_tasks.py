"""Losses and metrics of tasks, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lit_fednas.data import (
    IID,
    ArraySource,
    ByColumn,
    Classification,
    Dirichlet,
    Examples,
    FederatedDataModule,
    MultiLabel,
    NextToken,
    Regression,
    Task,
)
from lit_fednas.errors import ConfigError, DataError

LOG3 = math.log(3.0)
TOKENS = torch.tensor([[1, 2, 0], [2, 0, 0]])  # 0 is the padding
# softmax of (-inf, log 3, 0) is (0, 3/4, 1/4): token 1 is always predicted
GUESS_ONE = torch.tensor([-torch.inf, LOG3, 0.0]).expand(2, 3, 3)


def test_next_tokens_count_and_padding_does_not() -> None:
    task = NextToken(3, ignored=0)
    values = task.values(GUESS_ONE, TOKENS)
    assert values["accuracy"].tolist() == [1.0, 0.0]
    assert values["loss"].tolist() == pytest.approx([math.log(4 / 3) + math.log(4), math.log(4)])
    assert task.count(TOKENS).tolist() == [2, 1]
    mean = (math.log(4 / 3) + 2 * math.log(4)) / 3
    assert float(task.loss(GUESS_ONE, TOKENS)) == pytest.approx(mean)
    derived = task.derived({"accuracy": 1 / 3, "loss": mean})
    assert derived["perplexity"] == pytest.approx((4 / 3 * 4 * 4) ** (1 / 3))  # the geometric mean of 1 / p
    assert task.metric == "perplexity"
    assert not task.metrics["perplexity"]


def test_a_batch_of_padding_has_no_loss() -> None:
    outputs = torch.zeros(2, 3, 3, requires_grad=True)
    loss = NextToken(3, ignored=0).loss(outputs, torch.zeros_like(TOKENS), label_smoothing=0.1)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert outputs.grad is not None
    assert not outputs.grad.any()


def test_labels_by_hand() -> None:
    outputs, targets = torch.tensor([[LOG3, -LOG3], [0.0, LOG3]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    values = MultiLabel(2).values(outputs, targets)
    assert values["loss"].tolist() == pytest.approx(
        [(math.log(4 / 3) + math.log(4)) / 2, (math.log(2) + math.log(4 / 3)) / 2]
    )
    assert values["accuracy"].tolist() == [0.5, 1.0]
    assert float(MultiLabel(2).loss(outputs, targets)) == pytest.approx(float(values["loss"].mean()))


def test_numbers_by_hand() -> None:
    outputs, targets = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    values = Regression(2).values(outputs, targets)
    assert (values["mae"].tolist(), values["loss"].tolist()) == ([2.0, 1.0], [5.0, 2.0])
    assert Regression(2).derived({"mae": 1.5, "loss": 3.5}) == {"rmse": 3.5**0.5, "mae": 1.5, "loss": 3.5}


@pytest.mark.parametrize(
    ("task", "outputs"),
    [(Classification(4), (4,)), (NextToken(4, ignored=0), (5, 4)), (MultiLabel(3), (3,)), (Regression(2), (2,))],
    ids=lambda value: type(value).__name__ if isinstance(value, Task) else None,
)
def test_the_parts_of_a_task_agree(task: Task, outputs: tuple[int, ...]) -> None:
    """The loss of a batch is the mean of the values; metrics and directions name the same figures."""
    targets = task.example_targets(6, (5,), torch.device("cpu"))
    task.check(targets)
    logits = torch.randn(6, *outputs, generator=torch.Generator().manual_seed(0))
    values = task.values(logits, targets)
    assert tuple(values) == task.averaged
    assert all(value.shape == (6,) for value in values.values())
    assert float(task.loss(logits, targets)) == pytest.approx(float(values["loss"].sum() / task.count(targets).sum()))
    means = {name: float(value.sum() / task.count(targets).sum()) for name, value in values.items()}
    assert set(task.derived(means)) == set(task.metrics)
    assert task.strata(targets).shape == (6,)


@pytest.mark.parametrize(
    ("task", "targets", "message"),
    [
        (Classification(2), torch.tensor([0, 2]), r"has targets 0..2; give targets from 0 to 1"),
        (NextToken(3, ignored=0), torch.tensor([[1, 0], [0, 0]]), "1 examples hold only padding; remove them"),
        (MultiLabel(2), torch.tensor([[0.0, 0.5]]), "give 0 or 1 for each"),
        (Regression(1), torch.tensor([[torch.nan]]), "NaN"),
    ],
)
def test_targets_of_another_task_are_refused(task: Task, targets: torch.Tensor, message: str) -> None:
    train = Examples(torch.zeros(len(targets), 2), targets)
    with pytest.raises(DataError, match=f"data.source: train .*{message}"):
        FederatedDataModule(ArraySource(train, task=task), IID(), num_clients=1).setup("fit")


def test_tokens_stay_whole_numbers_and_are_dealt_by_role() -> None:
    rows = torch.randint(1, 5, (40, 7), generator=torch.Generator().manual_seed(0))
    examples = Examples(rows[:, :-1], rows[:, 1:], {"role": np.repeat(["a", "b", "c", "d"], 10)})
    source = ArraySource(examples, task=NextToken(5, ignored=0))
    data = FederatedDataModule(source, ByColumn("role"), server_val=0.0)
    data.setup()
    assert (data.num_classes, data.strata, data.clients.num_clients) == (5, ("examples",), 4)
    for inputs, targets in data.clients.batches(2, 4, torch.Generator().manual_seed(0)):
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert data.clients.label_counts(1, 1).tolist() == [10]
    with pytest.raises(ConfigError, match=r"data.partitioner: Dirichlet deals out by class, .* use ByColumn or IID"):
        FederatedDataModule(source, Dirichlet(1.0), num_clients=2).setup()
    with pytest.raises(ConfigError, match=r"data.task.ignored: 3 is not a token; give one from 0 to 2"):
        NextToken(3, ignored=3)
