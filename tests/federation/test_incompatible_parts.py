"""Parts that do not fit each other or the data are refused in ``setup``, before any client trains."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from lit_fednas.aggregation import OperatorAverage, OverlapAverage
from lit_fednas.assignment import Assignment, CandidateGroups, FixedArchitecture, InvariantUnits
from lit_fednas.callbacks import BetaDecay, DeployedAccuracy, PruneByBudgets, RoundTime, SoftAverage
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, EvaluationSettings, FederatedCallback, UniformCohort
from lit_fednas.federation.client import LocalRunner
from lit_fednas.objectives import CrossEntropy, PathSampling, Proximal, SideObjective, TaskLoss
from lit_fednas.parts import check_callbacks
from lit_fednas.supernets import Ladder, NestedSupernet, PlainNetwork, Region
from lit_fednas.tiers import DeviceSpeeds
from tests.federation import methods
from tests.federation.tokens import LENGTH, VOCABULARY, token_net
from tests.supernets.sequences import pruned_sequence
from tests.support import fit, make_module, tiny_data, tiny_supernet

OTHER = "does not work with model.supernet ElasticResNet; use"


def net(kind: str) -> Callable[[], Any]:
    return lambda: methods.NETS[kind](methods.IMAGE, methods.OUTPUTS)


class AllClients(UniformCohort):
    def __init__(self) -> None:
        super().__init__(ratio=1.0)


class Silent(FixedArchitecture):
    """An assignment without the architectures that clients deploy."""

    deployed = Assignment.deployed


def needy(kind: type, *arguments: Any, **settings: Any) -> Any:
    """A part of any kind that needs a callback."""
    return type("Needy", (kind,), {"requires": ("beta_decay",)})(*arguments, **settings)


#: Parts, and the beginning of the error; the data are images with classes.
PARTS: list[tuple[dict[str, Callable[[], Any]], str]] = [
    ({"objective": lambda: Proximal(PathSampling())}, f"model.objective: PathSampling {OTHER} PathSupernet"),
    ({"objective": SideObjective}, "model.objective: SideObjective trains several outputs, and ElasticResNet has one"),
    (
        {"aggregation": OperatorAverage},
        "model.aggregation: OperatorAverage needs every client's OperatorStatistics, which model.objective",
    ),
    (
        {
            "supernet": net("widths"),
            "assignment": lambda: InvariantUnits({"weak": 0.5, "strong": 1}),
            "tiers": lambda: methods.TWO_TIERS,
        },
        "model.assignment: InvariantUnits needs every client's UnitChangeStatistics, which model.objective",
    ),
    (
        {
            "supernet": net("operators"),
            "objective": lambda: Proximal(PathSampling()),
            "client": lambda: ClientSettings(validate="trained"),
        },
        "client.validate: 'trained' tests each client's network, and with model.objective Proximal clients hold",
    ),
    (
        {"client": lambda: ClientSettings(lambda weights: torch.optim.SGD(weights, lr=math.nan))},
        "client.optimizer: cannot be made (lr: nan is not finite); change its settings",
    ),
    (
        {"server_optimizer": lambda: lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=math.inf)},
        "model.server_optimizer: cannot be made (momentum: inf is not finite); change its settings",
    ),
    ({"callbacks": SoftAverage}, f"soft_average: SoftAverage {OTHER} ModelSuite"),
    (
        {"supernet": pruned_sequence, "assignment": CandidateGroups},
        "model.assignment: CandidateGroups needs the callback prune_by_budgets; add prune_by_budgets: {...} to",
    ),
    *(
        (
            {name: lambda kind=kind: needy(kind)},
            f"{field}: Needy needs the callback beta_decay; add beta_decay: {{...}} to",
        )
        for name, field, kind in (
            ("objective", "model.objective", CrossEntropy),
            ("assignment", "model.assignment", FixedArchitecture),
            ("aggregation", "model.aggregation", OverlapAverage),
            ("cohort", "model.cohort", AllClients),
            ("callbacks", "needy", FederatedCallback),
        )
    ),
    ({"objective": lambda: Proximal(needy(CrossEntropy))}, "model.objective: Needy needs the callback beta_decay; add"),
    (
        {"server_optimizer": lambda: lambda weights: needy(torch.optim.SGD, weights, lr=1.0)},
        "model.server_optimizer: Needy needs the callback beta_decay; add",
    ),
    ({"callbacks": DeployedAccuracy}, "deployed_accuracy.split: no client has test examples; set data."),
    (
        {"callbacks": DeployedAccuracy, "assignment": Silent, "data": lambda: methods.image_data(client_test=0.3)},
        "model.assignment: Silent",
    ),
    (
        {"callbacks": lambda: RoundTime(DeviceSpeeds(latency_ms=1))},
        "round_time.speeds.latency_ms: 1 needs limits, but there are no tiers; set model.tiers",
    ),
    (
        {"callbacks": BetaDecay},
        "beta_decay: gives a Beta, which neither model.assignment FixedArchitecture nor model.aggregation Overlap",
    ),
    (
        {"callbacks": type("Mine", (FederatedCallback,), {"on_result": print})},
        "mine: Mine.on_result would never be called, as there is no such hook; rename it; did you mean on_results?",
    ),
    (
        {"callbacks": type("Mine", (FederatedCallback,), {"on_fit_begin": print, "on_finetune_end": print})},
        "mine: Mine.on_fit_begin would never be called, as there is no such hook; rename it; did you mean on_fit_end?",
    ),
]


class WrongNetwork(NestedSupernet):
    """A hidden layer of 2 or 8 units, with an error in the regions of the largest architecture."""

    def __init__(self, change_regions: Callable[[dict[str, Region]], Any]) -> None:
        super().__init__((1, 8, 8), 4)
        self.wrong = change_regions
        self.space = Ladder([2, 8])
        self.network = self.build(8)

    def build(self, arch: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, arch), nn.Linear(arch, 4))

    def index(self, arch: int) -> dict[str, Region]:
        regions = super().index(arch)
        return regions if arch == 2 else {**regions, **self.wrong(regions)}


@pytest.mark.parametrize(
    ("change_regions", "message"),
    [
        (
            lambda regions: {"1.bias": Region("network.1.bias", (slice(0, 5),))},
            "1.bias is [8] (torch.float32) in build, and [5] (torch.float32) in index; correct",
        ),
        (lambda regions: {"3.bias": regions["2.bias"]}, "3.bias: KeyError: '3.bias'; correct build, index or cost"),
        (
            lambda regions: {"2.bias": Region("head.bias")},
            "2.bias: KeyError: 'head.bias'; correct build, index or cost",
        ),
        (
            lambda regions: 1 / 0,
            "build or index: ZeroDivisionError: division by zero (test_incompatible_parts.py, line ",
        ),
    ],
    ids=["shape", "name", "shared", "error"],
)
def test_a_wrong_architecture_is_refused_before_training(change_regions: Callable[..., Any], message: str) -> None:
    module = make_module(WrongNetwork(change_regions), evaluation=EvaluationSettings(["2"]))
    with pytest.raises(ConfigError) as raised:
        fit(module, tiny_data())
    assert f"model.supernet: WrongNetwork's network 8: {message}" in str(raised.value)
    assert module.trainer.global_step == 0


def of_tokens(**parts: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    return {"data": methods.SUBJECTS["tokens"], "supernet": token_net, **parts}


NUMBERS, LABELS = methods.SUBJECTS["numbers"], methods.SUBJECTS["labels"]
#: Parts that do not fit other data.
PARTS += [
    (
        {"data": LABELS, "objective": CrossEntropy},
        "model.objective: CrossEntropy needs classes, and the data's task is",
    ),
    (
        {
            "data": lambda: NUMBERS(client_val=0.3),
            "supernet": pruned_sequence,
            "assignment": CandidateGroups,
            "cohort": lambda: UniformCohort(ratio=1.0),
            "callbacks": lambda: PruneByBudgets(0.5),
            "client": lambda: ClientSettings(validate="trained"),
        },
        "prune_by_budgets: needs the metric accuracy, which Regression does not have; ",
    ),
    (
        of_tokens(supernet=lambda: PlainNetwork(nn.Linear(6, 5), (6,), 5)),
        "model.supernet: PlainNetwork reads torch.float32, and the data are torch.int64",
    ),
    (of_tokens(metrics=lambda: {"accuracy": MulticlassAccuracy(5)}), "model.metrics: 'accuracy' is a metric of every"),
]


@pytest.mark.parametrize(("parts", "words"), PARTS, ids=[words[:60] for _, words in PARTS])
def test_incompatible_parts_are_refused_before_a_client_trains(
    parts: dict[str, Callable[[], Any]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalRunner, "run", None)
    module_parts = {"supernet": tiny_supernet(), "objective": CrossEntropy() if "data" not in parts else TaskLoss()}
    module_parts |= {name: make() for name, make in parts.items()}
    data, callbacks = module_parts.pop("data", None) or methods.image_data(), module_parts.pop("callbacks", None)
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
        fit(make_module(**module_parts), data, max_rounds=1, callbacks=[callbacks] if callbacks else [])


@pytest.mark.parametrize("kind", [kind for kind in methods.NETS if kind not in methods.TOKEN_NETS and kind != "bases"])
def test_networks_of_images_refuse_tokens(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"^supernet.input_shape: \[{LENGTH}\] must be channels, height, width for "):
        methods.NETS[kind]((LENGTH,), VOCABULARY)


def test_a_subclass_of_a_required_callback_is_enough() -> None:
    extended = type("MyBetaDecay", (BetaDecay,), {})()
    check_callbacks("model.objective", needy(CrossEntropy), [extended])
    check_callbacks("model.objective", CrossEntropy(), [])
