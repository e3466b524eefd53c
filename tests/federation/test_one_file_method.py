"""New methods, each a single callback in this file: one rejects, one mixes averages."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_fednas.assignment import RandomArchitectures
from lit_fednas.callbacks import CostLedger, RoundCheckpoint, RunRecorder
from lit_fednas.data import Dirichlet
from lit_fednas.federation import FederatedCallback, UniformCohort
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.supernets import GroupNorm
from tests.federation.runs import LAST, run_in
from tests.federation.test_resume import StopAt
from tests.support import assert_same, make_module, run_record, tiny_data, tiny_supernet, weights

ROUNDS, COHORT = 5, 4

# ---- the methods --------------------------------------------------------------------------------------


class RejectWorst(FederatedCallback):
    """Rejects, of the architectures of a round, the one with the highest loss over all rounds so far."""

    def __init__(self) -> None:
        self.losses: dict[str, list[float]] = {}  # by architecture
        self.rejected: list[str | None] = []

    def on_results(self, trainer, module, round):
        self._after, self._worst = {arch: list(losses) for arch, losses in self.losses.items()}, None
        for result in round.survivors:
            self._after.setdefault(str(result.task.arch), []).append(result.loss)
        present = {result.task.arch for result in round.survivors}
        if len(present) > 1:
            worst = max(present, key=lambda arch: mean(self._after[str(arch)]))
            round.reject(worst)
            self._worst = str(worst)

    def on_server_step(self, trainer, module, round):
        self.losses, self.rejected = self._after, [*self.rejected, self._worst]

    def state_dict(self):
        return {"losses": self.losses, "rejected": self.rejected}

    def load_state_dict(self, state_dict):
        self.losses, self.rejected = state_dict["losses"], state_dict["rejected"]


class Inertia(FederatedCallback):
    """Mixes a share of the old weights into the averages, and goes on by half of the last round's change.

    The share is halved by every round that mixes.
    """

    def __init__(self) -> None:
        self.share = 0.8
        self.before: dict[str, Tensor] = {}  # the change of the weights in the round before

    def on_results(self, trainer, module, round):
        self._mixed: dict[str, Tensor] | None = None
        old = weights(module)

        def mixture(averages: dict[str, Tensor]) -> dict[str, Tensor]:
            step = {name: (1 - self.share) * (averages[name] - old[name]) for name in old}
            self._mixed = {name: step[name] + 0.5 * self.before.get(name, torch.zeros(())) for name in old}
            return {name: old[name] + self._mixed[name] for name in old}

        round.mix(mixture)

    def on_server_step(self, trainer, module, round):
        if self._mixed is not None:
            self.before, self.share = self._mixed, self.share / 2

    def state_dict(self):
        return {"share": self.share, "before": dict(self.before)}

    def load_state_dict(self, state_dict):
        self.share, self.before = state_dict["share"], dict(state_dict["before"])


# ---- runs ---------------------------------------------------------------------------------------------


METHODS = {"rejects": RejectWorst, "mixes": Inertia}


def run(folder: Path, name: str, *extra: Any, ckpt_path: Path | None = None, **settings: Any):
    supernet = tiny_supernet(norm=GroupNorm(2))  # of architectures that share weights
    module = make_module(supernet, RandomArchitectures(), cohort=UniformCohort(count=COHORT), **settings)
    callback, data = METHODS[name](), tiny_data(partitioner=Dirichlet(alpha=1.0, min_size=6))
    callbacks = callback, CostLedger(), RunRecorder(), RoundCheckpoint(), *extra
    run_in(folder, module, *callbacks, rounds=ROUNDS, data=data, ckpt_path=ckpt_path)
    return folder / "run" / "only", module, callback


class Witness(FederatedCallback):
    """Keeps of every round the old weights, the updates, the results and the new weights, in doubles."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []

    def on_cohort_start(self, trainer, module, round):
        self.rounds.append({"old": doubles(weights(module)), "updates": []})

    def on_client_end(self, trainer, module, result, update):
        self.rounds[-1]["updates"].append((result, doubles(update.weights)))

    def on_server_step(self, trainer, module, round):
        self.rounds[-1] |= {"results": round.results, "new": doubles(weights(module))}


def doubles(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in tensors.items()}


def average(module: Any, old: dict[str, Tensor], updates: list[tuple[Any, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Every element's mean over the clients that trained it, by their examples; the old one without any."""
    totals = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
    counts = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
    for result, tensors in updates:
        for name, region in module.supernet.regions(result.task.arch).items():
            region.add_to(totals[region.name], tensors[name], result.task.num_examples)
            region.add_to(counts[region.name], 1.0, result.task.num_examples)
    return {name: torch.where(counts[name] > 0, totals[name] / counts[name], old[name]) for name in old}


# ---- what they do -------------------------------------------------------------------------------------


def test_the_worst_architecture_is_rejected(tmp_path) -> None:
    witness, losses, wanted = Witness(), {}, []
    _, module, callback = run(tmp_path, "rejects", witness)
    for one in witness.rounds:
        for result, _ in one["updates"]:
            losses.setdefault(result.task.arch, []).append(result.loss)
        present = {result.task.arch for result, _ in one["updates"]}
        worst = max(present, key=lambda arch: mean(losses[arch]))
        wanted.append(str(worst))
        accepted = [pair for pair in one["updates"] if pair[0].task.arch != worst]
        assert 0 < len(accepted) < COHORT
        assert_same(one["new"], average(module, one["old"], accepted), rtol=1e-5, atol=1e-6)
        for result in one["results"]:
            assert result.status == ("withheld" if result.task.arch == worst else "ok")
    assert callback.rejected == wanted
    assert len(set(wanted)) > 1


def test_a_fraction_of_the_old_weights_is_mixed_in(tmp_path) -> None:
    """The mixture is what the server's optimizer steps towards, here by half of the way."""
    witness = Witness()
    server = {"server_optimizer": lambda params: torch.optim.SGD(params, lr=0.5)}
    _, module, callback = run(tmp_path, "mixes", witness, **server)
    before = dict.fromkeys(witness.rounds[0]["old"], 0.0)
    for number, one in enumerate(witness.rounds):
        share, old = 0.8 / 2**number, one["old"]
        means = average(module, old, one["updates"])
        before = {name: (1 - share) * (means[name] - old[name]) + before[name] / 2 for name in old}
        wanted = {name: old[name] + 0.5 * before[name] for name in old}
        assert_same(one["new"], wanted, rtol=1e-5, atol=1e-6)
    assert callback.share == 0.8 / 2**ROUNDS


# ---- stopping and going on ----------------------------------------------------------------------------


def saved(folder: Path) -> Any:
    """What a run has left, with the state of every callback."""
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    states = {key: str(state) for key, state in checkpoint["callbacks"].items() if "RoundCheckpoint" not in key}
    return {**run_record(folder), "callbacks": states}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return {name: saved(run(tmp_path_factory.mktemp("straight"), name)[0]) for name in METHODS}


class Break(FederatedCallback):
    """Fails when the methods have changed their state already."""

    def on_server_step(self, trainer, module, round):
        if round.number == 3:
            raise RuntimeError("out of the blue")


@pytest.mark.parametrize("stop", [StopAt(3, 3, "SIGINT"), Break()], ids=["client", "server"])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_stopped_in_a_round_resumes_exactly(tmp_path, straight, name, stop) -> None:
    """The rounds before are kept, and nothing of that round is."""
    with pytest.raises((Interrupted, RuntimeError)):
        run(tmp_path, name, stop)
    assert torch.load(tmp_path / LAST, weights_only=True)["global_step"] == 3
    torch.manual_seed(99)  # nothing of the process matters
    folder, _, _ = run(tmp_path, name, ckpt_path=tmp_path / LAST)
    assert saved(folder) == straight[name]
