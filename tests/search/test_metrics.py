"""Search and fine-tuning with metrics of a regression task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics import PearsonCorrCoef, R2Score

from lit_fednas.analysis import fairness_table, read_run
from lit_fednas.assignment import RandomArchitectures
from lit_fednas.callbacks import PartitionFiles, RunRecorder, SubnetTable
from lit_fednas.data import ArraySource, ByColumn, Examples, FederatedDataModule, Regression
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.federation import ClientSettings, EvaluationSettings, FederatedLightningModule
from lit_fednas.finetune import Finetune, FinetuneSettings
from lit_fednas.loggers import RunLogger
from lit_fednas.records import SearchFiles
from lit_fednas.search import Exhaustive, FederatedEvaluation, Search, SearchSettings
from lit_fednas.supernets import ElasticMLP
from lit_fednas.tiers import Budgets, ClientTiers, TierShares
from tests.support import fit, make_module, make_trainer, seeded, sgd

BUDGETS = Budgets({"small": {"macs": 250.0}, "large": {"macs": 5000.0}})


def table(count: int, seed: int) -> Examples:
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=draws)
    targets = (inputs[:, :1] * inputs[:, 1:2]).tanh() + inputs[:, 2:3]
    return Examples(inputs, targets, {"site": np.arange(count) % 4})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[FederatedLightningModule, FederatedDataModule, Path]:
    folder = tmp_path_factory.mktemp("numbers")
    module = make_module(
        seeded(ElasticMLP, (4,), 1, dim=8, depths=[0, 1], ratios=[0.5, 1.0, 2.0]),
        RandomArchitectures(),
        client=ClientSettings(sgd(0.05), batch_size=8, epochs=2),
        evaluation=EvaluationSettings(["smallest", "largest"]),
        tiers=ClientTiers(BUDGETS, TierShares(), enforced=False),
        metrics={"r2": R2Score(), "correlation": PearsonCorrCoef()},  # a correlation has no direction
    )
    source = ArraySource(table(160, 0), table(60, 1), table(60, 2), task=Regression())
    data = FederatedDataModule(source, ByColumn("site"), client_test=0.2, client_val=0.2, seed=0)
    callbacks = [RunRecorder(), SubnetTable(), PartitionFiles()]
    fit(module, data, 6, logger=RunLogger(str(folder), "a", "b"), callbacks=callbacks, check_val_every_n_rounds=1)
    return module, data, folder / "a" / "b"


def searched(trained: Any, name: str, **settings: Any) -> SearchFiles:
    module, data, folder = trained
    settings = {"tiers": None, "method": Exhaustive(), "name": name, "evaluations": 1000, **settings}
    return Search(make_trainer(), module, data, folder).run(None, SearchSettings(**settings))


def by_hand(module: FederatedLightningModule, arch: Any, examples: Examples) -> dict[str, float]:
    with torch.no_grad():
        outputs = module.supernet.eval()(examples.inputs, arch).double()
    errors = (outputs - examples.targets).flatten().numpy()
    truth = examples.targets.double().flatten().numpy()
    return {
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "mae": float(np.abs(errors).mean()),
        "loss": float(np.mean(errors**2)),
        "r2": 1 - float((errors**2).sum() / ((truth - truth.mean()) ** 2).sum()),
        "correlation": float(np.corrcoef(outputs.flatten().numpy(), truth)[0, 1]),
    }


@pytest.mark.parametrize(("metric", "best"), [(None, min), ("r2", max)])
def test_the_best_of_every_tier_by_any_metric(trained, metric, best):
    module, _, _ = trained
    files = searched(trained, f"by-{metric}", metric=metric)
    name = metric or "rmse"
    for row, budget in zip(files.rows("tiers"), (250, 5000), strict=True):
        fitting = [arch for arch in module.supernet.space.each() if module.supernet.macs(arch) <= budget]
        val_metrics = {str(arch): by_hand(module, arch, table(60, 1)) for arch in fitting}
        best_arch = best(val_metrics, key=lambda arch: val_metrics[arch][name])
        assert row["arch"] == best_arch
        test_metrics = by_hand(module, module.supernet.space.parse(best_arch), table(60, 2))
        for split, values in (("val", val_metrics[best_arch]), ("test", test_metrics)):
            assert {key: row[f"{split}_{key}"] for key in values} == pytest.approx(values, rel=1e-4)


def test_front_and_hypervolume_of_errors(trained):
    """The hypervolume is the dominated area, a sum of steps, as a share of the budget and of the first row's error."""
    files = searched(trained, "front")
    rows = files.rows("evaluations")
    fitting = [row for row in rows if row["macs"] <= 250]
    front = [row for row in files.rows("front") if row["tier"] == "small"]
    for row in fitting:
        no_worse = [other for other in fitting if other["macs"] <= row["macs"] and other["rmse"] <= row["rmse"]]
        assert (no_worse == [row]) == (row["arch"] in {other["arch"] for other in front})
    area, best = 0.0, 1.0
    corners = sorted((row["macs"] / 250, row["rmse"] / rows[0]["rmse"]) for row in front)
    for (cost, error), (next_cost, _) in zip(corners, [*corners[1:], (1.0, 0.0)], strict=True):
        best = min(best, error)
        area += (next_cost - cost) * (1 - best)
    (history, *_) = files.rows("history")
    assert history["hypervolume"] == pytest.approx(area, rel=1e-6)
    assert len(front) > 1


def test_clients_and_server_give_equal_scores(trained):
    """All clients score, so that scores are those of all validation examples."""
    module, data, _ = trained
    files = searched(trained, "federated", federated=FederatedEvaluation(rounds=4))
    rows = np.concatenate([data.clients.rows(client, "val") for client in range(4)])
    dataset = data.clients.reader.dataset
    val_examples = Examples(dataset.inputs[rows], dataset.targets[rows])
    for row in files.rows("evaluations")[:5]:
        expected = by_hand(module, module.supernet.space.parse(row["arch"]), val_examples)
        for name in ("rmse", "mae", "loss"):
            assert row[name] == pytest.approx(expected[name], rel=1e-4)
    assert "r2" not in files.columns("evaluations")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metric": "accuracy"}, r"'accuracy' is not measured here; choose from rmse, mae, loss, r2$"),
        ({"metric": "correlation"}, "'correlation' does not say whether higher is better"),
    ],
)
def test_metrics_that_cannot_choose(trained, settings, words):
    with pytest.raises(ConfigError, match=f"search.metric: {words}"):
        searched(trained, "none", **settings)
    assert not (trained[2] / "none").exists()


def test_the_best_candidate_of_a_tier_is_kept(trained):
    module, data, folder = trained
    settings = FinetuneSettings(rounds=1, architectures=3, metric="rmse", name="tuned")
    files = Finetune(make_trainer(), module, data, folder).run(None, settings)
    for row in files.rows("tiers"):
        values = {candidate["val_rmse"] for candidate in files.rows("candidates") if candidate["tier"] == row["tier"]}
        assert len(values) == 3
        assert row["val_rmse"] == min(values)
    with pytest.raises(ConfigError, match=r"finetune.metric: 'accuracy' is not measured here"):
        Finetune(make_trainer(), module, data, folder).run(None, FinetuneSettings(metric="accuracy", name="none"))


def test_tables_and_fairness_of_a_regression_run(trained, tmp_path):
    """For errors, lower is better."""
    module, _, folder = trained
    searched(trained, "search")
    run = read_run(folder)
    assert (run.metric, dict(run.metrics)) == ("rmse", {"rmse": False, "mae": False, "loss": False})
    final = {name: by_hand(module, module.supernet.space.named(name), table(60, 1)) for name in ("smallest", "largest")}
    subnets = run.subnets("val").set_index("subnet")
    for name, values in final.items():
        assert subnets.loc[name, list(values)].tolist() == pytest.approx(list(values.values()), rel=1e-3)
    deployed = fairness_table({"run": [folder / "search"]}).set_index("tier")
    scores = [float(line.split(",")[3]) for line in (folder / "search" / "clients.csv").read_text().splitlines()[1:]]
    assert deployed.loc["*", "worst"] == pytest.approx(max(scores))

    (tmp_path / "clients.csv").write_text("client,tier,num_examples,accuracy,loss\n0,*,1,1,1\n")
    with pytest.raises(DataError, match="are measured by accuracy and by rmse"):
        fairness_table({"numbers": [folder / "search"], "classes": [tmp_path]})
