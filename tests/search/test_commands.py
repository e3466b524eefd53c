"""The commands ``search`` and ``export`` on a run of digits."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lit_fednas.cli import main
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.records import SearchFiles
from lit_fednas.search.evaluations import Evaluations
from tests.search.small import outcome
from tests.support import assert_same, make_module, right_in_onnxruntime
from tests.test_cli import overlaid

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
RUN = Path("runs/digits/version_0")
NOISE = "--privacy.clip_norm 1 --privacy.noise_multiplier 1"
SEARCH = {
    "search": {
        "tiers": {
            "class_path": "lit_fednas.tiers.Budgets",
            "init_args": {"budgets": {"small": {"macs": 60000.0}, "large": {"macs": 1e6, "memory_bytes": 1e6}}},
        },
        "method": {"class_path": "lit_fednas.search.NSGA2", "init_args": {"population": 6, "sample": 4}},
        "evaluations": 12,
    }
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns the options of a trained run, in its working directory."""
    home = tmp_path_factory.mktemp("home")
    (home / "search.yaml").write_text(yaml.safe_dump(SEARCH))
    options = [*overlaid(home), "--model.evaluation.recalibrate_batches", "4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert main(["fit", *options]) == 0
        yield options


def test_training_on_a_path_of_a_search_before_training(run):
    """The search needs no run or checkpoint; the two clients of a round train the path's ends."""
    options = {
        "ckpt_path": "null",
        "trainer.logger.init_args.name": "path",
        "search.evaluations": "0",
        "search.method": "lit_fednas.search.ProxySearch",
        "search.method.init_args.generations": "5",
        "search.method.init_args.proxy": "lit_fednas.search.CostProxy",
        "search.tiers": "lit_fednas.tiers.EvenBudgets",
        "search.tiers.init_args.count": "3",
    }
    path = Path("runs/path/version_0/search")
    pool = ["--model.assignment.init_args.pool", "lit_fednas.assignment.FromFile"]
    pool += ["--model.assignment.init_args.pool.init_args.path", str(path / "tiers.csv")]  # the search writes this file
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert main(["search", *run, *pool, *words]) == 0
    archs = [row["arch"] for row in SearchFiles(path).rows("tiers")]
    assert len(archs) == 3
    assert main(["fit", *run, "--trainer.logger.init_args.name", "drawn", *pool]) == 0
    rounds = [json.loads(line) for line in Path("runs/drawn/version_0/rounds.jsonl").read_text().splitlines()]
    for row in rounds:
        assert {client["arch"] for client in row["clients"]} == {archs[0], archs[-1]}


def assert_same_files(*names: str) -> None:
    first, second = (outcome(SearchFiles(RUN / name)) | {"settings": None} for name in names)
    assert first == second


@pytest.mark.slow
def test_search_and_export(run, capsys):
    saved = ["--config", "runs/digits/version_0/config.yaml"]  # a run's configuration file is valid for a search
    assert main(["search", *saved, "--config", "search.yaml"]) == 0
    out = capsys.readouterr()
    assert "test accuracy" in out.out
    files = SearchFiles(RUN / "search")
    assert (files.folder / "pareto.png").stat().st_size > 5000
    assert files.settings()["checkpoint"].endswith("last.ckpt")
    assert not Path("runs/digits/version_1").exists()

    assert main(["export", *run, "--tier", "small", "--format", "onnx"]) == 0
    # the network's norms used statistics of batches: the file has the search's accuracy with single examples
    correct, file_info = right_in_onnxruntime(files.tier_folder("small") / "network.onnx")
    (row,) = [row for row in files.rows("tiers") if row["tier"] == "small"]
    assert row["test_accuracy"] == pytest.approx(float(file_info["test_accuracy"]))
    assert row["test_accuracy"] == pytest.approx(correct / 359, abs=1e-6)
    assert json.loads(file_info["class_names"]) == [str(digit) for digit in range(10)]
    assert file_info["input_range"] == "[0, 255]"


def test_an_exported_supernet_needs_no_run(run, refused, tmp_path, monkeypatch):
    """In another place, a search has the same results as in the run, and training starts from the weights."""
    assert main(["search", *run, "--config", "search.yaml", "--search.name", "found"]) == 0
    config = RUN / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("privacy: null", "privacy: {clip_norm: 1.0, noise_multiplier: 1.0, noise_seed: 7}"))
    assert main(["export", *run, "--supernet", "--name", "found", "--output", str(tmp_path / "mine")]) == 0
    config.write_text(text)
    saved = torch.load(RUN / "checkpoints/last.ckpt", weights_only=True)
    front = [row for row in SearchFiles(RUN / "found").rows("front") if row["tier"] == "*"]
    tiers, trained = SearchFiles(RUN / "found").rows("tiers"), json.loads((RUN / "ledger.json").read_text())["total"]
    expected = [[*map(row.get, ("arch", "test_accuracy"))] for row in tiers]
    search = str(Path("search.yaml").absolute())
    monkeypatch.chdir(tmp_path)
    content = torch.load("mine/weights.ckpt", weights_only=True)
    assert content.keys() == {"pytorch-lightning_version", "state_dict", "federation"}
    assert_same(content["state_dict"], saved["state_dict"])
    described, card = json.loads(Path("mine/supernet.json").read_text()), Path("mine/README.md").read_text()
    assert (described["input_type"], described["class_names"]) == ("uint8", [str(digit) for digit in range(10)])
    assert described["training"]["macs"] == trained["macs"]
    assert described["costs"]["largest"]["parameters"] == sum(map(torch.numel, saved["state_dict"].values()))
    for row in tiers:
        scores = re.escape(f"{100 * row['val_accuracy']:.1f}% | {100 * row['test_accuracy']:.1f}% |")
        assert re.search(rf"\| {row['tier']} \| {re.escape(row['arch'])} \|.* {scores}", card)
    assert card.count("\n| d: ") == len(front) > 1
    assert yaml.safe_load(Path("mine/config.yaml").read_text())["privacy"]["noise_seed"] is None
    words = ["--config=mine/config.yaml", "--privacy=null", "--config", search, "--ckpt_path=mine"]
    assert main(["search", *words]) == 0
    rows = SearchFiles("mine/search").rows("tiers")
    assert [[*map(row.get, ("arch", "test_accuracy"))] for row in rows] == expected
    assert not Path("runs").exists()
    module = FederatedLightningModule.load_from_checkpoint("mine/weights.ckpt")
    fresh = copy.deepcopy(module.supernet)
    torch.nn.utils.vector_to_parameters(torch.zeros(10**6), fresh.parameters())
    for loaded in (module, make_module(fresh, initial="mine")):
        assert_same(dict(loaded.supernet.state_dict(prefix="supernet.")), saved["state_dict"])
    assert "not a run's checkpoint: it has no loops" in refused("fit", "--config=mine/config.yaml", "--ckpt_path=mine")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("export", "export: needs one of --tier TIER, a tier of a search, and --supernet"),
        ("export --tier small --supernet", "export: needs one of --tier TIER"),
        ("search --data.server_val 0 --changed [data] --search.name x", "data.server_val: 0"),
        (
            "search --search.federated {} --trainer.devices 2 --data.client_val 0.1 --changed [data]",
            "trainer.devices: 2 is too many for search.federated; use 1",
        ),
        ("export --tier huge", "tier: 'huge'"),
        (
            "export --tier small --format onnx --output x.PT2",
            "export.output: x.PT2 is of torch-export, and export.form",
        ),
        ("export --tier small --format torch-export --output x.onnx", "export.output: x.onnx is of onnx, and"),
        (f"search {NOISE} --search.client 0", "search.client: uses clients' data without noise"),
        (f"search {NOISE} --search.federated {{}}", "search.federated: uses clients' data without noise"),
        (f"finetune {NOISE}", "finetune: uses clients' data without noise"),
    ],
)
def test_invalid_commands_are_errors_of_one_line(run, capsys, words, expected):
    command, *options = words.split()
    assert main([command, *run, *options]) == 2
    err = capsys.readouterr().err.strip()
    assert expected in err
    assert len([line for line in err.splitlines() if line.startswith("lit-fednas:")]) == 1


@pytest.mark.slow
def test_a_stopped_search_resumes(run, capsys, monkeypatch):
    options = ["--search.evaluations", "24", "--search.method.init_args.population", "6"]
    command = ["search", *run, "--config", "search.yaml", *options, "--trainer.threads", "1"]
    stopped = [*command, "--search.name", "stopped"]
    plain = Evaluations._append

    def interrupted(self, *arguments):
        plain(self, *arguments)
        if len(self) == 15:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluations, "_append", interrupted)
        assert main(stopped) == 128 + signal.SIGINT
    assert "stopped by SIGINT; start the same command again" in capsys.readouterr().err
    assert main(stopped) == 0
    assert main([*command, "--search.name", "straight"]) == 0
    assert_same_files("stopped", "straight")


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(run):
    """Two processes with one thread each share every generation, and write the same files as one process."""
    options = ["--model.evaluation.recalibrate_batches", "2", "--trainer.threads", "1"]
    command = ["search", *run, "--config", "search.yaml", *options]
    assert main([*command, "--search.name", "one"]) == 0
    options = ["--search.name", "two", "--trainer.devices", "2"]
    words = [sys.executable, "-m", "lit_fednas", *command, *options]
    done = subprocess.run(words, env=ONE_THREAD, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nsmall ") == 1  # only one process prints
    assert_same_files("one", "two")
