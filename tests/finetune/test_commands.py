"""``lit-fednas finetune`` and ``export`` as a user types them, on a run of digits; and the networks on disk."""

import shutil
from pathlib import Path

import pytest
import yaml

from lit_fednas.cli import main
from lit_fednas.records import FinetuneFiles
from lit_fednas.search.tier_models import load_tier_network
from tests.finetune.small import (
    accuracy_and_loss,
    by_tier,
    cohorts,
    last_weights,
    only_batch,
)
from tests.support import assert_same, right_in_onnxruntime

CONFIG = Path(__file__).parents[2] / "configs" / "fedoras" / "digits.yaml"
SPACE = {"width": 8, "stage_layers": [1, 1], "strides": [2, 2], "operators": ["sep_e1", "mb3_e2", "id"]}
BUDGETS = {"budgets": {"small": {"macs": 40000.0}, "large": {"macs": 1e6}}}
TINY = {
    "trainer": {"max_rounds": 1, "check_val_every_n_rounds": 1, "accelerator": "cpu"},
    "model": {
        "supernet": {"class_path": "lit_fednas.supernets.PathCNN", "init_args": SPACE},
        "tiers": {"source": {"class_path": "lit_fednas.tiers.Budgets", "init_args": BUDGETS}},
        "client": {"epochs": 1},
        "cohort": {"class_path": "lit_fednas.federation.UniformCohort", "init_args": {"ratio": 0.2}},
        "evaluation": {"recalibrate_batches": 2},
    },
    "data": {"client_test": 0.1},
    "search": {"method": {"class_path": "lit_fednas.search.RandomSearch"}, "evaluations": 4},
    "finetune": {"rounds": 2},
}
RUN = Path("runs/fedoras-digits/version_0")
COMMON = ("trainer", "model", "data")


def options(*sections: str) -> list[str]:
    """Of a command with its own section of the settings."""
    Path("tiny.yaml").write_text(yaml.safe_dump({key: TINY[key] for key in (*COMMON, *sections)}, sort_keys=False))
    return ["--config", str(CONFIG), "--config", "tiny.yaml"]


@pytest.fixture(scope="module")
def trained_home(tmp_path_factory):
    """A trained and searched run; tiers are listed from the least to the most capable."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert main(["fit", *options()]) == 0
        assert main(["search", *options("search")]) == 0
    return home


@pytest.fixture
def home(trained_home, tmp_path, monkeypatch):
    """The test's own copy, as working directory."""
    folder = shutil.copytree(trained_home, tmp_path / "home")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
def test_finetune_and_export(home, capsys):
    capsys.readouterr()
    assert main(["finetune", *options("finetune")]) == 0
    out = capsys.readouterr().out
    files = FinetuneFiles(RUN / "finetune")
    assert files.settings()["complete"]
    assert not Path("runs/fedoras-digits/version_1").exists()
    for tier, row in by_tier(files).items():
        assert f"{float(row['test_accuracy']):.4f}" in out
        assert len(cohorts(files.folder / "runs" / f"{tier}-0")) == 2
        assert files.tier_model(tier).recalibrated
    assert (files.folder / "clients.csv").exists()

    command = ["export", *options(), "--tier", "large", "--name", "finetune", "--format", "onnx"]
    assert main(command) == 0
    assert "100.0% of the predictions agree" in capsys.readouterr().out
    right, _ = right_in_onnxruntime(files.tier_folder("large") / "network.onnx")
    assert right == pytest.approx(359 * float(by_tier(files)["large"]["test_accuracy"]), abs=1e-3)


def test_a_tiers_network_is_what_was_trained(tuned_once):
    files = tuned_once.files
    data = tuned_once.data
    batches = {"val": only_batch(data.val_dataloader()), "test": only_batch(data.test_dataloader())}
    for tier, row in by_tier(files).items():
        arch, network = load_tier_network(tuned_once.module.supernet, files, tier)
        assert str(arch) == row["arch"]
        assert_same(dict(network.state_dict()), last_weights(tuned_once.path(tier)))
        for split, examples in batches.items():
            found = float(row[f"{split}_accuracy"]), float(row[f"{split}_loss"])
            assert found == pytest.approx(accuracy_and_loss(network, *examples), rel=1e-5)
        model = files.tier_model(tier)
        assert (model.finetuned, model.recalibrated) == (True, False)
        assert model.metrics == {name: float(row[name]) for name in ("val_accuracy", "val_loss")}
        assert model.costs["macs"] == float(row["macs_per_example"])
        assert list(tuned_once.module.supernet.space.decode(model.encoding).layers) == list(arch.layers)
