"""Runs of tasks other than one class per example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanAbsoluteError
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from lit_fednas.callbacks import DeployedAccuracy
from lit_fednas.data import (
    ArraySource,
    ByColumn,
    Examples,
    FederatedDataModule,
    MultiLabel,
    NextToken,
    Regression,
    Task,
)
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, EvaluationSettings, UniformCohort
from lit_fednas.objectives import CrossEntropy, MaskedCrossEntropy
from lit_fednas.search import Evaluator
from lit_fednas.supernets import ElasticTransformer, PlainNetwork
from tests.federation.tokens import LENGTH, PAD, VOCABULARY, by_hand, token_data, token_examples
from tests.support import assert_same, fit, linear_net, make_module, sgd, tiny_data, weights


def token_net(seed: int = 0) -> PlainNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))
    return PlainNetwork(network, (LENGTH,), VOCABULARY, torch.int64)


def metrics_of(supernet: PlainNetwork, examples: Examples) -> dict[str, float]:
    with torch.no_grad():
        return by_hand(supernet.eval()(examples.inputs), examples.targets)


def test_tokens_are_learned_and_measured_one_by_one() -> None:
    module = make_module(token_net(), client=ClientSettings(sgd(2.0), batch_size=8, epochs=2))
    before = metrics_of(module.supernet, token_examples(30, 1))
    trainer = fit(module, token_data(eval_batch_size=7), 6)
    after = metrics_of(module.supernet, token_examples(30, 1))
    for name, value in after.items():
        assert float(trainer.callback_metrics[f"val/largest/{name}"]) == pytest.approx(value, rel=1e-5)
    assert float(trainer.callback_metrics["val/mean/perplexity"]) == pytest.approx(after["perplexity"], rel=1e-5)
    assert after["perplexity"] < 1.2 < before["perplexity"]


def test_the_logged_loss_of_a_client_is_a_mean_over_its_tokens() -> None:
    """Steps of zero length leave the weights, so that it can be computed afterwards."""
    settings = ClientSettings(sgd(0.0), batch_size=5)
    module, data = make_module(token_net(), client=settings, cohort=UniformCohort(count=7)), token_data()
    trainer = fit(module, data, 1)
    examples, total = data.clients.reader.dataset, 0.0
    for client, size in enumerate(data.clients.sizes):
        rows = data.clients.rows(client)
        total += size * metrics_of(module.supernet, Examples(examples.inputs[rows], examples.targets[rows]))["loss"]
    assert float(trainer.callback_metrics["clients/loss"]) == pytest.approx(total / sum(data.clients.sizes), rel=1e-5)


@pytest.mark.parametrize("clients_per_fit", [2, 3])
def test_stacked_clients_learn_tokens_as_alone(clients_per_fit: int) -> None:
    runs = []
    for count in (1, clients_per_fit):
        settings = ClientSettings(sgd(1.0), batch_size=8, clients_per_fit=count)
        module = make_module(token_net(), client=settings)
        trainer = fit(module, token_data(), 3)
        runs.append((weights(module), float(trainer.callback_metrics["clients/loss"])))
    assert_same(runs[0][0], runs[1][0], rtol=1e-4, atol=1e-5)
    assert runs[0][1] == pytest.approx(runs[1][1], rel=1e-5)


def test_clients_test_themselves_and_the_worst_has_the_highest_perplexity() -> None:
    deployed = DeployedAccuracy(split="val")
    settings = ClientSettings(sgd(1.0), batch_size=8, validate="received")
    module = make_module(token_net(), client=settings)
    trainer = fit(module, token_data(client_val=0.3), 2, callbacks=[deployed])
    assert float(trainer.callback_metrics["clients/perplexity"]) > 1
    perplexities = [row["perplexity"] for row in deployed.rows]
    assert len(set(perplexities)) > 1
    assert float(trainer.callback_metrics["deployed/worst"]) == pytest.approx(max(perplexities))


def test_a_search_compares_tokens() -> None:
    supernet, examples = token_net(), token_examples(30, 1)
    batches = list(zip(examples.inputs.split(7), examples.targets.split(7), strict=True))
    found = Evaluator(supernet, batches, task=NextToken(VOCABULARY, PAD))("whole")
    assert found == pytest.approx(metrics_of(supernet, examples), rel=1e-5)
    assert list(found) == ["perplexity", "accuracy", "loss"]


def float_data(task: Task, targets: torch.Tensor, inputs: torch.Tensor) -> FederatedDataModule:
    site = {"site": np.arange(len(inputs)) % 4}
    source = ArraySource(Examples(inputs, targets, site), Examples(inputs, targets, site), task=task)
    return FederatedDataModule(source, ByColumn("site"), seed=0)


@pytest.mark.parametrize("task", [Regression(2), MultiLabel(2)], ids=lambda task: type(task).__name__)
def test_tables_with_numbers_and_labels(task: Task) -> None:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 3, generator=draws)
    truth = inputs @ torch.tensor([[1.0, 0.0], [-2.0, 1.0], [0.0, 3.0]])
    targets = truth if isinstance(task, Regression) else (truth > 0).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make_module(PlainNetwork(nn.Linear(3, 2), (3,), 2), client=ClientSettings(sgd(0.1), batch_size=8))
    trainer = fit(module, float_data(task, targets, inputs), 20)
    with torch.no_grad():
        outputs = module.supernet.eval()(inputs)
    if isinstance(task, Regression):
        rmse = float((outputs - targets).square().mean().sqrt())
        assert float(trainer.callback_metrics["val/mean/rmse"]) == pytest.approx(rmse, rel=1e-4)
        assert rmse < 0.05
    else:
        right = float(((outputs > 0) == (targets > 0.5)).double().mean())
        assert float(trainer.callback_metrics["val/mean/accuracy"]) == pytest.approx(right)
        assert right > 0.8


def test_further_metrics_are_of_tokens_that_count() -> None:
    """Macro F1 by hand: the mean over the tokens that occur of 2 hits / (times named + times meant)."""
    module = make_module(token_net(), metrics={"f1": MulticlassF1Score(VOCABULARY, average="macro")})
    trainer = fit(module, token_data(eval_batch_size=7), 2)
    examples = token_examples(30, 1)
    with torch.no_grad():
        named = module.supernet.eval()(examples.inputs).argmax(-1)[examples.targets != PAD]
    meant = examples.targets[examples.targets != PAD]
    scores = [
        2 * int(((named == token) & (meant == token)).sum()) / int((named == token).sum() + (meant == token).sum())
        for token in sorted({*named.tolist(), *meant.tolist()})
    ]
    assert float(trainer.callback_metrics["val/largest/f1"]) == pytest.approx(np.mean(scores), rel=1e-5)


def test_further_metrics_of_torchmetrics() -> None:
    f1 = MulticlassF1Score(num_classes=4, average="macro")
    module = make_module(linear_net(), metrics={"f1": f1, "top2": MulticlassAccuracy(4, top_k=2, average="micro")})
    data = tiny_data()
    trainer = fit(module, data, 2)
    inputs, targets = next(iter(data.val_dataloader()))
    with torch.no_grad():
        expected = f1(module.supernet.eval()(inputs), targets)
    assert float(trainer.callback_metrics["val/largest/f1"]) == pytest.approx(float(expected))
    assert "val/largest/top2" in module.validation_metrics


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"objective": MaskedCrossEntropy()}, "MaskedCrossEntropy needs one class per example, .* NextToken"),
        ({"supernet": PlainNetwork(nn.Linear(6, 5), (6,), 5)}, "reads torch.float32, and the data are torch.int64"),
        (
            {"client": ClientSettings(class_balanced=True)},
            "client.class_balanced: true needs one class per example, and the data's task is NextToken",
        ),
        ({"metrics": {"accuracy": MulticlassAccuracy(5)}}, "model.metrics: 'accuracy' is a metric of every"),
        (
            {"metrics": {"mae": MeanAbsoluteError()}},
            r"model.metrics.mae: MeanAbsoluteError .* \[12, 5\] and .* \[12\] ",
        ),
        (
            {"supernet": ElasticTransformer((LENGTH,), VOCABULARY, pooled=True)},
            r"ElasticTransformer returns \[5\] of an example, and the data's task NextToken wants \[6, 5\]; choose",
        ),
    ],
)
def test_what_does_not_suit_tokens_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit(make_module(settings.pop("supernet", token_net()), **settings), token_data(), 1)


def test_what_needs_classes_refuses_numbers() -> None:
    inputs = torch.zeros(8, 3)
    net = PlainNetwork(nn.Linear(3, 2), (3,), 2)
    data = float_data(Regression(2), torch.zeros(8, 2), inputs)
    with pytest.raises(ConfigError, match="CrossEntropy needs classes, and the data's task is Regression; use TaskL"):
        fit(make_module(net, objective=CrossEntropy()), data, 1)
    with pytest.raises(ConfigError, match=r"evaluation.top_k: 2 needs classes, which a Regression has not"):
        fit(make_module(net, evaluation=EvaluationSettings(["largest"], top_k=2)), data, 1)
