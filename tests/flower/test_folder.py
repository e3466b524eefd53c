"""The folder of ``lit-fednas flower init``: what it holds, and that it is that of the run that was asked for."""

from __future__ import annotations

import importlib.util
import ipaddress
import shutil
import stat
import tomllib
from pathlib import Path

import pytest
import yaml

from lit_fednas.cli import main

pytest.importorskip("flwr")
from cryptography import x509
from cryptography.hazmat.primitives import serialization

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
    shutil.copytree(folder / "app", tmp_path / "app")  # an import leaves bytecode beside what it imports
    monkeypatch.syspath_prepend(tmp_path / "app")
    for component in app["components"].values():  # that Flower imports from the app's folder
        module, _, name = component.partition(":")
        assert hasattr(importlib.import_module(module), name)


def test_certificates_are_for_the_address_alone_and_not_in_the_app(folder: Path) -> None:
    root, own = (
        x509.load_pem_x509_certificate((folder / "certificates" / name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    own.verify_directly_issued_by(root)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("192.0.2.7")]
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    key = serialization.load_pem_private_key((folder / "certificates" / "server.key").read_bytes(), None)
    assert key.public_key() == own.public_key()
    assert sorted(path.name for path in (folder / "app").iterdir()) == ["lit_fednas_app.py", "pyproject.toml"]


def test_each_device_has_a_key_that_nobody_else_can_read(folder: Path) -> None:
    for number in range(3):
        private, public = folder / "keys" / f"client-{number}", folder / "keys" / f"client-{number}.pub"
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        key = serialization.load_ssh_private_key(private.read_bytes(), None)
        assert key.public_key() == serialization.load_ssh_public_key(public.read_bytes())
        assert key.key_size == 384
    assert len({(folder / "keys" / f"client-{number}.pub").read_text() for number in range(3)}) == 3


def test_what_cannot_work_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flower", "init", str(tmp_path / "run"), *OPTIONS, "--address", "18000"]) == 2
    assert "lit-fednas: --address: 18000 is not HOST:PORT; give, for instance" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main(["flower", "init", str(tmp_path), *OPTIONS]) == 2
    assert "is not empty; give a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
