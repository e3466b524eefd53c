"""Tests differential privacy over a run: the account, the end of the run, and refused settings."""

from __future__ import annotations

import math
import os
import shutil
import stat
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import get_epsilon_gaussian
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from lit_fednas.aggregation import ClassAverage, MaxNet, OverlapAverage
from lit_fednas.aggregation.private import KnownCohorts, PrivateAverage
from lit_fednas.assignment import (
    Assignment,
    ByOwnUtility,
    FixedArchitecture,
    RandomArchitectures,
    Sandwich,
    TrackingSandwich,
)
from lit_fednas.callbacks import (
    BetaDecay,
    Privacy,
    RoundCheckpoint,
)
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import (
    ClientSettings,
    CohortSampler,
    CyclicCohort,
    EvaluationSettings,
    FaultPolicy,
    FederatedCallback,
    FederatedLightningModule,
    PoissonCohort,
    UniformCohort,
)
from lit_fednas.federation.client import LocalRunner
from lit_fednas.loggers import RunLogger
from lit_fednas.messages import DROPPED
from lit_fednas.objectives import MaskedCrossEntropy
from lit_fednas.records.files import replacing
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import BatchNorm
from tests.federation.runs import LAST, run_in
from tests.supernets.suites import grown_suite
from tests.support import (
    Noted,
    assert_same,
    fit,
    linear_net,
    make_module,
    make_trainer,
    sgd,
    tiny_data,
    tiny_supernet,
    weights,
)

DELTA = 1e-5


def module(**settings: Any) -> FederatedLightningModule:
    parts: dict[str, Any] = {
        "assignment": RandomArchitectures(),
        "aggregation": OverlapAverage(weighted=False),
        "faults": FaultPolicy(min_survivors=0, max_failed_rounds=None),
    }
    return make_module(**{**parts, **settings})


class Watch(FederatedCallback):
    """Records each round's aggregation, and the number of tasks by client."""

    def __init__(self) -> None:
        self.averages: list[PrivateAverage] = []
        self.num_tasks: Counter[int] = Counter()

    def on_server_step(self, trainer: Any, module: Any, round: Any) -> None:
        self.averages.append(round.aggregation)
        self.num_tasks.update(task.client for task in round.tasks)


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def steps(trained: FederatedLightningModule) -> Tensor:
    """Returns the change of a module's weights since the start."""
    return flat(weights(trained)) - flat(weights(module()))


def epsilon_of(noise: float, spent: dict[int, float]) -> Any:
    """Returns the epsilon of each client's sum of squares, from a new accountant."""
    accountant = KnownCohorts(noise)
    accountant.load_state_dict({"spent": spent})
    return pytest.approx(accountant.epsilon(DELTA), rel=1e-6)


def spent(trainer: Any) -> float:
    return float(trainer.callback_metrics["privacy/epsilon"])


def test_with_maxnet_the_largest_networks_client_spends_nearly_all() -> None:
    """With beta 0.9 other clients have an influence of 0.05 / 0.9; the tracking sandwich takes turns."""
    watch = Watch()
    privacy, others = Privacy(1.0, 1.0), 1 / 18**2
    settings = {"assignment": TrackingSandwich(), "aggregation": MaxNet(weighted=False)}
    trainer = fit(module(**settings), tiny_data(), 6, callbacks=[BetaDecay(decay="constant"), privacy, watch])
    turns: Counter[int] = Counter()
    for average in watch.averages:
        turns.update(client for client, influence in average.influences.items() if influence == 1)
    assert sum(turns.values()) == 6
    shares = {client: turns[client] + (watch.num_tasks[client] - turns[client]) * others for client in watch.num_tasks}
    assert privacy.state_dict()["accountant"]["spent"] == pytest.approx(shares)
    assert spent(trainer) == epsilon_of(1.0, shares)


def test_the_run_ends_before_the_round_that_would_exceed_the_target() -> None:
    trainer = fit(module(), tiny_data(), 20, callbacks=[Privacy(1.0, 8.0, target_epsilon=0.9)])
    done = trainer.current_epoch
    assert 1 < done < 20
    assert spent(trainer) <= 0.9
    beyond = fit(module(), tiny_data(), done + 1, callbacks=[Privacy(1.0, 8.0)])
    assert spent(beyond) > 0.9


@pytest.mark.parametrize(
    "cohort", [UniformCohort(3 / 6), CyclicCohort(2 / 6), pytest.param(PoissonCohort(0.5), marks=pytest.mark.slow)]
)
def test_the_default_noise_reaches_the_target_in_all_rounds(cohort: CohortSampler) -> None:
    trainer = fit(module(cohort=cohort), tiny_data(), 3, callbacks=[Privacy(1.0, target_epsilon=1.0)])
    assert trainer.current_epoch == 3
    assert 0.98 < spent(trainer) <= 1.0 + 1e-6


def test_clients_that_take_turns_spend_by_their_rounds_also_with_correlated_noise() -> None:
    """In seven rounds with two of six clients, two clients take part three times: one round with noise / sqrt(3)."""
    privacy = Privacy(1.0, 4.0, bands=3)
    trainer = fit(module(cohort=CyclicCohort(count=2)), tiny_data(), 7, callbacks=[privacy])
    assert sorted(privacy.state_dict()["accountant"]["spent"].values()) == [2, 2, 2, 2, 3, 3]
    assert spent(trainer) == pytest.approx(get_epsilon_gaussian(4 / 3**0.5, DELTA), rel=1e-6)


def test_a_large_norm_without_noise_is_federated_averaging() -> None:
    plain, bound = module(), module()
    fit(plain, tiny_data(), 3)
    trainer = fit(bound, tiny_data(), 3, callbacks=[Privacy(1e6, 0)])
    assert "privacy/epsilon" not in trainer.callback_metrics
    assert_same(weights(plain), weights(bound), rtol=1e-4, atol=1e-6)


def test_a_round_in_which_all_clients_fail_still_adds_noise() -> None:
    failing = ClientSettings(sgd(1e30), batch_size=8, epochs=3)  # weights that are not finite
    trained, watch = module(client=failing), Watch()
    fit(trained, tiny_data(), 1, callbacks=[Privacy(1.0, 1.0), watch])
    assert math.isnan(watch.averages[0].clipped)
    assert 0.1 < float(steps(trained).std()) < 1.5  # 1 / 3 for elements of three clients, 1 for one client


def test_a_round_without_any_client_adds_noise_and_counts_if_cohorts_are_sampled() -> None:
    watch, cohort = Watch(), PoissonCohort(0.0001)  # drawn from a secret
    trained = module(cohort=cohort, assignment=FixedArchitecture())
    trainer = fit(trained, tiny_data(), 1, callbacks=[Privacy(0.0006, 0.5), watch])
    assert not watch.num_tasks
    assert float(steps(trained).std()) == pytest.approx(0.0006 * 0.5 / 0.0006, rel=0.1)  # 0.0006 clients are expected
    assert spent(trainer) > 0


def test_noise_and_sampled_cohorts_are_drawn_from_a_secret_in_place_of_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other cohorts use the run's seed. The first rank broadcasts the secret."""

    def archs_of(trainer: Any, module: Any, round: Any) -> Any:
        return round.number, {task.client: task.arch for task in round.tasks}

    for cohort, of_cohort in ((UniformCohort(count=3), 0), (PoissonCohort(0.5), 3)):
        watch, plans = Watch(), Noted("on_cohort_start", archs_of)
        trained = module(cohort=cohort)
        fit(trained, tiny_data(), 2, callbacks=[Privacy(1.0, 0, noise_seed=3), watch, plans])
        assert {average.sequence.seed for average in watch.averages} == {3}
        for number, archs in plans.all:
            rng = numpy_generator(of_cohort, "assignment", number)
            assert list(archs) == cohort.draw(number, [10] * 6, of_cohort)
            assert list(archs.values()) == [trained.supernet.space.sample(rng) for _ in archs]
    watch = Watch()
    trainer = make_trainer(1, callbacks=[Privacy(1.0, 1.0), watch])
    monkeypatch.setattr(trainer.strategy, "broadcast", lambda value: 11)
    trainer.fit(module(), datamodule=tiny_data())
    for _ in range(2):
        fit(module(), tiny_data(), 1, callbacks=[Privacy(1.0, 1.0), watch])
    first, *other_seeds = (average.sequence.seed for average in watch.averages)
    assert first == 11
    assert len({0, 11, *other_seeds}) == 4


def test_a_resumed_run_keeps_its_noise_and_its_account(tmp_path: Path) -> None:
    """The noise for two rounds is kept for six rounds, so the run stops; other settings are refused."""

    def run(rounds: int, cohort: CohortSampler, privacy: list[Any], resumed: bool = True, name: str = "with") -> Any:
        folder, callbacks = tmp_path / name, [*privacy, RoundCheckpoint()]
        path = folder / LAST if resumed else None
        return run_in(folder, module(cohort=cohort), *callbacks, rounds=rounds, ckpt_path=path)

    all_clients = UniformCohort(ratio=1.0)
    first = Privacy(1.0, target_epsilon=3.0)
    run(2, all_clients, [first], resumed=False)
    second = Privacy(1.0, target_epsilon=3.0)
    assert run(6, all_clients, [second]).current_epoch == 2
    assert second.noise_multiplier == first.noise_multiplier
    for settings, cohort, message in (
        ({}, PoissonCohort(0.5), "the checkpoint has another accountant"),
        ({"bands": 2}, CyclicCohort(count=3), r"privacy\.bands: 2 is not the checkpoint's value"),
        ({"clip_norm": 0.1}, all_clients, r"privacy\.clip_norm: 0\.1 is not the checkpoint's value"),
    ):
        with pytest.raises(CheckpointError, match=message):
            run(6, cohort, [Privacy(**{"clip_norm": 1.0, "target_epsilon": 3.0, **settings})])
    run(3, all_clients, [], resumed=False, name="without")
    with pytest.raises(CheckpointError, match="the checkpoint's run had no privacy"):
        run(6, all_clients, [Privacy(1.0, 1.0)], name="without")


class Killed(Exception):
    """Ends a run like a kill, as :class:`Unsaved` does not save it."""


class Unsaved(RoundCheckpoint):
    """Writes checkpoints only at the end of rounds."""

    def on_exception(self, *arguments: Any) -> None:
        pass


class Devices(FederatedCallback):
    """Records the global weights by round and the updates of client 0; may kill the run after a step."""

    def __init__(self, killed: int = -1) -> None:
        self.killed = killed
        self.seeds: set[int] = set()
        self.seen: dict[int, Tensor] = {}
        self.updates: dict[int, Tensor] = {}

    def on_cohort_start(self, trainer: Any, module: Any, round: Any) -> None:
        self.sent = flat(weights(module))
        self.seeds.add(round.aggregation.sequence.seed)

    def on_client_end(self, trainer: Any, module: Any, result: Any, update: Any) -> None:
        if result.task.client == 0 and update is not None:
            self.updates[result.task.round] = flat(update.weights) - self.sent

    def on_server_step(self, trainer: Any, module: Any, round: Any) -> None:
        self.seen[round.number] = flat(weights(module))
        if round.number == self.killed:
            raise Killed


class WithoutFirst(LocalRunner):
    """Client 0 does not answer."""

    def run(self, tasks: Any) -> Any:
        for result, update in super().run(tasks):
            away = result.task.client == 0
            yield (replace(result, status=DROPPED), None) if away else (result, update)


def life(folder: Path, devices: Devices, ckpt_path: Path | None = None, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Trains four rounds with checkpoints after every two; returns the trainer and the account."""
    cohort, runner = settings.pop("cohort", UniformCohort(ratio=1.0)), settings.pop("runner", LocalRunner)
    privacy = Privacy(0.1, 6**0.5, **settings)
    callbacks = [devices, privacy, Unsaved(every_n_rounds=2)]
    trainer = make_trainer(4, callbacks=callbacks, logger=RunLogger(str(folder), "run", 0), enable_checkpointing=True)
    trainer.fit_loop.runner = runner
    untrained = module(supernet=linear_net(), assignment=FixedArchitecture(), cohort=cohort)
    with pytest.raises(Killed) if devices.killed >= 0 else nullcontext():
        trainer.fit(untrained, datamodule=tiny_data(), ckpt_path=ckpt_path and str(ckpt_path))
    return trainer, privacy.state_dict()["accountant"]


def last_of(folder: Path) -> Path:
    return folder / "run" / "version_0" / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("noise_seed", [None, 7])
def test_a_repeated_round_after_a_kill_discloses_no_update(tmp_path: Path, noise_seed: int | None) -> None:
    """Rounds 2 and 3 are released twice, the second time without client 0: six releases with z = sqrt(6).

    The process is killed after the server's step and before the round's account. Six rounds with z = sqrt(6) equal one
    with z = 1 and an epsilon of 4.3772. Scaled to the sum over six clients, the two releases of round 2 differ by the
    update of client 0 and by two noises of 0.1 sqrt(6). With a public noise_seed only four rounds count: 3.4668.
    """
    first, second = Devices(killed=3), Devices()
    life(tmp_path, first, noise_seed=noise_seed)
    resumed, _ = life(tmp_path, second, last_of(tmp_path), runner=WithoutFirst)
    update = first.updates[2]
    clipped = update * min(1.0, 0.1 / float(update.norm()))
    noise = 6 * (first.seen[2] - second.seen[2]) - clipped
    assert float(noise.std()) == pytest.approx(0.0 if noise_seed else 0.1 * 12**0.5, rel=0.15, abs=1e-5)
    assert spent(resumed) == pytest.approx(3.4668 if noise_seed else 4.3772, rel=1e-4)


@pytest.mark.parametrize("noise_seed", [None, 7])
def test_correlated_noise_restarts_after_a_kill_and_is_exact_with_a_seed(
    tmp_path: Path, noise_seed: int | None
) -> None:
    """A first round's noise equals its draw; a third round's is correlated with it by 1 / sqrt(1 + 1 / 4 + 1 / 16)."""
    first, second = Devices(killed=3), Devices()
    turns: dict[str, Any] = {"cohort": CyclicCohort(count=3), "bands": 2, "noise_seed": noise_seed}
    life(tmp_path, first, **turns)
    saved = torch.load(last_of(tmp_path), weights_only=True)["callbacks"]["Privacy"]
    assert set(saved) == {"noise_multiplier", "clip_norm", "noise_seed", "bands", "record", "accountant"}  # no noise
    _, account = life(tmp_path, second, last_of(tmp_path), **turns)
    assert account["spent"] == dict.fromkeys(range(6), 2.0 if noise_seed else 3.0)
    for devices, correlation in ((first, (16 / 21) ** 0.5), (second, (16 / 21) ** 0.5 if noise_seed else 1.0)):
        draws = numpy_generator(*devices.seeds, "privacy", 2).standard_normal(260, dtype=np.float32)
        changes = devices.seen[2] - first.seen[1]
        assert np.corrcoef(changes.numpy(), draws)[0, 1] == pytest.approx(correlation, abs=0.05)
    if noise_seed:
        assert all(torch.equal(first.seen[round], second.seen[round]) for round in (2, 3))


@pytest.mark.parametrize("cohort", [UniformCohort(ratio=1.0), PoissonCohort(0.5)])
def test_all_releases_count_from_any_checkpoint(tmp_path: Path, cohort: CohortSampler) -> None:
    last, early = last_of(tmp_path), last_of(tmp_path).with_name("early.ckpt")
    lives: list[Devices] = []

    def releases(folder: str = ".", ckpt_path: Path | None = None, killed: int = -1) -> float:
        lives.append(Devices(killed))
        _, account = life(tmp_path / folder, lives[-1], ckpt_path, cohort=cohort)
        return account["rounds"] if "rounds" in account else account["spent"][0]

    assert releases(killed=3) == 3  # the record has one more release
    shutil.copy(last, early)
    assert releases(ckpt_path=last, killed=2) == 4
    assert releases(ckpt_path=last) == 4 + 1 + 2
    assert releases("other", early, killed=2) == 7
    assert releases(ckpt_path=last) == 7 + 1  # all rounds are done; the other folder's release counts
    assert releases("other", early) == 8 + 2
    assert releases("other", last_of(tmp_path / "other")) == 10
    assert len(set.union(*(devices.seeds for devices in lives))) == 5  # one seed per start with a round


def test_releases_before_a_kill_count_for_the_target(tmp_path: Path) -> None:
    """After the four releases before the kill, one more is within 4.2, and two are not."""
    life(tmp_path, Devices(killed=3))
    trainer, account = life(tmp_path, Devices(), last_of(tmp_path), target_epsilon=4.2)
    assert trainer.current_epoch == 3
    assert account["spent"] == dict.fromkeys(range(6), 5.0)


def test_a_run_cannot_resume_without_its_record(tmp_path: Path) -> None:
    life(tmp_path, Devices())
    shutil.move(last_of(tmp_path).with_name("released"), tmp_path / "released")
    with pytest.raises(CheckpointError, match=r"\.jsonl, the record of releases .* is not in .*released; move a"):
        life(tmp_path, Devices(), last_of(tmp_path))


def test_only_the_owner_can_read_a_private_run_s_checkpoints_and_record(tmp_path: Path) -> None:
    devices, part = Devices(), tmp_path / ".file.part"
    old_umask = os.umask(0)
    try:
        life(tmp_path, devices)
        with replacing(tmp_path / "file", private=True):
            files = [part, *(path for path in last_of(tmp_path).parent.rglob("*") if path.is_file())]
            assert [path.suffix for path in files[1:]] in ([".ckpt", ".jsonl"], [".jsonl", ".ckpt"])
            assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    finally:
        os.umask(old_umask)
    saved = str(torch.load(last_of(tmp_path), weights_only=True)["callbacks"])
    assert not [seed for seed in devices.seeds if str(seed) in saved]  # a reader cannot subtract the noise


class Unknown(Assignment):
    """An assignment without ``depends_on``."""

    def plan(self, round: Any) -> Any:
        return [round.task(client, round.space.largest) for client in round.cohort]


#: Parts of the method, settings of the callback or another callback, and the message.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "statistics": (
        {"assignment": ByOwnUtility(), "supernet": grown_suite(), "evaluation": EvaluationSettings(None)},
        r"model\.assignment: ByOwnUtility assigns architectures by clients' statistics",
    ),
    "unknown": ({"assignment": Unknown()}, r"model\.assignment: Unknown assigns architectures by clients' statistics"),
    "sandwich, sampled": (
        {"assignment": Sandwich(), "cohort": PoissonCohort(0.5)},
        r"model\.assignment: Sandwich draws architectures that depend on the cohort",
    ),
    "structure": (
        {"supernet": grown_suite(), "evaluation": EvaluationSettings(None)},
        r"model\.supernet: ModelSuite changes its structure by clients' statistics",
    ),
    "norm bound": (
        {"faults": FaultPolicy(min_survivors=0, max_failed_rounds=None, norm_bound=3.0)},
        r"model\.faults\.norm_bound: comparing updates",
    ),
    "faults": ({"faults": FaultPolicy()}, r"model\.faults: whether clients fail.*set min_survivors to 0"),
    "buffers": ({"supernet": tiny_supernet(norm=BatchNorm())}, r"model\.supernet: \w+ has \d+ running statistics"),
    "classes": (
        {"aggregation": ClassAverage(False), "objective": MaskedCrossEntropy()},
        r"model\.aggregation: a client's influence is unbounded: ClassAverage overrides contributions; use",
    ),
    "sizes": (
        {"cohort": type("BySize", (UniformCohort,), {"depends_on_sizes": True})(count=3)},
        r"model\.cohort: BySize draws clients by",
    ),
    "bands": (
        {"privacy": {"bands": 3}},
        r"privacy\.bands: 3 is above 1, .* UniformCohort and 6 clients; lower it, or use .* of at most 1 / 3",
    ),
    "bands, sampled": ({"cohort": PoissonCohort(0.5), "privacy": {"bands": 2}}, "2 is above 1, .* PoissonCohort"),
    "many bands": ({"cohort": CyclicCohort(0.5), "privacy": {"bands": 3}}, "3 is above 2, .* CyclicCohort"),
    "delta": ({"privacy": {"delta": 0.2}}, r"privacy\.delta: 0\.2 could disclose a client"),
    "stopping": (
        {"callback": EarlyStopping("clients/loss")},
        "callbacks: EarlyStopping ends the run or chooses a checkpoint by clients/loss, which",
    ),
    "stopping by clients' statistics": (
        {
            "callback": EarlyStopping("val/mean/accuracy", mode="max"),
            "supernet": tiny_supernet(norm=BatchNorm(running_statistics=False)),
        },
        r"callbacks: EarlyStopping ends the run .* by val/mean/accuracy, which .*recalibrate_batches to 0",
    ),
    "rejecting": (
        {"callback": type("Rejecting", (FederatedCallback,), {"on_results": print})()},
        "callbacks: Rejecting may reject updates depending on all results",
    ),
    "uploading": ({"logger": type("Uploading", (DummyLogger,), {"_log_model": "all"})()}, "log_model uploads check"),
    "readable": ({"plugins": [TorchCheckpointIO()]}, "trainer.plugins: TorchCheckpointIO writes checkpoints of a"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=list(REFUSED))
def test_other_releases_are_refused_before_any_client_trains(settings: dict[str, Any], message: str) -> None:
    class Trained(FederatedCallback):
        def on_client_end(self, *arguments: Any) -> None:
            raise AssertionError("a client has trained")

    parts = {"privacy": {}, "callback": FederatedCallback(), **settings}
    privacy, callback = (parts.pop(name) for name in ("privacy", "callback"))
    callbacks = [Privacy(1.0, **{"noise_multiplier": 1.0, **privacy}), callback, Trained()]
    of_trainer = {name: parts.pop(name) for name in ("logger", "plugins") if name in parts}
    trained = module(**parts)
    with pytest.raises(ConfigError, match=message):
        fit(trained, tiny_data(), 2, callbacks=callbacks, enable_checkpointing=True, **of_trainer)
