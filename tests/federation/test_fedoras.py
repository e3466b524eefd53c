"""FedorAS' first stage in the engine: tiers, subspaces, path sampling and OPA together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_fednas.aggregation import OperatorAverage
from lit_fednas.assignment import Subspaces
from lit_fednas.callbacks import CostLedger, RunRecorder
from lit_fednas.costs import RoundCost
from lit_fednas.federation import ClientSettings, EvaluationSettings, UniformCohort
from lit_fednas.messages import MacsStatistics
from lit_fednas.objectives import PathSampling
from lit_fednas.records import read_rounds
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import PathCNN
from lit_fednas.tiers import Budgets, ClientTiers
from tests.federation.runs import Results, run_in
from tests.support import accuracy_and_loss, make_module, seeded, sgd, tiny_examples

#: Operations of one example; the cheapest path takes 21 988, the most expensive 159 556.
LIMITS = {"weak": 3e4, "middle": 6e4, "strong": 2e5}


def test_paths_are_counted_and_sampled_architectures_evaluated(tmp_path: Path) -> None:
    """Records and ledger use the clients' statistics; the run has two rounds and one validation."""
    results, supernet = Results(), seeded(PathCNN, (1, 8, 8), 4, width=8, stage_layers=[1, 1], strides=[2, 2])
    module = make_module(
        supernet,
        Subspaces(share=0.5),
        OperatorAverage(),
        UniformCohort(count=6),
        ClientSettings(sgd(0.2, momentum=0.9), batch_size=8),
        tiers=ClientTiers(Budgets({name: {"operations": limit} for name, limit in LIMITS.items()})),
        objective=PathSampling(),
        evaluation=EvaluationSettings(["smallest", "largest"], sampled=3),
    )
    run_in(tmp_path, module, CostLedger(), RunRecorder(), results, rounds=2)
    folder = tmp_path / "run" / "only"
    first, second = read_rounds(folder)
    total = RoundCost()
    for record, result in zip(first["clients"] + second["clients"], results.all, strict=True):
        task, cost = result.task, supernet.cost(result.task.arch)
        assert (record["client"], record["tier"], record["arch"]) == (task.client, task.tier, str(task.arch))
        assert task.limits == {"operations": LIMITS[task.tier]}
        spent = RoundCost(result.find(MacsStatistics).macs, cost.bytes, cost.bytes)
        assert (record["macs"], record["bytes_down"], record["bytes_up"]) == (spent.macs, cost.bytes, cost.bytes)
        assert spent.macs < cost.macs * result.num_seen  # cost.macs belongs to the most expensive path
        total += spent
    assert json.loads((folder / "ledger.json").read_text())["total"] == {
        "macs": total.macs,
        "bytes_down": total.bytes_down,
        "bytes_up": total.bytes_up,
    }

    rng, examples = numpy_generator(0, "sampled", 2), tiny_examples(40, 1)  # the server's validation set
    sampled = [supernet.subnet(supernet.space.sample(rng)).eval() for _ in range(3)]
    scores = [accuracy_and_loss(network, examples.inputs / 255, examples.targets) for network in sampled]
    for name, values in zip(("accuracy", "loss"), zip(*scores, strict=True), strict=True):
        assert second["metrics"][f"val/sampled/{name}"] == pytest.approx(sum(values) / 3, rel=1e-4)
