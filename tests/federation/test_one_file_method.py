"""New methods, each a single callback in this file: one rejects, one mixes averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_fednas.assignment import RandomArchitectures
from lit_fednas.callbacks import CostLedger, RoundCheckpoint, RunRecorder
from lit_fednas.data import Dirichlet
from lit_fednas.federation import FederatedCallback, UniformCohort
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.loggers import RunLogger
from lit_fednas.supernets import GroupNorm
from tests.federation.test_resume import StopAt
from tests.support import make_module, make_trainer, run_record, tiny_data, tiny_supernet, weights

ROUNDS, COHORT = 5, 4

# ---- the methods --------------------------------------------------------------------------------------


class RejectWorst(FederatedCallback):
    """Rejects, of the architectures of a round, the one with the highest loss over all rounds so far."""

    def __init__(self) -> None:
        self.losses: dict[str, tuple[float, int]] = {}  # sum and number of the losses, by architecture
        self.rejected: list[str | None] = []
        self._after = self.losses
        self._worst: str | None = None

    def on_results(self, trainer, module, round):
        self._after, self._worst = dict(self.losses), None
        for result in round.survivors:
            total, count = self._after.get(str(result.task.arch), (0.0, 0))
            self._after[str(result.task.arch)] = total + result.loss, count + 1
        means = {arch: self._mean(arch) for arch in {result.task.arch for result in round.survivors}}
        if len(means) > 1:
            worst = max(means, key=means.__getitem__)
            round.reject(worst)
            self._worst = str(worst)

    def _mean(self, arch):
        total, count = self._after[str(arch)]
        return total / count

    def on_server_step(self, trainer, module, round):
        self.losses = self._after
        self.rejected = [*self.rejected, self._worst]

    def state_dict(self):
        return {"losses": dict(self.losses), "rejected": list(self.rejected)}

    def load_state_dict(self, state_dict):
        self.losses, self.rejected = dict(state_dict["losses"]), list(state_dict["rejected"])


class Inertia(FederatedCallback):
    """Mixes a share of the old weights into the averages, and goes on by half of the last round's change.

    The share is halved by every round that mixes.
    """

    def __init__(self, share: float = 0.8) -> None:
        self.share = share
        self.before: dict[str, Tensor] = {}  # the change of the weights in the round before
        self._mixed: dict[str, Tensor] | None = None

    def on_results(self, trainer, module, round):
        self._mixed = None
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


def paths(**settings: Any):
    """Architectures that share weights."""
    return make_module(tiny_supernet(norm=GroupNorm(2)), RandomArchitectures(), **settings)


#: Each method, and the server that it is tried with.
METHODS = {
    "rejects": (RejectWorst, paths),
    "mixes": (Inertia, paths),
}


def run(folder: Path, name: str, *extra: Any, ckpt_path: str | None = None, **settings: Any):
    kind, make = METHODS[name]
    callback, module = kind(), make(cohort=UniformCohort(count=COHORT), **settings)
    trainer = make_trainer(
        ROUNDS,
        check_val_every_n_rounds=2,
        enable_checkpointing=True,
        logger=RunLogger(str(folder), "run", "only"),
        callbacks=[callback, CostLedger(), RunRecorder(), RoundCheckpoint(), *extra],
    )
    data = tiny_data(partitioner=Dirichlet(alpha=1.0, min_size=6))
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return folder / "run" / "only", module, callback


class Witness(FederatedCallback):
    """Keeps of every round the old weights, the updates, the results and the new weights."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []

    def on_cohort_start(self, trainer, module, round):
        self.rounds.append({"old": weights(module), "updates": []})

    def on_client_end(self, trainer, module, result, update):
        tensors = {name: tensor.double() for name, tensor in update.weights.items()}
        self.rounds[-1]["updates"].append((result, tensors))

    def on_server_step(self, trainer, module, round):
        self.rounds[-1] |= {"results": round.results, "new": weights(module)}


def average(module: Any, old: dict[str, Tensor], updates: list[tuple[Any, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Every element's mean over the clients that trained it, by their examples; the old one without any."""
    totals = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in old.items()}
    counts = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in old.items()}
    for result, tensors in updates:
        for name, region in module.supernet.regions(result.task.arch).items():
            region.add_to(totals[region.name], tensors[name], result.task.num_examples)
            region.add_to(counts[region.name], 1.0, result.task.num_examples)
    return {name: torch.where(counts[name] > 0, totals[name] / counts[name], old[name].double()) for name in old}


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.double(), wanted[name], rtol=1e-5, atol=1e-6, msg=name)


# ---- what they do -------------------------------------------------------------------------------------


def test_the_worst_architecture_is_rejected(tmp_path) -> None:
    witness = Witness()
    _, module, callback = run(tmp_path, "rejects", witness)
    losses: dict[Any, list[float]] = {}
    wanted: list[str | None] = []
    for one in witness.rounds:
        for result, _ in one["updates"]:
            losses.setdefault(result.task.arch, []).append(result.loss)
        present = {result.task.arch for result, _ in one["updates"]}
        worst = max(present, key=lambda arch: sum(losses[arch]) / len(losses[arch]))
        wanted.append(str(worst))
        accepted = [pair for pair in one["updates"] if pair[0].task.arch != worst]
        assert 0 < len(accepted) < COHORT
        assert_close(one["new"], average(module, one["old"], accepted))
        for result in one["results"]:
            assert result.status == ("withheld" if result.task.arch == worst else "ok")
    assert callback.rejected == wanted
    assert len(set(wanted)) > 1


def test_a_fraction_of_the_old_weights_is_mixed_in(tmp_path) -> None:
    witness = Witness()
    _, module, callback = run(tmp_path, "mixes", witness)
    before: dict[str, Tensor] = dict.fromkeys(witness.rounds[0]["old"], torch.zeros((), dtype=torch.float64))
    for number, one in enumerate(witness.rounds):
        share, old = 0.8 / 2**number, one["old"]
        means = average(module, old, one["updates"])
        moved = {name: (1 - share) * (means[name] - old[name]) + before[name] / 2 for name in old}
        assert_close(one["new"], {name: old[name] + moved[name] for name in old})
        before = moved
    assert callback.share == 0.8 / 2**ROUNDS


def test_the_mixture_is_what_the_servers_optimizer_steps_towards(tmp_path) -> None:
    """Half a step towards old + (mixture - old) is a mixture with half the step."""
    witness = Witness()
    _, module, _ = run(tmp_path, "mixes", witness, server_optimizer=lambda params: torch.optim.SGD(params, lr=0.5))
    first = witness.rounds[0]
    means = average(module, first["old"], first["updates"])
    wanted = {name: old + 0.5 * 0.2 * (means[name] - old) for name, old in first["old"].items()}
    assert_close(first["new"], wanted)


# ---- stopping and going on ----------------------------------------------------------------------------


def saved(folder: Path) -> Any:
    """What a run has left, with the state of every callback."""
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    states = {key: str(state) for key, state in checkpoint["callbacks"].items() if "RoundCheckpoint" not in key}
    return {**run_record(folder), "callbacks": states}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return {name: saved(run(tmp_path_factory.mktemp("straight"), name)[0]) for name in METHODS}


@pytest.mark.parametrize(("name", "stop"), [("rejects", 2), ("mixes", 0), ("mixes", 3)])
def test_a_run_stopped_in_a_round_resumes_exactly(tmp_path, straight, name, stop) -> None:
    """In the round's third client: the rounds before are kept, and nothing of that round is."""
    with pytest.raises(Interrupted):
        run(tmp_path, name, StopAt(stop, 3, "SIGINT"))
    last = tmp_path / "run" / "only" / "checkpoints" / "last.ckpt"
    if stop == 0:
        assert not last.exists()
    else:
        assert torch.load(last, weights_only=True)["global_step"] == stop
    torch.manual_seed(99)  # nothing of the process matters
    folder, _, _ = run(tmp_path, name, ckpt_path=str(last) if stop else None)
    assert saved(folder) == straight[name]


@pytest.mark.parametrize("name", METHODS)
def test_an_error_after_the_servers_step_loses_that_round_alone(tmp_path, straight, name) -> None:
    """The methods have changed their state by then."""

    class Break(FederatedCallback):
        def on_server_step(self, trainer, module, round):
            if round.number == 3:
                raise RuntimeError("out of the blue")

    with pytest.raises(RuntimeError, match="out of the blue"):
        run(tmp_path, name, Break())
    last = tmp_path / "run" / "only" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 3
    assert saved(run(tmp_path, name, ckpt_path=str(last))[0]) == straight[name]
