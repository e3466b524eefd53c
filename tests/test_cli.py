"""The command line, called in-process: what a user types, and what is told when it is wrong."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from lit_fednas import __version__
from lit_fednas.cli import main
from lit_fednas.data import Digits, Dirichlet, FederatedDataModule
from lit_fednas.errors import CheckpointError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from tests.support import assert_same

CONFIGS = Path(__file__).parents[1] / "configs"
DIGITS = CONFIGS / "superfed" / "digits.yaml"


#: What makes any configuration small.
SMALL = {
    "trainer": {
        "max_rounds": 2,
        "check_val_every_n_rounds": 1,
        "accelerator": "cpu",
        "logger": {"class_path": "lit_fednas.loggers.RunLogger", "init_args": {"save_dir": "runs", "name": "digits"}},
    },
    "model": {
        "supernet": {
            "class_path": "lit_fednas.supernets.ElasticResNet",
            "init_args": {"stem_width": 4, "stage_widths": [8, 8, 8, 8], "divisor": 2},
        },
        "cohort": {"class_path": "lit_fednas.federation.UniformCohort", "init_args": {"ratio": 0.2}},
    },
}


def overlaid(folder):
    """The command line's words for a small configuration, whose overlay is written into a folder."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump(SMALL))
    return ["--config", str(DIGITS), "--config", str(folder / "tiny.yaml")]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The words; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    return overlaid(tmp_path)


@pytest.fixture(scope="module")
def one_round(tmp_path_factory):
    """The folder of a run of one round. Read only."""
    folder = tmp_path_factory.mktemp("once")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", *overlaid(folder), "--trainer.max_rounds", "1"]) == 0
    return folder / "runs"


@pytest.fixture
def begun(tiny, one_round, tmp_path):
    """The same words, where that run is a test's own."""
    shutil.copytree(one_round, tmp_path / "runs")
    return tiny


def test_fit_writes_a_run_and_test_reads_it(tiny, capsys):
    monitor = ["--checkpoint.monitor", "val/largest/accuracy"]
    changes = ["--beta_decay.beta0", "0.5", "--beta_decay.decay", "constant", "--cost_ledger.independent", "[largest]"]
    assert main(["fit", *tiny, *monitor, *changes]) == 0
    run = Path("runs/digits/version_0")
    expected = (
        "config.yaml inputs.json ledger.json metrics.csv partition.csv partition.png rounds.jsonl subnets-val.csv"
    )
    assert {path.name for path in run.iterdir()} == {*expected.split(), "checkpoints"}
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in rounds] == [0, 1]
    assert [len(record["clients"]) for record in rounds] == [2, 2]
    assert [record["metrics"]["beta"] for record in rounds] == [0.5, 0.5]
    assert list(json.loads((run / "ledger.json").read_text())["independent"]) == ["largest"]
    assert yaml.safe_load((run / "config.yaml").read_text())["beta_decay"]["beta0"] == 0.5
    assert f"# lit-fednas=={__version__}" in (run / "config.yaml").read_text()
    assert torch.load(run / "checkpoints/last.ckpt")["federation"]["version"] == __version__
    out = capsys.readouterr()
    assert "largest" in out.out
    assert "times less computation" in out.err
    assert "Epoch" not in out.err + out.out  # no bar of Lightning's, and no inner Trainer's chatter
    assert "Trainer" not in out.err + out.out

    assert main(["test", *tiny, *monitor, "--ckpt_path", "best"]) == 0
    assert (run / "subnets-test.csv").exists()
    assert "test accuracy" in capsys.readouterr().out
    assert not Path("runs/digits/version_1").exists()


@pytest.mark.parametrize("command", ["validate", "test"])
def test_without_a_checkpoint_the_newest_runs_last_is_evaluated(begun, capsys, command):
    """Never untrained weights; the numbers are those of the checkpoint that is named."""
    last = Path("runs/digits/version_0/checkpoints/last.ckpt")
    tables = []
    for more in ([], ["--ckpt_path", "null"], ["--ckpt_path", str(last)]):
        assert main([command, *begun, *more]) == 0
        shown = capsys.readouterr()
        tables.append(shown.out)
        assert (f"weights: those of {last}" in shown.err) is (more[-1:] != [str(last)])
    assert len(set(tables)) == 1
    assert [path.name for path in last.parents[2].iterdir()] == ["version_0"]
    shutil.copytree(last.parent, "checkpoints")  # as a run without a logger leaves them
    assert main([command, *begun, "--trainer.logger", "false"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, "weights: those of checkpoints/last.ckpt" in shown.err) == (tables[0], True)
    other = ["--trainer.logger", "lightning.pytorch.loggers.CSVLogger", "--trainer.logger.save_dir", "other"]
    for more in ([], ["--ckpt_path", "last"]):
        assert "ckpt_path: 'last' names no checkpoint without a" in refused(capsys, command, *begun, *other, *more)
    shutil.rmtree("runs")
    assert "ckpt_path: 'last' finds no run in runs/digits; start one" in refused(capsys, command, *begun)


@pytest.mark.slow
def test_a_runs_module_is_loaded_and_predicts_in_the_order_of_the_test_set(tiny, capsys):
    """The share of correct predictions is the accuracy that ``test`` reports, of the subnet that was chosen."""
    recalibrated = ["--model.evaluation.recalibrate_batches", "2"]
    assert main(["fit", *tiny, *recalibrated, "--model.evaluation.predicted", "smallest"]) == 0
    assert main(["test", *tiny, *recalibrated, "--ckpt_path", "last", "--data.eval_batch_size", "100"]) == 0
    last = "runs/digits/version_0/checkpoints/last.ckpt"
    with Path("runs/digits/version_0/subnets-test.csv").open() as file:
        (tested,) = [row for row in csv.DictReader(file) if row["subnet"] == "smallest"]
    module = FederatedLightningModule.load_from_checkpoint(last)
    data = FederatedDataModule(Digits(), Dirichlet(10.0), num_clients=10, eval_batch_size=100)
    trainer = FederatedTrainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    for given in (None, last):
        batches = trainer.predict(module, datamodule=data, ckpt_path=given)
        logits, targets = torch.cat(batches), Digits().load("test").targets
        assert logits.shape == (len(targets), 10)
        correct = (logits.argmax(1) == targets).float().mean().item()
        assert correct == pytest.approx(float(tested["accuracy"]), abs=1e-6)
    Path("runs/digits/version_0/config.yaml").unlink()
    with pytest.raises(CheckpointError, match=r"version_0/config.yaml does not exist.* load_from_checkpoint\('runs"):
        FederatedLightningModule.load_from_checkpoint(last)
    parts = {name: getattr(module, name) for name in ("supernet", "assignment", "aggregation", "client")}
    module.supernet.requires_grad_(False).apply(lambda layer: [tensor.zero_() for tensor in layer.parameters()])
    again = FederatedLightningModule.load_from_checkpoint(last, **parts)
    assert_same(again.state_dict(), torch.load(last)["state_dict"])


@pytest.mark.slow
def test_a_resumed_runs_config_starts_a_new_run(begun, capsys):
    """It holds neither the folder of the run nor the checkpoint that the run was resumed from."""
    assert main(["fit", *begun, "--ckpt_path", "last"]) == 0
    first = Path("runs/digits/version_0")
    records = (first / "rounds.jsonl").read_bytes()
    for more in ([], ["--ckpt_path", "null"]):
        assert main(["fit", "--config", str(first / "config.yaml"), *more]) == 0
    assert (first / "rounds.jsonl").read_bytes() == records
    assert {path.name for path in first.parent.iterdir()} == {"version_0", "version_1", "version_2"}
    files = [Path(f"runs/digits/version_{n}/rounds.jsonl").read_text().splitlines() for n in range(3)]
    first_metrics, *others = ([json.loads(line)["metrics"] for line in lines] for lines in files)
    assert others == [first_metrics] * 2

    config = (first / "config.yaml").read_bytes()
    message = refused(capsys, "fit", *begun, "--trainer.logger.init_args.version", "0")
    assert "version_0 holds a run; leave version out" in message
    assert main(["test", *begun, "--ckpt_path", "last", "--trainer.logger.init_args.version", "0"]) == 0
    assert (first / "config.yaml").read_bytes() == config  # the run's, not the test's


def test_a_resumed_run_keeps_the_settings_that_training_depends_on(begun, capsys):
    run = Path("runs/digits/version_0")
    config = (run / "config.yaml").read_bytes()
    resume = ["fit", *begun, "--ckpt_path", "last"]
    changes = {
        "--model.client.optimizer.lr": ("0.5", "model.client.optimizer.init_args.lr"),
        "--data.partitioner.alpha": ("3.0", "data.partitioner.init_args.alpha"),
        "--beta_decay.beta0": ("0.5", "beta_decay.beta0"),
        "--seed_everything": ("7", "seed_everything"),
    }
    for option, (value, name) in changes.items():
        line = refused(capsys, *resume, option, value)
        assert line.startswith(f"lit-fednas: {name}: the checkpoint's run was trained with")
        assert f"and now it is {value}; set it as it was" in line
    assert (run / "config.yaml").read_bytes() == config
    other_data = [*begun, "--ckpt_path", "last", "--seed_everything", "7"]
    assert "seed_everything: the checkpoint's run" in refused(capsys, "test", *other_data)
    assert "PruneByBudgets does not work" in refused(capsys, "fit", *begun, "--prune_by_budgets.budget", "0.5")
    more = ["--model.evaluation.top_k", "2", "--trainer.threads", "1", "--data.num_workers", "0"]
    allowed = ["--model.client.batch_size", "7", "--changed", "[model.client]"]
    assert main([*resume, *more, *allowed]) == 0  # of the newest run, which is not the one that was refused
    assert "model.client.batch_size: the checkpoint's run was trained with" in capsys.readouterr().err
    as_it_was_last = [*resume, "--model.client.batch_size", "7"]
    assert main([*as_it_was_last, "--trainer.max_rounds", "3"]) == 0
    assert main([*as_it_was_last, "--trainer.max_rounds", "3"]) == 0
    assert "trainer.max_rounds: 3, and the checkpoint has 3 rounds" in capsys.readouterr().err
    newer = Path("runs/digits/version_2")
    newer.mkdir()
    (newer / "config.yaml").write_text("{}")
    assert "version_2, has no checkpoint yet" in refused(capsys, *resume)


def test_a_resumed_run_keeps_the_callbacks_of_the_user(begun, capsys):
    """Their classes, arguments and order; those that watch may come and go, but for a user's own."""
    Path("users.py").write_text(
        "from lightning import Callback\nfrom lightning.pytorch.callbacks import ModelCheckpoint\n\n\n"
        "class Share(Callback):\n    def __init__(self, share: float = 0.5):\n        pass\n\n\n"
        "class Kept(ModelCheckpoint):\n    pass\n"
    )

    def words(*callbacks, rounds=1):
        listed = [{"class_path": name, "init_args": arguments} for name, arguments in callbacks]
        return ["fit", *begun, "--trainer.max_rounds", str(rounds), f"--trainer.callbacks={json.dumps(listed)}"]

    low, high = ("users.Share", {"share": 0.2}), ("users.Share", {"share": 0.9})
    assert main(words(low, ("lightning.pytorch.callbacks.ModelCheckpoint", {"every_n_epochs": 5}))) == 0
    resume = ["--ckpt_path", "last"]
    for changed in ([high], [], [low, low], [low, ("users.Kept", {})]):
        line = refused(capsys, *words(*changed), *resume)
        assert line.startswith("lit-fednas: trainer.callbacks: the checkpoint's run was trained with [")
        assert '"init_args": {"share": 0.2}}], and now it is [' in line
        assert line.endswith("; set it as it was, or allow the change with --changed '[trainer.callbacks]'")
    assert "trainer.sync_batchnorm: " in refused(capsys, *words(low), *resume, "--trainer.sync_batchnorm", "true")
    shown = ("lightning.pytorch.callbacks.ModelSummary", {})
    machine = ["--trainer.deterministic", "true", "--trainer.check_val_every_n_rounds", "2"]
    assert main([*words(shown, low, rounds=2), *resume, *machine]) == 0
    assert main([*words(low, high, rounds=3), *resume, "--changed", "[trainer.callbacks]"]) == 0
    assert "trainer.callbacks: the checkpoint's run was trained with" in capsys.readouterr().err
    path = Path("runs/digits/version_1/checkpoints/last.ckpt")
    saved = torch.load(path, weights_only=True)
    settings = saved["callbacks"]["SaveConfig"]["settings"]
    saved["callbacks"]["SaveConfig"]["settings"] = {k: v for k, v in settings.items() if "trainer." not in k}
    torch.save(saved, path)  # as versions wrote it that compared no trainer
    assert main([*words(low, rounds=3), *resume]) == 0


def test_what_cannot_be_written_is_told_before_the_work(begun, capsys, monkeypatch):
    Path("shut").mkdir(mode=0o500)
    monkeypatch.setattr(os, "access", lambda path, mode: "shut" not in str(path))  # the superuser may write there
    for output in ("shut/page.html", "/dev/full", "runs"):
        assert "output: " in refused(capsys, "report", "runs/digits/version_0", "--output", output)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert "output: " in refused(capsys, "partition", *begun, "--output", "shut")


def test_a_full_disk_is_told_and_what_was_there_stays(begun, capsys, monkeypatch):
    run = Path("runs/digits/version_0")
    resume, report = ["fit", *begun, "--ckpt_path", "last"], ["report", str(run)]
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 999))
        assert "checkpoint.dirpath: the disk of" in refused(capsys, *resume)
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 0))
        assert "output: the disk of" in refused(capsys, *report)
    assert main(report) == 0
    for words, path in (
        (resume, run / "checkpoints" / "last.ckpt"),
        (report, run / "report.html"),
        (["partition", *begun, "--output", str(run)], run / "partition.png"),
    ):
        before = path.read_bytes()
        path.with_name(f".{path.name}.part").symlink_to("/dev/full")
        assert main(words) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last == f"lit-fednas: {path}: No space left on device; free some space, then go on"
        assert path.read_bytes() == before
    assert main(resume) == 0
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 2


def test_a_run_without_a_logger_replaces_nothing_of_the_working_directory(begun, capsys, tmp_path):
    """Nor does what comes after it; files of all the names that are written into a run's folder are there."""
    run = Path("runs/digits/version_0")
    search = ["search", "--config", str(CONFIGS / "search" / "digits.yaml"), "--search.evaluations", "30"]
    Path("checkpoints").mkdir()
    for name in [*(path.name for path in run.glob("*.*")), *(f"subnets-{split}.csv" for split in ("val", "test"))]:
        Path(name).write_text("mine")
    for name in ("search/tiers.csv", "checkpoints/last.txt", "checkpoints/devices/a.pt"):
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        Path(name).write_text("mine")
    Path("config.yaml").write_text(Path("tiny.yaml").read_text())

    def contents():
        return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}

    before, fit = contents(), ["fit", *begun, "--config", "config.yaml", "--trainer.logger", "false"]
    assert main([*fit, "--trainer.max_rounds", "1", "--device_average.weighted", "true"]) == 0
    assert "nothing is kept of the run but its checkpoints" in capsys.readouterr().err
    after, last = contents(), Path("checkpoints/last.ckpt")
    devices = {path for path in after.keys() - before.keys() if path.parent.name == "devices"}
    assert after.keys() - before.keys() - devices == {last}
    assert {path: after[path] for path in before} == before
    assert "checkpoint.dirpath: " in refused(capsys, *fit)
    for command in (["test"], ["validate"]):
        assert main([*command, *fit[1:]]) == 0
    assert "search holds other files; give search.name another name" in refused(capsys, *search, *fit[1:])
    assert contents() == after
    assert main([*fit, "--ckpt_path", "last"]) == 0  # its own are replaced
    assert {path: content for path, content in contents().items() if path in before} == before
    rooted = [*fit, "--trainer.default_root_dir"]
    assert "trainer.default_root_dir: runs is not empty" in refused(capsys, *rooted, "runs")
    assert main([*rooted, "new", "--trainer.max_rounds", "1"]) == 0
    assert {"config.yaml", "rounds.jsonl", "checkpoints"} <= {path.name for path in Path("new").iterdir()}


def test_parts_of_the_working_directory_are_found_and_a_logger_that_shares_a_folder_has_one_per_run(tiny, monkeypatch):
    Path("config.yaml").write_text("mine")
    Path("my_parts.py").write_text(
        "from lightning.pytorch.loggers.logger import DummyLogger\n"
        "from lit_fednas.federation import ConstantRate\n\n\n"
        "class Shared(DummyLogger):\n    save_dir, name, version = '.', 'project', 'a1b2'\n\n\n"
        "class MyRate(ConstantRate):\n    pass\n"
    )
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", os.getcwd())])
    parts = ["--trainer.logger", "my_parts.Shared", "--model.client.lr_schedule", "my_parts.MyRate"]
    assert main(["fit", *tiny, "--trainer.max_rounds", "1", *parts]) == 0
    assert Path("config.yaml").read_text() == "mine"
    assert not Path("rounds.jsonl").exists()
    assert {"config.yaml", "rounds.jsonl", "checkpoints"} <= {path.name for path in Path("project/a1b2").iterdir()}


def refused(capsys, *args, code=2):
    """The command's one line of error."""
    capsys.readouterr()
    assert main(list(args)) == code
    err = capsys.readouterr().err.strip()
    lines = [line for line in err.splitlines() if not line.startswith("computing with ")]  # threads, if told
    assert len(lines) == 1, err
    assert lines[0].startswith("lit-fednas: ")
    return lines[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trainer.max_epochs", "3"], "unrecognized arguments: --trainer.max_epochs"),
        (["--model.client.batch_size", "abc"], 'key "model.client.batch_size": Expected'),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--model.assignment", "Foo"], 'key "model.assignment"'),
        (["--data.source", "Digit"], "import path string: Digit; did you mean Digits?"),
        (["--model.client.batch_sizes", "3"], "did you mean model.client.batch_size?"),
        (["--model.supernet.stem_wdth", "3"], "Option 'stem_wdth' is not accepted; did you mean stem_width?"),
        (["--model.evaluation.subnets", '["d: [0,0,0,9], e: 0.1"]'], "depth 9 is not one of [0, 1, 2]"),
        (["--data.num_clients", "5000"], "num_clients: 5000 for 1294 examples; give at most 1294"),
        (
            ["--model.aggregation", "OverlapAverage"],
            "OverlapAverage reads; change one of them, or set beta_decay to nu",
        ),
        (["--checkpoint.monitor", "val/nobody/accuracy"], "will not be logged; choose from val/"),
        (["--checkpoint.dirpath", "tiny.yaml"], "tiny.yaml cannot be written to; give another folder"),
        (["--seed_everything", "true"], "lit-fednas: seed_everything: True must be a number"),
        (["--trainer.accelerator", "gpu"], "trainer: No supported gpu backend found!; change"),
        (["--trainer.devices=-1"], "trainer: `devices` selected with `CPUAccelerator` should be an int > 0"),
        (["--trainer.threads", "1000000"], "trainer.threads: 1000000 must be at least 1 and at most 1024"),
        (["--model.supernet.num_classes", "7"], "supernet.init_args.num_classes: 7 is not that of the data, 10; leave"),
        (["--trainer.logger.init_args.name", "../../x"], "trainer.logger.init_args.name: '../../x' leaves save_dir"),
        (["--trainer.logger.init_args.name", "a\0b"], "name: 'a\\x00b' leaves save_dir, or names no folder"),
        (["--trainer.logger.init_args.save_dir", "/proc/x"], "/proc/x"),
        (["--model.client.optimizer.init_args.lr=-0.1"], "client.optimizer: cannot be made (Invalid lea"),
        (["--model.server_optimizer", "SGD", "--model.server_optimizer.lr=-1"], "server_optimizer: cannot be made"),
        (["--ckpt_path", "nowhere.ckpt"], "nowhere.ckpt does not exist"),
        (["--trainer.logger.init_args.name", "other", "--ckpt_path", "last"], "finds no run in runs/other"),
    ],
)
def test_bad_input_is_one_clear_line_before_training(tiny, capsys, options, message):
    assert message in refused(capsys, "fit", *tiny, *options)
    assert not list(Path().rglob("rounds.jsonl"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {client: {batch_sise: 3}}", "model.client.batch_sise"),
        ("model: {supernet: {init_args: {stemwidth: 3}}}", "stemwidth"),
        (
            "trainer: {plugins: [{class_path: lightning.pytorch.plugins.DoublePrecision}]}",
            "has no meaning here; set cl",
        ),
        ("a: &a [*a]", "config: RecursionError: "),
        ("data: {source: {class_path: wrong_part.Source}}", "invalid syntax (wrong_part.py, line 1); correct the file"),
        ("seed_everything: 0 # über", "is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(tiny, capsys, text, message):
    Path("wrong_part.py").write_text("class Source(:")
    Path("wrong.yaml").write_text(text, encoding="latin-1")
    assert message in refused(capsys, "fit", *tiny, "--config", "wrong.yaml")


def test_checkpoints_that_do_not_fit_are_one_clear_line(begun, capsys):
    last = "runs/digits/version_0/checkpoints/last.ckpt"
    wider = ["--model.supernet.init_args.stage_widths", "[8,8,8,16]"]
    assert "set it as it was" in refused(capsys, "fit", *begun, *wider, "--ckpt_path", last)
    assert main(["fit", *begun, *wider, "--ckpt_path", last, "--changed", "[model.supernet]"]) == 2
    assert "use the model.supernet settings that the run was started with" in capsys.readouterr().err
    assert "finds none" in refused(capsys, "test", *begun, "--ckpt_path", "best")


@pytest.mark.slow
def test_checkpoints_that_cannot_be_used_are_one_clear_line(begun, capsys):
    """For every command that takes one; none advises to load what may run code."""
    last = Path("runs/digits/version_0/checkpoints/last.ckpt")
    whole = last.read_bytes()
    content = torch.load(last, weights_only=True)
    weights = content["state_dict"]
    first = next(iter(weights))
    short, nothing = first.removeprefix("supernet."), torch.full_like(weights[first], torch.nan)
    bad = {
        "the weights alone": (weights, "has no state_dict, pytorch-lightning_version, federation; give a .ckpt"),
        "a list": ([1], "has no state_dict"),
        "Lightning's": ({**content, "federation": None}, "has no federation"),
        "without ours": ({**content, "federation": {"seed": 0}}, "has no federation.supernet, federation.assignment"),
        "with code": ({**content, "path": Path()}, "holds more than tensors and plain values"),
        "a tensor less": ({**content, "state_dict": dict([*weights.items()][1:])}, "differs in 1 tensors"),
        "a tensor more": ({**content, "state_dict": {**weights, "foo": nothing}}, "in 1 tensors, first in foo"),
        "no numbers": ({**content, "state_dict": {**weights, first: nothing}}, f"its {short} holds NaN"),
    }
    commands = (["fit"], ["validate"], ["test"], ["search"], ["finetune"], ["export", "--tier", "any"])
    for command, (saved, message) in zip(itertools.cycle(commands), bad.values(), strict=False):
        torch.save(saved, "bad.ckpt")
        assert message in refused(capsys, *command, *begun, "--ckpt_path", "bad.ckpt")
        Path("bad.ckpt").write_bytes(whole[: len(whole) // 2])
        assert "bad.ckpt cannot be read" in refused(capsys, *command, *begun, "--ckpt_path", "bad.ckpt")
    assert "checkpoints is a folder" in refused(capsys, "fit", *begun, "--ckpt_path", str(last.parent))
    training = ("callbacks", "optimizer_states", "lr_schedulers")
    torch.save({name: part for name, part in content.items() if name not in training}, "bad.ckpt")  # weights only
    assert "has no callbacks, optimizer_states" in refused(capsys, "fit", *begun, "--ckpt_path", "bad.ckpt")
    assert main(["test", *begun, "--ckpt_path", "bad.ckpt"]) == 0
    last.write_bytes(whole[:-100])
    assert "last.ckpt cannot be read" in refused(capsys, "test", *begun, "--ckpt_path", "best")


@pytest.mark.slow
def test_a_checkpoints_hyperparameters_change_nothing_and_import_nothing(tiny, capsys):
    batches = ["--model.client.batch_size", "16"]
    assert main(["fit", *tiny, *batches, "--trainer.max_rounds", "1"]) == 0
    last = Path("runs/digits/version_0/checkpoints/last.ckpt")
    checkpoint = torch.load(last, weights_only=True)
    Path("planted.py").write_text("open('imported', 'w').close()\n")
    for planted in ({"client": {"batch_size": 7}}, {"_class_path": "planted.Model", "seed": 3}):
        torch.save({**checkpoint, "hyper_parameters": planted}, last)
        assert main(["fit", *tiny, *batches, "--ckpt_path", str(last)]) == 0
        assert "its hyper_parameters are ignored" in capsys.readouterr().err
    assert not Path("imported").exists()
    config = yaml.safe_load(Path("runs/digits/version_0/config.yaml").read_text())
    assert config["model"]["client"]["batch_size"] == 16


def test_broken_records_are_one_clear_line(begun, capsys):
    rounds = Path("runs/digits/version_0/rounds.jsonl")
    whole = rounds.read_bytes()
    for broken in (b"\n", b"{bad\n", b"{}\n", b"[1]\n", b"\xff\xfe\n"):
        rounds.write_bytes(whole + broken + whole)
        line = refused(capsys, "report", "runs/digits/version_0")
        assert "rounds.jsonl: line 2 is not the record of a round" in line
    rounds.write_bytes(whole)
    run = rounds.parent
    for name, broken in (("metrics.csv", b"a,b\n1,2\n"), ("metrics.csv", b"\xff\xfe\n"), ("ledger.json", b"{")):
        kept = (run / name).read_bytes()
        (run / name).write_bytes(broken)
        assert f"{name}: is damaged" in refused(capsys, "fit", *begun, "--ckpt_path", "last")
        (run / name).write_bytes(kept)
    assert rounds.read_bytes() == whole


def test_fast_dev_run_does_so_many_rounds_and_one_validation_without_files(tiny, capsys):
    assert main(["fit", *tiny, "--trainer.fast_dev_run", "3"]) == 0
    shown = capsys.readouterr()
    assert "round 3/3" in shown.err
    assert shown.out.count("val accuracy") == 1
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"]


def test_a_client_error_with_raise_is_one_line_and_exit_1(tiny, capsys, monkeypatch):
    from lit_fednas.objectives import CrossEntropy

    def broken(self, network, inputs, targets):
        raise RuntimeError("out of paper")

    monkeypatch.setattr(CrossEntropy, "loss", broken)
    line = refused(capsys, "fit", *tiny, "--model.faults.on_client_error", "raise", code=1)
    assert "round 0, client" in line
    assert "out of paper" in line


def test_weights_and_biases_without_a_login_is_one_line(tiny, capsys, monkeypatch):
    def refuse(**settings):
        raise wandb.errors.UsageError("No API key configured.\nUse it.")

    import wandb

    monkeypatch.setattr(wandb, "init", refuse)
    line = refused(capsys, "fit", *tiny, "--config", str(CONFIGS / "loggers" / "wandb_online.yaml"))
    assert "trainer.logger: No API key configured. Use it.; run 'wandb login', or set its offline to true" in line
    assert not list(Path().rglob("config.yaml"))


def test_ctrl_c_while_the_program_starts(tmp_path):
    """The first that is imported, in place of Lightning, is where the signal comes."""
    interrupted = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n"
    (tmp_path / "lightning.py").write_text(interrupted)
    environment = {**os.environ, "PYTHONPATH": str(CONFIGS.parent)}
    command = [sys.executable, "-m", "lit_fednas", "fit"]
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests in the background ignore it
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, check=False, preexec_fn=listening
    )
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_wandb_offline_gets_metrics_config_partition_and_table(tiny, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.teardown()  # W&B's own process takes relative paths from where it was started
    loggers = ["--config", str(CONFIGS / "loggers" / "wandb_offline.yaml")]
    assert main(["fit", *tiny, *loggers]) == 0
    wandb.finish()
    run = Path("runs/run/version_0")
    assert (run / "rounds.jsonl").exists()
    (offline,) = Path("runs/wandb").glob("offline-run-*")
    media = {path.suffix for path in (offline / "files" / "media").rglob("*.*")}
    assert {".png", ".json"} <= media
    (log,) = offline.glob("*.wandb")
    names = (b"val/largest/accuracy", b"cost/total_macs", b"supernet", b"stage_widths", b"beta0")
    deadline = time.monotonic() + 60
    while missing := [name for name in names if name not in log.read_bytes()]:
        assert time.monotonic() < deadline, missing  # a process of its own writes the file
        time.sleep(0.1)
