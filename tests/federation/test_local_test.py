"""A client's test of what it trains, on its own validation split."""

from __future__ import annotations

import pytest
import torch

from lit_fednas.callbacks import RunRecorder
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, FederatedCallback, UniformCohort
from lit_fednas.rng import generator
from tests.support import assert_same, fit, linear_net, make_module, sgd, tiny_data, weights


class Look(FederatedCallback):
    """What the clients received and sent, and what was said of their tests."""

    def __init__(self) -> None:
        self.sent: dict = {}
        self.updates: dict = {}
        self.results: list = []

    def on_cohort_start(self, trainer, module, tasks):
        self.sent = weights(module)

    def on_client_update(self, trainer, module, update):
        self.updates[update.task.client] = {name: tensor.clone() for name, tensor in update.weights.items()}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.results = batch.results
        self.metric = trainer.callback_metrics.get("clients/accuracy")


def looked(
    validate: str | None, net=lambda: linear_net(1), source=None, **settings
) -> tuple[Look, object, object]:
    look = Look()
    source = source or tiny_data(client_val=0.3)
    client = ClientSettings(sgd(0.2), batch_size=8, epochs=3, validate=validate, **settings)
    module = make_module(net(), client=client, cohort=UniformCohort(count=4))
    fit(module, source, 1, callbacks=[look, RunRecorder()])
    return look, module, source


def by_hand(weight, bias, source, client: int) -> tuple[float, int]:
    """The share of right answers of a linear layer."""
    batches = source.clients.batches(client, 3, generator(0, "x"), split="val", shuffle=False, augment=False)
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    right = ((inputs.flatten(1) @ weight.T + bias).argmax(1) == targets).sum()
    return float(right) / len(targets), len(targets)


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("validate", ["trained", "received"])
def test_accuracy_on_the_clients_own_validation_split(validate: str, together: int) -> None:
    look, _, source = looked(validate, together=together)
    right = total = 0.0
    for result in look.results:
        client = result.task.client
        if validate == "trained":
            weight, bias = (look.updates[client][name] for name in ("1.weight", "1.bias"))
        else:
            weight, bias = (look.sent[f"network.{name}"] for name in ("1.weight", "1.bias"))
        accuracy, count = by_hand(weight, bias, source, client)
        assert (result.accuracy, result.num_tested) == (pytest.approx(accuracy), count)
        assert count == source.clients.size(client, "val") > 0
        right, total = right + accuracy * count, total + count
    assert float(look.metric) == pytest.approx(right / total)
    assert len({result.accuracy for result in look.results}) > 1


def test_testing_changes_nothing_else() -> None:
    modules = [looked(validate)[1] for validate in (None, "trained", "received")]
    for module in modules[1:]:
        assert_same(weights(module), weights(modules[0]))


def test_without_it_nothing_is_said() -> None:
    look, _, _ = looked(None)
    assert {result.num_tested for result in look.results} == {0}
    assert look.metric is None


def test_it_needs_validation_data() -> None:
    with pytest.raises(ConfigError, match="client_val"):
        looked("trained", source=tiny_data())


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="validate"):
        ClientSettings(validate="before")
