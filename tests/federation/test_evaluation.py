"""Metrics of subnets, their weights and their batch-norm statistics."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from lit_fednas.assignment import TrackingSandwich
from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.data import Classification
from lit_fednas.federation import EvaluationSettings
from lit_fednas.federation.evaluation import SubnetMetrics, batches_of_clients, recalibrated
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import BatchNorm, ElasticResNet, GroupNorm
from tests.support import (
    Noted,
    accuracy_and_loss,
    assert_same,
    fit,
    linear_net,
    make_module,
    make_trainer,
    refusals,
    tiny_data,
    tiny_examples,
    tiny_supernet,
    weights,
)

# ---- metrics ------------------------------------------------------------------------------------------------


def computed(names, classes, *batches, **settings):
    metrics = SubnetMetrics(names, Classification(classes), **settings)
    for batch in batches:
        metrics.update(*batch)
    return {name: float(value) for name, value in metrics.compute().items()}


def test_metrics_by_hand_with_unequal_batches():
    """The loss is a mean over the four examples, not over the two batches."""
    # softmax of (log 3, 0) is (3/4, 1/4)
    likely, unlikely = [math.log(3.0), 0.0], [0.0, math.log(3.0)]
    metrics = computed(
        ["a", "b"],
        2,
        (0, torch.tensor([likely, likely, unlikely]), torch.tensor([0, 0, 0])),
        (0, torch.tensor([likely]), torch.tensor([1])),
        (1, torch.tensor([unlikely, unlikely]), torch.tensor([1, 1])),
    )
    loss = (2 * math.log(4 / 3) + 2 * math.log(4)) / 4
    assert metrics == pytest.approx({"a/accuracy": 2 / 4, "a/loss": loss, "b/accuracy": 1.0, "b/loss": math.log(4 / 3)})


def test_losses_in_half_precision():
    far = torch.tensor([[300.0, 0.0]], dtype=torch.bfloat16)
    assert computed(["a"], 2, (0, far, torch.tensor([1])))["a/loss"] == pytest.approx(300.0)


def whole(network, examples):
    """Returns accuracy and loss of all examples in one batch."""
    return accuracy_and_loss(network, examples.inputs.float() / 255, examples.targets)


def test_a_fits_validation_and_test_equal_one_pass_by_hand():
    data, module = tiny_data(eval_batch_size=7), make_module(linear_net())
    trainer = fit(module, data, 2)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    metrics |= trainer.test(module, datamodule=data)[0]
    for split, seed in (("val", 1), ("test", 2)):
        accuracy, loss = whole(module.supernet, tiny_examples(40, seed))
        assert metrics[f"{split}/largest/accuracy"] == pytest.approx(accuracy)
        assert metrics[f"{split}/largest/loss"] == pytest.approx(loss, rel=1e-5)


def test_validate_after_a_fit_repeats_its_last_validation():
    evaluation = EvaluationSettings(["smallest", "d: [0,1], e: 0.25", "largest"], recalibrate_batches=3)
    module = make_module(assignment=TrackingSandwich(), evaluation=evaluation)
    data = tiny_data(eval_batch_size=16)
    trainer = fit(module, data, 3)
    during = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
    assert len(during) == 7
    accuracies = [during[f"val/{name}/accuracy"] for name in ("smallest", "d01-e0.25", "largest")]
    assert during["val/mean/accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert trainer.validate(module, datamodule=data)[0] == during
    fresh = make_trainer()  # another trainer, the same weights
    assert fresh.validate(module, datamodule=tiny_data(eval_batch_size=16))[0] == during
    first = fresh.test(module, datamodule=data)[0]
    assert set(first) == {name.replace("val/", "test/") for name in during}
    assert fresh.test(module, datamodule=data)[0] == first


def test_clients_are_evaluated_together_by_hand():
    assert batches_of_clients({0: 2, 1: 2, 2: 1, 3: 5, 4: 0, 5: 1}, 4) == [[0, 1], [2], [3], [5]]


# ---- subnets ------------------------------------------------------------------------------------------------


def test_names_and_labels():
    space = tiny_supernet().space
    texts = ["smallest", "tiny = d: [0,0], e: 0.25", "d: [0,1], e: 0.5", "d: 1, e: [0.25,0.25,0.5,0.5]", " a=largest"]
    archs = EvaluationSettings(texts).named(tiny_supernet())
    assert list(archs) == ["smallest", "tiny", "d01-e0.5", "d1-e0.25_0.25_0.5_0.5", "a"]
    assert archs["smallest"] == archs["tiny"] == space.smallest
    assert archs["a"] == space.largest
    assert archs["d01-e0.5"] == space.parse("d: [0,1], e: 0.5")


test_invalid_settings_are_refused = refusals(
    (["largest", "largest"], r"evaluation\.subnets: two are named"),
    (["mean = largest"], "choose another name"),
    (["huge"], "architecture"),
    call=lambda settings: EvaluationSettings(
        **(settings if isinstance(settings, dict) else {"subnets": settings})
    ).named(tiny_supernet()),
)


def test_default_subnets():
    """SuperFed has the nine of Table 4 (depths and expand ratios), other spaces their bounds."""
    table_4 = "0000 0.1, 0001 0.14, 0101 0.14, 0111 0.14, 1111 0.18, 1112 0.22, 1212 0.22, 1222 0.22, 2222 0.25"
    with torch.device("meta"):
        supernet = ElasticResNet(stem_width=8, divisor=1)
    archs = EvaluationSettings().named(supernet)
    assert [f"{''.join(map(str, arch.depths))} {min(arch.ratios)}" for arch in archs.values()] == table_4.split(", ")
    assert all(len(set(arch.ratios)) == 1 for arch in archs.values())
    assert list(archs)[2] == "d0101-e0.14"
    assert (archs["d0000-e0.1"], archs["d2222-e0.25"]) == (supernet.space.smallest, supernet.space.largest)
    assert list(EvaluationSettings().named(tiny_supernet())) == ["smallest", "largest"]
    assert EvaluationSettings().named(linear_net()) == {"largest": "whole"}


# ---- recalibration ------------------------------------------------------------------------------------------


def by_hand(first, second, batches):
    """Returns means over batches of each batch's mean and (unbiased) variance, before two consecutive batch norms."""
    statistics = []
    with torch.no_grad():
        for x in batches:
            h = x @ first.weight.T + first.bias
            normal = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
            g = normal @ second.weight.T + second.bias
            statistics.append((h.mean(0), h.var(0), g.mean(0), g.var(0)))
    return [torch.stack(column).mean(0) for column in zip(*statistics, strict=True)]


@pytest.mark.parametrize(("running", "affine"), [(True, True), (False, False)])
def test_statistics_are_the_mean_over_batches(running, affine):
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(size, affine=affine, track_running_stats=running) for size in (3, 2)]
    network = nn.Sequential(nn.Linear(5, 3), norms[0], nn.Linear(3, 2), norms[1])
    batches = [3 * torch.randn(size, 5) + 1 for size in (4, 7, 2)]
    network(batches[0])  # earlier running statistics do not matter
    expected = by_hand(network[0], network[2], batches)
    result = recalibrated(copy.deepcopy(network), batches)
    assert not result.training
    got = [result[1].running_mean, result[1].running_var, result[3].running_mean, result[3].running_var]
    for actual, wanted_tensor in zip(got, expected, strict=True):
        torch.testing.assert_close(actual, wanted_tensor, rtol=1e-4, atol=1e-5)
    x = torch.randn(3, 5)
    with torch.no_grad():  # an example's output no longer depends on its batch
        torch.testing.assert_close(result(x)[:1], result(x[:1]))
        h = (network[0](x) - expected[0]) / (expected[1] + 1e-5).sqrt()
        out = (network[2](h) - expected[2]) / (expected[3] + 1e-5).sqrt()
        torch.testing.assert_close(result(x), out, rtol=1e-3, atol=1e-4)


def metrics_of_rounds():
    metrics = lambda trainer, module: {name: float(value) for name, value in trainer.callback_metrics.items()}  # noqa: E731
    return Noted("on_train_epoch_end", metrics)


def recalibrating_run(batches, norm=BatchNorm()):
    metrics = metrics_of_rounds()
    evaluation = EvaluationSettings(["smallest", "largest"], recalibrate_batches=batches)
    module = make_module(tiny_supernet(norm=norm), TrackingSandwich(), evaluation=evaluation)
    fit(module, tiny_data(), 2, callbacks=[metrics])
    return metrics.all, weights(module), module


def test_recalibration_changes_only_metrics():
    norm = BatchNorm(affine=False, running_statistics=False)
    without, trained, _ = recalibrating_run(0, norm)
    first, same, _ = recalibrating_run(2, norm)
    assert_same(trained, same)
    for plain, recalibrated_metrics in zip(without, first, strict=True):
        assert plain["clients/loss"] == recalibrated_metrics["clients/loss"]
        assert plain["val/largest/loss"] != recalibrated_metrics["val/largest/loss"]


@pytest.mark.parametrize("norm", [GroupNorm(2), BatchNorm(True, True), BatchNorm(False, False)], ids=str)
def test_metrics_do_not_depend_on_the_batch_size(norm):
    _, _, module = recalibrating_run(None, norm)

    def validated(batch_size, settings=module.evaluation):
        module.evaluation = settings
        (values,) = make_trainer().validate(module, tiny_data(eval_batch_size=batch_size))
        return values

    alone = validated(1)
    assert validated(7) == pytest.approx(alone, rel=1e-4)
    misled = validated(7, EvaluationSettings(["smallest", "largest"], recalibrate_batches=0))
    depends = isinstance(norm, BatchNorm) and not norm.running_statistics
    assert (misled != pytest.approx(alone, rel=1e-4)) == depends


def test_a_runs_recalibration_by_hand():
    """First one batch of each client, in an order drawn from the seed, without augmentation; then a second one."""
    metrics, _, module = recalibrating_run(8)
    data = tiny_data()
    data.setup("fit")
    order = map(int, numpy_generator(0, "recalibration").permutation(6))
    batches_of_clients = [data.clients.batches(client, 8, generator(0, "recalibration", client)) for client in order]
    batches = [inputs for turn in zip(*batches_of_clients, strict=False) for inputs, _ in turn]
    for name, arch in module.subnets.items():
        network = recalibrated(module.supernet.subnet(arch), batches[:8])
        accuracy, loss = whole(network, tiny_examples(40, 1))
        assert metrics[-1][f"val/{name}/accuracy"] == pytest.approx(accuracy)
        assert metrics[-1][f"val/{name}/loss"] == pytest.approx(loss, rel=1e-4)


def test_each_checkpoint_is_recalibrated(tmp_path):
    module = make_module(evaluation=EvaluationSettings(["largest"], recalibrate_batches=2))
    best, metrics = RoundCheckpoint("val/largest/accuracy", save_top_k=-1, dirpath=str(tmp_path)), metrics_of_rounds()
    trainer = fit(module, tiny_data(), 3, callbacks=[best, metrics], enable_checkpointing=True)
    for round in (0, 2, 1):
        path = str(tmp_path / f"round={round}.ckpt")
        values = trainer.validate(module, datamodule=tiny_data(), ckpt_path=path)[0]
        assert values["val/largest/loss"] == metrics.all[round]["val/largest/loss"]
