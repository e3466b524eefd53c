"""The command line, called in this process: commands, options and their errors."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import pytest
import torch
import wandb
import yaml

from lit_fednas import __version__
from lit_fednas.analysis import newest_run
from lit_fednas.cli import main
from lit_fednas.data import Digits, Dirichlet, FederatedDataModule
from lit_fednas.errors import CheckpointError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.loggers import RunLogger
from lit_fednas.records import files
from tests.callbacks.test_wandb_logging import written
from tests.support import SMALL

CONFIGS = Path(__file__).parents[1] / "configs"
DIGITS = CONFIGS / "superfed" / "digits.yaml"


def overlaid(folder):
    """Writes the overlay of a small configuration into a folder; returns the words that select both files."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**SMALL, "beta_decay": {"rounds": 2}}))
    return ["--config", str(DIGITS), "--config", str(folder / "tiny.yaml")]


@pytest.fixture(scope="module")
def one_round(tmp_path_factory):
    """Returns the folder of a run of one round, which must not change, and its output."""
    folder, out, err = tmp_path_factory.mktemp("once"), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        assert main(["fit", *overlaid(folder), "--trainer.max_rounds", "1"]) == 0
    return folder / "runs", out.getvalue(), err.getvalue()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Returns the words of a small configuration, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return overlaid(tmp_path)


@pytest.fixture
def run_words(tiny, one_round, tmp_path):
    """Returns the same words, in a working directory with a copy of the run."""
    shutil.copytree(one_round[0], tmp_path / "runs")
    return tiny


def test_fit_writes_a_run(one_round):
    runs, out, err = one_round
    run = runs / "digits" / "version_0"
    expected = [
        "config.yaml",
        "inputs.json",
        "ledger.json",
        "metrics.csv",
        "partition.csv",
        "partition.png",
        "rounds.jsonl",
        "subnets-val.csv",
    ]
    assert {path.name for path in run.iterdir()} == {*expected, "checkpoints", "SHA256SUMS"}
    sums = dict(reversed(line.split("  ")) for line in (run / "SHA256SUMS").read_text().splitlines())
    records = {name: (run / name).read_bytes() for name in expected if not name.endswith(("yaml", "png"))}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in records.items()}
    (record,) = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert len(record["clients"]) == 2
    assert f"# lit-fednas=={__version__}" in (run / "config.yaml").read_text()
    assert "largest" in out
    run = "runs/digits/version_0"
    next_command = f"search --config {run}/config.yaml --search.tiers EvenBudgets --search.tiers.count 3"
    assert out.endswith(f"written: {run}\nnext: lit-fednas {next_command}\nor:   lit-fednas report {run}\n")
    assert "times less computation" in err
    assert "Epoch" not in err + out  # no progress bar of Lightning, and no output of inner Trainers


def test_without_a_checkpoint_the_newest_runs_last_is_tested(run_words, capsys, refused):
    """The test uses trained weights, and prints the name of their checkpoint."""
    run = Path("runs/digits/version_0")
    last, tables = run / "checkpoints/last.ckpt", []
    for more in ([], ["--ckpt_path", str(last)]):
        assert main(["test", *run_words, *more]) == 0
        output = capsys.readouterr()
        tables.append(output.out)
        assert (f"weights: those of {last}" in output.err) is (not more)
    assert tables[0] == tables[1]
    assert (run / "subnets-test.csv").exists()
    assert "no 'best' in" in refused("test", *run_words, "--ckpt_path", "best")
    assert [path.name for path in run.parent.iterdir()] == ["version_0"]
    shutil.rmtree("runs")
    assert "ckpt_path: 'last' finds no run in runs/digits; train one" in refused("test", *run_words)


def test_a_resumed_run_keeps_the_settings_that_training_depends_on(run_words, capsys, refused):
    run = Path("runs/digits/version_0")
    config = (run / "config.yaml").read_bytes()
    resume = ["fit", *run_words, "--ckpt_path", "last"]
    line = refused(*resume, "--model.client.optimizer.lr", "0.5")
    assert line.startswith("lit-fednas: model.client.optimizer.init_args.lr: the run was trained with")
    assert "and now it is 0.5; restore it, or add --changed" in line
    assert (run / "config.yaml").read_bytes() == config
    assert "seed_everything: the run was trained" in refused("test", *resume[1:], "--seed_everything", "7")
    assert "PruneByBudgets does not work" in refused("fit", *run_words, "--prune_by_budgets.budget", "0.5")
    Path("users.py").write_text("from lightning import Callback\n\n\nclass Own(Callback):\n    pass\n")
    assert "lit-fednas: trainer.callbacks: the run was trained" in refused(*resume, "--trainer.callbacks=users.Own")
    watching = ["--trainer.callbacks=ModelSummary", "--model.evaluation.sampled", "2", "--trainer.threads", "1"]
    allowed = ["--model.client.batch_size", "7", "--changed", "[model.client]"]
    assert main([*resume, *watching, *allowed]) == 0
    assert "model.client.batch_size: the run was trained with" in capsys.readouterr().err
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 2


def test_an_argument_that_the_checkpoints_version_did_not_have_is_no_change(run_words, refused):
    """A checkpoint has all arguments of a class; other missing settings are changes."""
    last = Path("runs/digits/version_0/checkpoints/last.ckpt")
    content = torch.load(last, weights_only=True)
    settings = content["callbacks"]["SaveConfig"]["settings"]
    del settings["data.partitioner.init_args.alpha"]
    torch.save(content, last)
    assert main(["test", *run_words]) == 0
    del settings["data.server_val"]
    torch.save(content, last)
    assert "data.server_val: the run was trained with null" in refused("test", *run_words)


def test_a_schedule_keeps_its_length_when_a_run_is_extended(tiny, capsys, refused):
    """Two clients: from 0.9 to 0.5 over 0.8 * 2 rounds; 0.5 + 0.4 (1 + cos(pi / 1.6)) / 2 = 0.623463."""
    header = "import lit_fednas.federation\n\n\nclass Own(lit_fednas.federation.FederatedCallback):\n"
    Path("lengths.py").write_text(
        f"{header}    def on_round_start(self, trainer, module, round):\n        round.max_rounds\n"
    )
    assert main(["fit", *tiny, "--trainer.callbacks=lengths.Own", "--beta_decay.rounds=null"]) == 0
    longer = ["fit", *tiny, "--ckpt_path=last", "--trainer.max_rounds=3", "--trainer.callbacks=lengths.Own"]
    line = refused(*longer, "--beta_decay.rounds=null")
    change = r"trained with 1.6, and now it is 2.4\d* by trainer.max_rounds; restore it, or add --changed"
    assert re.search(f"lit-fednas: beta_decay.rounds: the run was {change}", line)
    longer += ["--beta_decay.rounds=1.6"]
    assert "lit-fednas: trainer.max_rounds: the run was trained with 2, and now" in refused(*longer)
    assert main([*longer, "--changed=[trainer.max_rounds]"]) == 0
    with open("runs/digits/version_0/metrics.csv", newline="") as file:
        betas = [float(row["beta"]) for row in csv.DictReader(file) if row["beta"]]
    assert betas == pytest.approx([0.9, 0.623463, 0.5], abs=1e-6)


def test_a_rate_that_follows_the_budget_keeps_it_when_a_run_is_extended(tiny, refused):
    words = ["fit", *tiny, "--model.client.lr_schedule=CosineRate"]
    assert main([*words, "--cost_ledger.max_macs=1e15"]) == 0
    for name in ("max_macs", "max_bytes"):
        line = refused(*words, "--ckpt_path=last", "--cost_ledger.max_macs=1e15", f"--cost_ledger.{name}=2e15")
        assert f"cost_ledger.{name}: the run was trained with" in line


@pytest.mark.parametrize("where", ["__init__", "loss"])
def test_a_part_that_ends_the_process_is_a_failed_run(tiny, refused, where):
    module = Path(f"leaves_in_{where}.py")
    base = "from lit_fednas.objectives import CrossEntropy\nclass Own(CrossEntropy):\n"
    module.write_text(f"import sys\n{base}    def {where}(self, *args):\n        sys.exit(0)\n")
    origin = f"{module}, line 5, in Own.{where}"
    line = refused("fit", *tiny, f"--model.objective={module.stem}.Own", code=1)
    assert line == f"lit-fednas: sys.exit(0) in {origin} ended the command; raise an error there instead"


def open_or_full(full, path, *args, **settings):
    """Opens a file; the file with the name ``full`` is on a full disk."""
    return open("/dev/full", "wb") if path.name == full else open(path, *args, **settings)


def test_a_full_disk_is_an_error_and_present_files_stay(run_words, capsys, refused, monkeypatch):
    run = Path("runs/digits/version_0")
    resume, report = ["fit", *run_words, "--ckpt_path", "last"], ["report", str(run)]
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 999))
        assert "checkpoint.dirpath: the disk of" in refused(*resume)
    assert main(report) == 0
    last = run / "checkpoints" / "last.ckpt"
    remedies = {last: f"continue with --ckpt_path {last}", run / "report.html": "start the same command again"}
    for words, (path, remedy) in zip((resume, report), remedies.items(), strict=True):
        content = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(files, "open", partial(open_or_full, f".{path.name}.part"), raising=False)
            assert main(words) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line == f"lit-fednas: {path}: No space left on device; free some space, then {remedy}"
        assert path.read_bytes() == content


@pytest.mark.parametrize("rooted", [False, True])
def test_a_run_that_has_saved_no_round_is_started_again(tiny, capsys, refused, monkeypatch, rooted):
    """After Ctrl-C in round 1 and a full disk at its end, the printed remedies work."""
    Path("stopping.py").write_text(
        "import os, signal\nfrom lightning import Callback\n\n\nclass Stop(Callback):\n"
        "    def on_train_start(self, *parts):\n        os.kill(os.getpid(), signal.SIGINT)\n"
    )
    logger = ["--trainer.logger", "false", "--trainer.default_root_dir", "root"] if rooted else []
    words, remedy = ["fit", *tiny, *logger, "--trainer.max_rounds", "1"], "start the same command again, as no round is"
    assert main([*words, "--trainer.callbacks", "stopping.Stop"]) == 130
    assert capsys.readouterr().err.endswith(f"lit-fednas: stopped by SIGINT; {remedy} saved yet\n")
    message = "checkpoints/last.ckpt does not exist, as no round was saved there; train without ckpt_path"
    assert message in refused(*words, "--ckpt_path", "last")
    with monkeypatch.context() as patch:
        patch.setattr(files, "open", partial(open_or_full, ".last.ckpt.part"), raising=False)
        assert main(words) == 2
    assert capsys.readouterr().err.endswith(f"No space left on device; free some space, then {remedy} saved yet\n")
    assert main(words) == 0
    (last,) = Path().rglob("last.ckpt")
    assert len((last.parents[1] / "rounds.jsonl").read_text().splitlines()) == 1


def test_a_run_without_a_logger_replaces_nothing_of_the_working_directory(run_words, capsys, refused):
    """The working directory has files with all names that a run writes."""
    Path("checkpoints").mkdir()
    for path in Path("runs/digits/version_0").glob("*.*"):
        Path(path.name).write_text("mine")
    Path("checkpoints/last.txt").write_text("mine")
    Path("config.yaml").write_text(Path("tiny.yaml").read_text())

    def contents():
        return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}

    initial, words = contents(), [*run_words, "--config", "config.yaml", "--trainer.logger", "false"]
    assert main(["fit", *words, "--trainer.max_rounds", "1"]) == 0
    assert "only checkpoints are kept" in capsys.readouterr().err
    assert contents().keys() - initial.keys() == {Path("checkpoints/last.ckpt")}
    assert {path: contents()[path] for path in initial} == initial
    assert "checkpoint.dirpath: " in refused("fit", *words)
    rooted = ["--trainer.default_root_dir", "runs"]
    assert "trainer.default_root_dir: runs is not empty" in refused("fit", *words, *rooted)


@pytest.mark.slow
def test_a_runs_module_is_loaded_and_predicts_in_the_order_of_the_test_set(tiny, capsys):
    """The share of correct predictions equals the accuracy of ``test`` for the same subnet."""
    recalibrated = ["--model.evaluation.recalibrate_batches", "2"]
    assert main(["fit", *tiny, *recalibrated, "--model.evaluation.predicted", "smallest"]) == 0
    assert main(["test", *tiny, *recalibrated, "--ckpt_path", "last", "--data.eval_batch_size", "100"]) == 0
    last = "runs/digits/version_0/checkpoints/last.ckpt"
    with Path("runs/digits/version_0/subnets-test.csv").open() as file:
        (tested,) = [row for row in csv.DictReader(file) if row["subnet"] == "smallest"]
    module = FederatedLightningModule.load_from_checkpoint(last)
    data = FederatedDataModule(Digits(), Dirichlet(10.0), num_clients=10, eval_batch_size=100)
    trainer = FederatedTrainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    for ckpt_path in (None, last):
        batches = trainer.predict(module, datamodule=data, ckpt_path=ckpt_path)
        logits, targets = torch.cat(batches), Digits().load("test").targets
        assert logits.shape == (len(targets), 10)
        correct = (logits.argmax(1) == targets).float().mean().item()
        assert correct == pytest.approx(float(tested["accuracy"]), abs=1e-6)
    Path("runs/digits/version_0/config.yaml").unlink()
    with pytest.raises(CheckpointError, match=r"version_0/config.yaml does not exist.* load_from_checkpoint\('runs"):
        FederatedLightningModule.load_from_checkpoint(last)


@pytest.mark.slow
def test_a_resumed_runs_config_starts_a_new_run(run_words, refused):
    """It has neither the run's folder nor the checkpoint of the resumed run."""
    assert main(["fit", *run_words, "--ckpt_path", "last"]) == 0
    first = Path("runs/digits/version_0")
    records = (first / "rounds.jsonl").read_bytes()
    assert main(["fit", "--config", str(first / "config.yaml")]) == 0
    assert (first / "rounds.jsonl").read_bytes() == records
    files = [Path(f"runs/digits/version_{n}/rounds.jsonl").read_text().splitlines() for n in range(2)]
    metrics, repeated = ([json.loads(line)["metrics"] for line in lines] for lines in files)
    assert repeated == metrics
    message = refused("fit", *run_words, "--trainer.logger.init_args.version", "0")
    assert "version_0 has a run; omit version" in message


def test_an_unwritable_output_is_an_error_before_the_work(run_words, refused, monkeypatch):
    Path("shut").mkdir(mode=0o500)
    monkeypatch.setattr(os, "access", lambda path, mode: "shut" not in str(path))  # the superuser may write there
    Path("thesis.html").touch()
    for output in ("shut/page.html", "/dev/full", "runs", "thesis.html"):
        assert "output: " in refused("report", "runs/digits/version_0", "--output", output)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    words = ["report", "runs/digits/version_0", "--output", "thesis.html"]
    assert main([*words, "--overwrite"]) == main(words) == 0


def test_the_owner_alone_reads_the_seed_of_a_private_runs_noise(tiny):
    """This holds for every file with the seed, and for every umask."""
    privacy = {"clip_norm": 1.0, "noise_multiplier": 1.0, "noise_seed": 314159265}
    model = {
        "assignment": {"class_path": "lit_fednas.assignment.RandomArchitectures"},
        "aggregation": {"class_path": "lit_fednas.aggregation.OverlapAverage", "init_args": {"weighted": False}},
        "faults": {"min_survivors": 0, "max_failed_rounds": None},
    }
    Path("private.yaml").write_text(yaml.safe_dump({"privacy": privacy, "beta_decay": None, "model": model}))
    umask = os.umask(0)
    try:
        assert main(["fit", *tiny, "--config", "private.yaml", "--trainer.max_rounds", "1"]) == 0
    finally:
        os.umask(umask)
    files = [path for path in Path("runs").rglob("*") if path.is_file()]
    number = [b"314159265", (314159265).to_bytes(4, "little")]  # in a checkpoint
    holding = [path for path in files if any(form in path.read_bytes() for form in number)]
    assert {path.name for path in holding} == {"config.yaml", "last.ckpt"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}


def test_parts_of_the_working_directory_are_found_and_a_logger_that_shares_a_folder_has_one_per_run(tiny, monkeypatch):
    Path("config.yaml").write_text("mine")
    Path("my_parts.py").write_text(
        "from lightning.pytorch.loggers.logger import DummyLogger\n"
        "from lit_fednas.federation import StepRate\n\n\n"
        "class Shared(DummyLogger):\n    save_dir, name, version = '.', 'project', 'a1b2'\n\n\n"
        "class MyRate(StepRate):\n    def __init__(self):\n        super().__init__(1)\n"
    )
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", os.getcwd())])
    parts = ["--trainer.logger", "my_parts.Shared", "--model.client.lr_schedule", "my_parts.MyRate"]
    assert main(["fit", *tiny, "--trainer.max_rounds", "1", *parts]) == 0
    assert Path("config.yaml").read_text() == "mine"
    assert not Path("rounds.jsonl").exists()
    assert {"config.yaml", "rounds.jsonl", "checkpoints"} <= {path.name for path in Path("project/a1b2").iterdir()}


def test_modules_beside_a_configuration_are_imported_also_for_its_run(tiny, refused, monkeypatch):
    """They are imported from every folder; a run without the line of modules is refused."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", os.getcwd())])
    rate = "from lit_fednas.federation import StepRate\n\n\nclass Rate(StepRate):\n    every = 1\n"
    for folder, module in (("sub", "rate_beside"), (".", "rate_here")):
        Path(folder).mkdir(exist_ok=True)
        Path(folder, f"{module}.py").write_text(f"{rate}\n    def __init__(self):\n        super().__init__(1)\n")
        Path(f"sub/{module}.yaml").write_text(f"model: {{client: {{lr_schedule: {module}.Rate}}}}")
        overlay = ["--config", f"sub/{module}.yaml", "--trainer.logger.init_args.name", module]
        assert main(["fit", *tiny, *overlay, "--trainer.max_rounds", "1"]) == 0
    Path("elsewhere").mkdir()
    for module, folder, root in (("rate_beside", ".", "runs"), ("rate_here", "elsewhere", "../runs")):
        monkeypatch.delitem(sys.modules, module, raising=False)
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            assert main(["validate", "--config", f"{root}/{module}/version_0/config.yaml"]) == 0
    assert not any(Path("elsewhere").iterdir())
    config = Path("runs/rate_beside/version_0/config.yaml")
    config.write_text(config.read_text().partition("\n")[2])
    monkeypatch.delitem(sys.modules, "rate_beside")
    message = "config: the module rate_beside is not installed, in this folder or beside the configuration; add its"
    assert message in refused("validate", "--config", str(config))


@pytest.fixture
def versions(run_words):
    """Copies a run to other numbers; the lowest number has the newest files."""
    run = Path("runs/digits/version_0")
    for number in (9, 10):
        shutil.copytree(run, run.with_name(f"version_{number}"))
    for number, time in ((10, 1), (9, 2), (0, 3)):
        for path in run.with_name(f"version_{number}").rglob("*"):
            os.utime(path, (time, time))
    return run_words


def folders_with_a_test():
    """Returns the folders of the tested runs."""
    return [path.parent.as_posix() for path in sorted(Path().rglob("subnets-test.csv"))]


def test_a_runs_own_configuration_names_that_run(versions, capsys):
    """This holds for a moved run and for a run in the working directory, too; its settings name ``runs/digits``."""
    assert main(["test", "--config", "runs/digits/version_9/config.yaml"]) == 0
    assert folders_with_a_test() == ["runs/digits/version_9"]
    shutil.copytree("runs/digits/version_0", "backup/of it/version 3")
    tiers = ["--config", "search/distorted_digits.yaml", "--search.evaluations", "2", "--search.method.init_args", "{}"]
    assert main(["search", "--config", "backup/of it/version 3/config.yaml", *tiers]) == 0
    assert (
        f"next: lit-fednas export --config '{Path('backup/of it/version 3').resolve()}'/con" in capsys.readouterr().out
    )
    assert [path.parent.as_posix() for path in Path().rglob("search")] == ["backup/of it/version 3"]
    resume = ["--ckpt_path", "last", "--trainer.max_rounds", "2"]
    assert main(["fit", "--config", "runs/digits/version_0/config.yaml", *resume]) == 0
    counts = {path.parent.name: len(path.read_text().splitlines()) for path in Path("runs").rglob("rounds.jsonl")}
    assert counts == {"version_0": 2, "version_9": 1, "version_10": 1}
    os.chdir("runs/digits/version_0")
    assert main(["test", "--config", "config.yaml"]) == 0
    assert folders_with_a_test() == ["."]


def test_the_newest_run_has_the_highest_number(versions):
    assert newest_run() == Path("runs/digits/version_10")
    assert main(["test", *versions]) == 0
    assert folders_with_a_test() == ["runs/digits/version_10"]
    words = ["fit", "--config", "runs/digits/version_0/config.yaml", "--trainer.max_rounds", "1"]
    assert main(words) == 0
    assert Path("runs/digits/version_11/rounds.jsonl").exists()


def test_a_home_folder_is_one_folder_for_all_readers(tiny, tmp_path, monkeypatch):
    """The shell does not expand ``~`` within words and files."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    Path("own.yaml").write_text("trainer: {logger: {init_args: {save_dir: ~/exp}}}\ncheckpoint: {dirpath: ~/kept}")
    home.mkdir()
    shutil.move("own.yaml", home / "own.yaml")
    words = [*tiny, "--config=~/own.yaml"]
    for more in (["--trainer.max_rounds=1"], ["--ckpt_path=~/kept/last.ckpt"]):
        assert main(["fit", *words, *more]) == 0
    assert main(["report", "~/exp/digits/version_0", "--output=~/page.html"]) == 0
    assert main(["compare", "all=~/exp/digits/*_0", "--output=~/compared"]) == 0
    config = yaml.safe_load((home / "exp/digits/version_0/config.yaml").read_text())
    assert config["checkpoint"]["dirpath"] == str(home / "kept")
    assert {path.name for path in home.iterdir()} == {"own.yaml", "exp", "kept", "page.html", "compared"}
    assert newest_run("~/exp") == Path(RunLogger("~/exp", "digits", 1).log_dir) == home / "exp/digits/version_1"
    assert {path.name for path in tmp_path.iterdir()} == {"home", "tiny.yaml"}


@pytest.mark.slow
def test_all_that_is_done_with_a_run_is_one_run_of_each_logger(tiny, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("tensorboard", "wandb_online"):
        tiny += ["--config", str(CONFIGS / "loggers" / f"{name}.yaml")]
    search = ["search", "--config", str(CONFIGS / "search" / "digits.yaml"), "--search.method.init_args", "{}"]
    for command in (["fit"], ["test"], ["fit"], [*search, "--search.evaluations", "1"]):
        assert main([*command, *tiny, "--trainer.max_rounds", "1"]) == 0
        wandb.finish()  # the end of a process does the same
    first, second = ((Path("runs/digits") / name / "wandb-id.txt").read_text() for name in ("version_0", "version_1"))
    files = sorted(Path("runs/wandb").glob("offline-run-*/*.wandb"))
    assert [path.stem for path in files] == [f"run-{identity}" for identity in (first, first, second, second)]
    display_names = [{record.run.display_name for record in written(path)} - {""} for path in files]
    assert display_names == [{"digits/version_0"}] * 2 + [{"digits/version_1"}] * 2
    assert len(list(Path("runs/digits").glob("*/tensorboard"))) == 2
    assert {path.name for path in Path("runs").iterdir()} == {"digits", "wandb"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.client.batch_size", "abc"], 'key "model.client.batch_size": Expected'),
        (["--data.source", "Digit"], "import path string: Digit; did you mean Digits?"),
        (["--data.source", "lit_fednas.data.ImageFolders"], "no attribute 'ImageFolders'; did you mean ImageFolder?"),
        (["--model.client.batch_sizes", "3"], "did you mean model.client.batch_size?"),
        (["--model.supernet.stem_wdth", "3"], "Option 'stem_wdth' is not accepted; did you mean stem_width?"),
        (["--model.evaluation.subnets", '["d: [0,0,0,9], e: 0.1"]'], "depth 9 is not one of [0, 1, 2]"),
        (["--model.evaluation.subnets", str([f"a{n} = largest" for n in range(1001)])], "subnets: 1,001 are too many"),
        (["--data.num_clients", "5000"], "num_clients: 5000 for 1294 examples; give at most 1294"),
        (
            ["--checkpoint.monitor", "val/nobody/accuracy"],
            "will not be logged; did you mean val/mean/accuracy?",
        ),
        (["--trainer.accelerator", "gpu"], "trainer: No supported gpu backend found!; change"),
        (["--model.supernet.num_classes", "7"], "supernet.init_args.num_classes: 7 is not the data's 10; remove"),
        (["--trainer.logger.init_args.name", "../../x"], "trainer.logger.init_args.name: '..' cannot name a folder"),
        (["--model.client.optimizer.init_args.lr=-0.1"], "client.optimizer: cannot be made (Invalid lea"),
        (["--seed_everything", "true"], "seed_everything: true must be a number from 0 to 2^32 - 1"),
        (
            ["--model.objective", "lit_fednas.objectives.Objective"],
            "model.objective: lit_fednas.objectives.Objective la",
        ),
        (
            ["--model.tiers.source", "lit_fednas.tiers.TierSource"],
            "model.tiers.source: lit_fednas.tiers.TierSource lacks tiers; implement it, or choose another",
        ),
        (["--ckpt_path", "nowhere.ckpt"], "nowhere.ckpt does not exist"),
    ],
)
def test_bad_input_is_one_clear_line_before_training(tiny, refused, options, message):
    assert message in refused("fit", *tiny, *options)
    assert not list(Path().rglob("rounds.jsonl"))


def test_a_run_without_validation_data_says_so_and_cannot_be_validated(tiny, capsys, recwarn):
    words = [*tiny, "--data.server_val=0"]
    assert main(["fit", *words, "--trainer.max_rounds=1"]) == 0
    assert capsys.readouterr().err.count("data.server_val: 0 leaves nothing to validate on") == 1
    assert not [str(warning.message) for warning in recwarn if "Total length" in str(warning.message)]
    assert main(["validate", *words]) == 2
    assert "lit-fednas: data.server_val: 0 leaves nothing to validate on; raise it" in capsys.readouterr().err


def test_a_file_that_cannot_be_used_is_one_clear_line(tiny, refused):
    Path("wrong_part.py").write_text("class Source(:")
    Path("wrong.yaml").write_text("data: {source: {class_path: wrong_part.Source}}")
    line = refused("fit", *tiny, "--config", "wrong.yaml")
    assert "invalid syntax (wrong_part.py, line 1); correct the file" in line


@pytest.mark.slow
def test_checkpoints_that_cannot_be_used_are_one_clear_line(run_words, refused):
    """This holds for every command with a checkpoint; no error advises to load unsafe files."""
    last = Path("runs/digits/version_0/checkpoints/last.ckpt")
    whole = last.read_bytes()
    content = torch.load(last, weights_only=True)
    weights = content["state_dict"]
    first = next(iter(weights))
    nothing = torch.full_like(weights[first], torch.nan)
    bad = {
        "fit": (weights, "has no state_dict, pytorch-lightning_version, federation; give a .ckpt"),
        "validate": ({**content, "federation": {"seed": 0}}, "has no federation.supernet, federation.assignment"),
        "test": ({**content, "path": Path()}, "holds more than tensors and plain values"),
        "search": ({**content, "state_dict": {**weights, "foo": nothing}}, "in 1 tensors, first in foo"),
        "finetune": ({**content, "state_dict": {**weights, first: nothing}}, "holds NaN"),
    }
    for command, (saved, message) in bad.items():
        torch.save(saved, "bad.ckpt")
        assert message in refused(command, *run_words, "--ckpt_path", "bad.ckpt")
        Path("bad.ckpt").write_bytes(whole[: len(whole) // 2])
        assert "bad.ckpt cannot be read" in refused(command, *run_words, "--ckpt_path", "bad.ckpt")


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


def test_broken_records_are_one_clear_line(run_words, refused):
    rounds = Path("runs/digits/version_0/rounds.jsonl")
    whole = rounds.read_bytes()
    rounds.write_bytes(whole + b"[1]\n" + whole)
    line = refused("report", "runs/digits/version_0")
    assert "rounds.jsonl: line 2 is not the record of a round" in line
    rounds.write_bytes(whole)
    rounds.with_name("metrics.csv").write_bytes(b"\xff\xfe\n")
    assert "metrics.csv: is damaged" in refused("fit", *run_words, "--ckpt_path", "last")
    assert rounds.read_bytes() == whole


def test_a_client_error_with_raise_is_one_line_and_exit_1(tiny, refused, monkeypatch):
    from lit_fednas.objectives import CrossEntropy

    def broken(self, network, inputs, targets):
        raise RuntimeError("out of paper")

    monkeypatch.setattr(CrossEntropy, "loss", broken)
    line = refused("fit", *tiny, "--model.faults.on_client_error", "raise", code=1)
    assert "round 1, client" in line
    assert "out of paper" in line


def test_ctrl_c_while_the_program_starts(tmp_path):
    """The signal arrives in the first import, which replaces Lightning."""
    interrupted = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n"
    (tmp_path / "lightning.py").write_text(interrupted)
    environment = {**os.environ, "PYTHONPATH": str(CONFIGS.parent)}
    command = [sys.executable, "-m", "lit_fednas", "fit"]
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests in the background ignore it
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, check=False, preexec_fn=listening
    )
    assert (process.returncode, process.stderr) == (130, b"")
