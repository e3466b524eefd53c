"""FedorAS' first stage as a whole: tiers, subspaces, path sampling and OPA in the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from lit_fednas.aggregation import OperatorAverage
from lit_fednas.assignment import Subspaces
from lit_fednas.callbacks import CostLedger, RoundCheckpoint, RunRecorder
from lit_fednas.costs import RoundCost
from lit_fednas.federation import ClientSettings, EvaluationSettings, FederatedCallback, UniformCohort
from lit_fednas.messages import ClientResult, MacsReport
from lit_fednas.objectives import PathSampling
from lit_fednas.records import read_rounds
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import PathCNN
from lit_fednas.tiers import Budgets, ClientTiers
from tests.federation.runs import run_in
from tests.support import make_module, seeded, sgd, tiny_examples

ROUNDS, COHORT, SAMPLED = 2, 6, 3
#: Operations of one example; the cheapest path takes 21 988, the dearest 159 556.
LIMITS = {"weak": 3e4, "middle": 6e4, "strong": 2e5}


def net() -> PathCNN:
    return seeded(PathCNN, (1, 8, 8), 4, width=8, stage_layers=[1, 1], strides=[2, 2])


class Witness(FederatedCallback):
    """Keeps the clients' results, and evaluates the sampled architectures by hand at every validation."""

    def __init__(self) -> None:
        self.results: list[ClientResult] = []
        self.by_hand: dict[int, tuple[float, float]] = {}  # accuracy and loss

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.results += batch.results

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer, module):
        rng = numpy_generator(0, "sampled", trainer.global_step)
        archs = [module.supernet.space.sample(rng) for _ in range(SAMPLED)]
        examples = tiny_examples(40, 1)  # the server's validation set
        logits = [module.supernet.subnet(arch).eval()(examples.inputs.float() / 255) for arch in archs]
        accuracies = [(one.argmax(1) == examples.targets).float().mean() for one in logits]
        losses = [functional.cross_entropy(one, examples.targets) for one in logits]
        self.by_hand[trainer.global_step] = float(sum(accuracies)) / SAMPLED, float(sum(losses)) / SAMPLED


class NotedPaths(PathSampling):
    """Keeps what the most expensive path of every fit cost."""

    def __init__(self) -> None:
        super().__init__()
        self.highest: dict[tuple[int, int], float] = {}

    def report(self):
        self.highest[self._task.round, self._task.client] = self.highest_cost
        return super().report()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Witness]:
    """A run's folder, module and witness. Read only."""
    folder, witness = tmp_path_factory.mktemp("straight"), Witness()
    module = make_module(
        net(),
        Subspaces(share=0.5),
        OperatorAverage(),
        UniformCohort(count=COHORT),
        ClientSettings(sgd(0.2, momentum=0.9), batch_size=8),
        tiers=ClientTiers(Budgets({name: {"operations": limit} for name, limit in LIMITS.items()})),
        objective=NotedPaths(),
        evaluation=EvaluationSettings(["smallest", "largest"], sampled=SAMPLED),
    )
    best = RoundCheckpoint(monitor="val/sampled/accuracy")
    run_in(folder, module, CostLedger(["smallest", "largest"]), RunRecorder(), best, witness, rounds=ROUNDS)
    return folder / "run" / "only", module, witness


def test_every_client_keeps_to_its_tier(straight):
    _, module, witness = straight
    assert len(witness.results) == ROUNDS * COHORT
    assert [len(module.population.members(name)) for name in LIMITS] == [2, 2, 2]
    greatest = dict.fromkeys(LIMITS, 0.0)
    for result in witness.results:
        task = result.task
        assert result.ok
        assert task.tier == module.population.tier(task.client).name
        assert task.limits == {"operations": LIMITS[task.tier]}
        highest = module.objective.highest[task.round, task.client]
        assert 0 < highest <= min(LIMITS[task.tier], module.supernet.operations(task.arch))
        greatest[task.tier] = max(greatest[task.tier], highest)
    # the limits bind: stronger tiers go where weaker ones may not
    assert LIMITS["weak"] < greatest["middle"]
    assert LIMITS["middle"] < greatest["strong"]
    assert any(module.supernet.operations(result.task.arch) > LIMITS["weak"] for result in witness.results)


def test_records_and_ledger_count_the_paths_and_the_subspaces(straight):
    folder, module, witness = straight
    ledger = json.loads((folder / "ledger.json").read_text())
    clients = [client for record in read_rounds(folder) for client in record["clients"]]
    total, supernet = RoundCost(), module.supernet
    for told, result in zip(clients, witness.results, strict=True):
        assert (told["client"], told["tier"]) == (result.task.client, result.task.tier)
        assert supernet.space.parse(told["arch"]) == result.task.arch
        cost = supernet.cost(result.task.arch)
        spent = RoundCost(result.report(MacsReport).macs, cost.bytes, cost.bytes)
        assert (told["macs"], told["bytes_down"], told["bytes_up"]) == (spent.macs, cost.bytes, cost.bytes)
        assert spent.macs < cost.macs * result.num_seen  # of the dearest path
        total += spent
    assert ledger["total"] == {"macs": total.macs, "bytes_down": total.bytes_down, "bytes_up": total.bytes_up}


def test_sampled_architectures_are_evaluated(straight):
    folder, _, witness = straight
    validated = {record["round"] + 1: record["metrics"] for record in read_rounds(folder) if record["round"] % 2 == 1}
    assert list(validated) == [2]
    for step, metrics in validated.items():
        accuracy, loss = witness.by_hand[step]
        assert metrics["val/sampled/accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert metrics["val/sampled/loss"] == pytest.approx(loss, rel=1e-4)
