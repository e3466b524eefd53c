"""The adaptive server optimizers against Algorithm 2 of Reddi et al. (2021), in numpy."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lit_fednas.aggregation import MaxNet, OverlapAverage
from lit_fednas.assignment import Assignment, FixedArchitecture
from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FedAdagrad, FedAdam, FederatedLightningModule, FedYogi
from lit_fednas.federation.server_optimizers import resting
from tests.support import Noted, fit, linear_net, make_module, tiny_data, tiny_supernet, weights

START = np.array([1.0, -2.0, 0.5, 0.0])
DELTAS = [  # Delta_t of three rounds: the aggregate minus the present weights
    np.array([0.5, -0.25, 0.0, 1e-3]),
    np.array([-0.1, -0.5, 0.2, -1e-3]),
    np.array([0.01, 0.02, -2.0, 0.0]),
]
LR, B1, B2, TAU = 0.1, 0.9, 0.99, 1e-2

SECOND_MOMENTS: dict[type, Callable] = {
    FedAdagrad: lambda v, delta: v + delta**2,
    FedYogi: lambda v, delta: v - (1 - B2) * delta**2 * np.sign(v - delta**2),
    FedAdam: lambda v, delta: B2 * v + (1 - B2) * delta**2,
}


@pytest.mark.parametrize("kind", SECOND_MOMENTS)
@pytest.mark.parametrize("beta1", [0.0, B1])
def test_three_steps_by_hand(kind: type, beta1: float) -> None:
    parameter, state = nn.Parameter(torch.tensor(START)), None
    x, m, v = START.copy(), np.zeros(4), np.full(4, TAU**2)
    for delta in DELTAS:
        m = beta1 * m + (1 - beta1) * delta
        v = SECOND_MOMENTS[kind](v, delta)
        x = x + LR * m / (np.sqrt(v) + TAU)
        optimizer = kind([parameter], lr=LR, beta1=beta1, beta2=B2, tau=TAU)
        if state is not None:
            optimizer.load_state_dict(state)
        parameter.grad = torch.tensor(-delta)  # the pseudo-gradient is the present weights minus the aggregate
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=1e-12)


class Scheduled(FederatedLightningModule):
    """Halves the server's learning rate after every round."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda round: 0.5**round)]

    def on_train_epoch_end(self):
        self.lr_schedulers().step()


OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.8, nesterov=True),
    "second moment": lambda params: FedAdam(params, lr=0.1, beta2=0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_element_rests_in_rounds_that_do_not_train_it(name: str) -> None:
    """Each element moves as if it had its own optimizer, which steps only in rounds that train the element."""
    gradients = torch.tensor([[0.5, 0.25], [0.3, -0.4], [-0.2, 0.7]])
    trained = torch.tensor([[True, True], [True, False], [True, True]])
    pair = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = OPTIMIZERS[name]([pair])
    for gradient, mask in zip(gradients, trained, strict=True):
        pair.grad = gradient * mask
        with resting(nn.ParameterDict({"both": pair}), {"both": ~mask}, optimizer):
            optimizer.step()
    for element, start in enumerate((1.0, -2.0)):
        single = nn.Parameter(torch.tensor([start]))
        optimizer = OPTIMIZERS[name]([single])
        for gradient in gradients[trained[:, element], element]:
            single.grad = gradient.reshape(1)
            optimizer.step()
        torch.testing.assert_close(pair[element].detach(), single[0].detach())


def test_an_untrained_element_moves_if_a_callback_mixes_in_values() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([0.5, 0.0])
    optimizer = OPTIMIZERS["momentum"]([parameter])
    optimizer.state[parameter]["momentum_buffer"] = torch.ones(2)
    with resting(nn.ParameterDict({"single": parameter}), {"single": torch.tensor(True)}, optimizer):
        optimizer.step()
    # 0.8 * 1 + 0.5 = 1.3 in the buffer, and a step of 0.5 + 0.8 * 1.3
    torch.testing.assert_close(parameter.detach(), torch.tensor([-1.54, 0.0]))


class LargestFirst(Assignment):
    """All clients train the largest subnet in the first round, and the smallest in later rounds."""

    def plan(self, round):
        arch = round.space.smallest if round.number else round.space.largest
        return [round.task(client, arch) for client in round.cohort]


@pytest.mark.parametrize("aggregation", [OverlapAverage(), OverlapAverage(trim=0.2), MaxNet()])
def test_untrained_parts_of_a_supernet_stay(aggregation) -> None:
    states = []
    module = make_module(
        tiny_supernet(), assignment=LargestFirst(), aggregation=aggregation, server_optimizer=OPTIMIZERS["momentum"]
    )
    recorder = Noted("on_train_epoch_end", lambda trainer, module: states.append(weights(module)))
    fit(module, tiny_data(), 3, callbacks=[recorder])
    inner = {region.name: region for region in module.supernet.regions(module.supernet.space.smallest).values()}
    num_moved = 0
    for name, present in states[2].items():
        outside = torch.ones_like(present, dtype=torch.bool)
        if name in inner:
            outside[... if inner[name].index is None else inner[name].index] = False
            num_moved += bool((present != states[0][name]).any())
        assert torch.equal(present[outside], states[0][name][outside])
    assert num_moved > 4


def trained(folder: Path, rounds: int, server_optimizer: Callable, scheduled: bool = False, resumed: bool = False):
    """Returns the weights after some rounds, and the optimizer's group of parameters."""
    module = make_module(linear_net(), server_optimizer=server_optimizer)
    module.__class__ = Scheduled if scheduled else FederatedLightningModule
    settings = {"enable_checkpointing": True, "default_root_dir": str(folder), "callbacks": [RoundCheckpoint()]}
    last = folder / "checkpoints" / "last.ckpt" if resumed else None
    trainer = fit(module, tiny_data(), rounds, last, **settings)
    return torch.cat([tensor.flatten() for tensor in weights(module).values()]), trainer.optimizers[0].param_groups[0]


def sgd_with(lr: float, momentum: float = 0.0) -> Callable:
    return lambda params: torch.optim.SGD(params, lr=lr, momentum=momentum)


def test_changed_hyperparameters_apply_on_resume_and_the_momentum_stays(tmp_path: Path) -> None:
    """Clients train equally in round 2; with the same momentum, a tenth of the rate is a tenth of the step."""
    after_first, _ = trained(tmp_path, 1, sgd_with(1.0, 0.5))
    straight, _ = trained(tmp_path / "straight", 2, sgd_with(1.0, 0.5))
    resumed, group = trained(tmp_path, 2, sgd_with(0.1, 0.5), resumed=True)
    assert (group["lr"], group["momentum"]) == (0.1, 0.5)
    torch.testing.assert_close(resumed, after_first + 0.1 * (straight - after_first))


def test_another_class_starts_with_an_empty_state_and_says_so(tmp_path: Path, caplog) -> None:
    """Adam's first step is its rate times g / (|g| + eps), with eps 1."""
    after_first, _ = trained(tmp_path, 1, sgd_with(1.0))
    averages, _ = trained(tmp_path / "straight", 2, sgd_with(1.0))
    resumed, _ = trained(tmp_path, 2, lambda params: torch.optim.Adam(params, lr=0.1, eps=1.0), resumed=True)
    change = averages - after_first
    torch.testing.assert_close(resumed, after_first + 0.1 * change / (change.abs() + 1))
    assert "model.server_optimizer: Adam replaces the checkpoint's SGD, and starts with an empty state" in caplog.text


def test_a_schedule_of_the_servers_rate_goes_on_and_follows_a_changed_rate(tmp_path: Path) -> None:
    for folder in (tmp_path / "same", tmp_path / "changed"):
        trained(folder, 1, sgd_with(1.0), scheduled=True)
    straight, group = trained(tmp_path / "straight", 3, sgd_with(1.0), scheduled=True)
    same, _ = trained(tmp_path / "same", 3, sgd_with(1.0), scheduled=True, resumed=True)
    assert (group["lr"], same.tolist()) == (0.125, straight.tolist())
    _, group = trained(tmp_path / "changed", 3, sgd_with(0.8), scheduled=True, resumed=True)
    assert group["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("rate", [1e38, math.nan])
def test_a_step_that_breaks_the_weights_stops_the_run(tmp_path: Path, rate: float) -> None:
    """The step of round 2 breaks them, and the checkpoint of round 1 stays."""

    def breaks(trainer, module, round):
        if round.number == 1:
            trainer.optimizers[0].param_groups[0]["lr"] = rate

    module = make_module(assignment=FixedArchitecture("smallest"), server_optimizer=sgd_with(0.5))
    settings = {"enable_checkpointing": True, "default_root_dir": str(tmp_path)}
    fault = "SGD made weights NaN, infinite or above 1e19 in round 2"
    with pytest.raises(ConfigError, match=f"^model.server_optimizer: {fault}; lower its lr, or"):
        fit(module, tiny_data(), 3, callbacks=[RoundCheckpoint(), Noted("on_round_start", breaks)], **settings)
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 1
    assert all(tensor.isfinite().all() for tensor in last["state_dict"].values())


def test_an_aggregate_that_is_not_finite_names_the_aggregation() -> None:
    spoils = Noted("on_results", lambda trainer, module, round: round.mix(lambda averages: averages | nans(averages)))
    nans = lambda averages: {name: tensor * math.nan for name, tensor in averages.items()}  # noqa: E731
    with pytest.raises(
        ConfigError, match=r"^model\.aggregation: made weights NaN, infinite or above 1e19 in round 1; "
    ):
        fit(make_module(linear_net()), tiny_data(), 1, callbacks=[spoils])
