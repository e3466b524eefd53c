"""Tests the ledger against counts by hand (SuperFed, section 3.3, App. E and G)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lit_fednas.assignment import FixedArchitecture
from lit_fednas.callbacks import CostLedger, RoundCheckpoint, RunRecorder
from lit_fednas.costs import Cost, RoundCost, client_cost
from lit_fednas.errors import CheckpointError
from lit_fednas.federation import ClientSettings, EvaluationSettings
from lit_fednas.messages import ClientResult, ClientTask
from tests.federation.runs import LAST, run_in
from tests.support import fit, linear_net, make_module, sgd, tiny_data, tiny_supernet

FAMILY = ["smallest", "d: [0,1], e: 0.25", "largest"]


def run(folder, module, rounds=3):
    ledger = CostLedger()
    trainer = fit(module, tiny_data(), rounds, callbacks=[ledger, RunRecorder()], default_root_dir=str(folder))
    return ledger, trainer


def size(supernet, arch):
    """Returns the bytes of one transfer of a subnet."""
    network = supernet.subnet(arch)
    return 4 * sum(tensor.numel() for tensor in [*network.parameters(), *network.buffers()])


def test_a_linear_network_counted_by_hand(tmp_path):
    # 64 inputs and 4 outputs: 256 multiply-accumulates, 260 numbers of 4 bytes; two epochs of 20 examples per client.
    client = ClientSettings(sgd(0.1), batch_size=8, epochs=2)
    ledger, trainer = run(tmp_path, make_module(linear_net(), client=client), rounds=2)
    assert ledger.total == RoundCost(2 * 3 * 40 * 256, 2 * 3 * 1040, 2 * 3 * 1040)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("cost/")}
    assert logged == {
        "cost/macs": 3 * 40 * 256,
        "cost/bytes_down": 3 * 1040,
        "cost/bytes_up": 3 * 1040,
        "cost/total_macs": 2 * 3 * 40 * 256,
        "cost/total_bytes": 2 * 2 * 3 * 1040,
    }


@pytest.mark.parametrize(
    ("budget", "rounds"), [({"max_macs": 2 * 3 * 40 * 256}, 2), ({"max_bytes": 6240.5}, 2), ({"max_macs": 30_720}, 1)]
)
def test_training_ends_with_a_validation_when_a_budget_is_spent(tmp_path, budget, rounds):
    def trained(ckpt_path=None):  # a round costs 30,720 MACs and 6,240 bytes
        module = make_module(linear_net(), client=ClientSettings(sgd(0.1), batch_size=8, epochs=2))
        ledger = CostLedger(**budget)
        return run_in(tmp_path, module, ledger, RoundCheckpoint(), rounds=-1, ckpt_path=ckpt_path)

    trainer = trained()
    assert trainer.global_step == rounds
    assert "val/largest/accuracy" in trainer.callback_metrics  # otherwise every second round is validated
    assert trained(tmp_path / LAST).global_step == rounds  # the budget is spent


def test_a_failed_client_costs_only_its_download():
    cost, done = Cost(macs=100, parameters=7, bytes=28), ClientResult(ClientTask(0, 0, "whole", 50), num_seen=50)
    assert client_cost(done, cost) == RoundCost(macs=5000, bytes_down=28, bytes_up=28)
    assert client_cost(replace(done, status="away", num_seen=0), cost) == RoundCost()
    for status in ("error", "non-finite", "timeout", "dropped", "empty"):
        assert client_cost(replace(done, status=status, num_seen=0), cost) == RoundCost(bytes_down=28)


def test_a_family_costs_the_sum_of_its_members(tmp_path):
    supernet = tiny_supernet()
    evaluation = EvaluationSettings(FAMILY)
    ledger, _ = run(tmp_path, make_module(supernet, FixedArchitecture("largest"), evaluation=evaluation))
    archs = [supernet.space.named(text) for text in FAMILY]
    largest = supernet.cost(supernet.space.largest)
    summary = ledger.summary()
    expected = sum(supernet.cost(arch).macs for arch in archs) / largest.macs
    assert summary["times_less_computation"] == pytest.approx(expected, rel=1e-12)
    expected = sum(size(supernet, arch) for arch in archs) / size(supernet, supernet.space.largest)
    assert summary["times_less_communication"] == pytest.approx(expected, rel=1e-12)
    # App. G.2: twice the cohort's size times the bytes, per round and subnet.
    alone = {name: cost["bytes_down"] + cost["bytes_up"] for name, cost in summary["independent"].items()}
    assert list(alone.values()) == [3 * 2 * 3 * size(supernet, arch) for arch in archs]
    assert json.loads((tmp_path / "ledger.json").read_text()) == summary


def test_a_resumed_run_is_compared_with_the_same_subnets(tmp_path):
    smallest, two_subnets = EvaluationSettings(["smallest"]), EvaluationSettings(["smallest", "largest"])
    run_in(tmp_path, make_module(evaluation=smallest), CostLedger(), RoundCheckpoint(), rounds=1)
    with pytest.raises(CheckpointError, match="smallest, largest are not the checkpoint's smallest, with"):
        run_in(tmp_path, make_module(evaluation=two_subnets), CostLedger(), rounds=2, ckpt_path=tmp_path / LAST)
