"""The folder of ``lit-fednas flower init``: its files, and the configuration in them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lit_fednas.cli import main

pytest.importorskip("flwr")

OPTIONS = ["--config", "superfed/digits.yaml", "--clients", "3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flower") / "run"
    words = ["flower", "init", str(path), *OPTIONS, "--tls", "--address", "192.0.2.7:18000"]
    assert main([*words, "--", "--model.client.epochs", "5"]) == 0
    return path


def test_the_app_has_the_configuration_that_fit_would_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tomllib.loads((folder / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    options = ["--data.num_clients", "3", "--model.client.epochs", "5", "--print_config"]
    with pytest.raises(SystemExit):
        main(["fit", "--config", "superfed/digits.yaml", *options])
    assert app["config"]["config"] == capsys.readouterr().out
    assert yaml.safe_load(app["config"]["config"])["model"]["client"]["epochs"] == 5
    shutil.copytree(folder / "app", tmp_path / "app")  # an import writes bytecode into the folder
    monkeypatch.syspath_prepend(tmp_path / "app")
    for component in app["components"].values():  # Flower imports them from the app's folder
        module, _, name = component.partition(":")
        assert hasattr(importlib.import_module(module), name)


def test_the_commands_make_a_certificate_for_the_address_alone_and_a_key_for_each_device(folder: Path) -> None:
    commands = re.findall(r"```bash\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    subprocess.run(["bash", "-ec", commands], cwd=folder, check=True)
    for address, status in (("192.0.2.7", 0), ("192.0.2.8", 2)):
        verify = ["openssl", "verify", "-CAfile", "certificates/ca.crt", "-verify_ip", address]
        verified = subprocess.run([*verify, "certificates/server.crt"], cwd=folder, check=False)
        assert verified.returncode == status
    secrets = ["certificates/server.key", *(f"keys/client-{number}" for number in range(3))]
    assert {stat.S_IMODE((folder / secret).stat().st_mode) for secret in secrets} == {0o600}
    assert {path.name for path in (folder / "certificates").iterdir()} == {"ca.crt", "server.crt", "server.key"}
    assert len({(folder / "keys" / f"client-{number}.pub").read_text() for number in range(3)}) == 3
    assert sorted(path.name for path in (folder / "app").iterdir()) == ["lit_fednas_app.py", "pyproject.toml"]


@pytest.mark.parametrize(("unit", "program"), [("server", "superlink"), ("device@", "supernode")])
def test_units_start_what_the_commands_start(folder: Path, tmp_path: Path, unit: str, program: str) -> None:
    """systemd can read the units, if it is installed."""
    path = folder / "systemd" / f"lit-fednas-{unit}.service"
    (command,) = re.findall(r"^ExecStart=(.*)", path.read_text(), re.MULTILINE)
    text = (folder / "README.md").read_text().replace("\\\n", " ").replace("keys/client-0 ", "keys/client-%i ")
    (line,) = [line for line in text.splitlines() if line.startswith(f"flower-{program} ")]
    assert shlex.split(command)[1:] == shlex.split(line)[1:]
    assert Path(shlex.split(command)[0]).name == f"flower-{program}"
    if shutil.which("systemd-analyze"):
        copied = shutil.copy(path, tmp_path / path.name.replace("@", "@0"))
        read = subprocess.run(["systemd-analyze", "verify", copied], capture_output=True, text=True, check=False)
        assert [line for line in read.stderr.splitlines() if path.stem.replace("@", "@0") in line] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--address", "18000"], "--address: 18000 is not HOST:PORT; give, for instance"),
        (["--address", "host:99999"], "--address: host:99999 is not HOST:PORT; give, for instance"),
        (["--address", "host:0"], "--address: host:0 is not HOST:PORT"),
        (["--address", "http://host:80"], "--address: http://host:80 is not HOST:PORT"),
        (["--", "--data.num_clients=null"], "data.num_clients: null, but a run begins when all devices have joined"),
        (["--", "--deployed_accuracy.split=val"], "deployed_accuracy: needs examples that stay on the devices"),
        (["--", "--model.client.fast=auto"], "model.client.fast: auto measures the server's process, not the devices'"),
    ],
)
def test_wrong_settings_are_errors_of_one_line(tmp_path: Path, refused: Any, words: list[str], message: str) -> None:
    assert f"lit-fednas: {message}" in refused("flower", "init", str(tmp_path / "run"), *OPTIONS, *words)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "mine").write_text("mine")
    assert "is not empty; give a new folder" in refused("flower", "init", str(tmp_path), *OPTIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
