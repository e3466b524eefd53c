"""The command ``lit-fednas flower init``: writes a folder with the app for ``flwr run`` and its instructions."""

import io
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Template

from lit_fednas import __version__
from lit_fednas.cli.entry import with_paths
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt
from lit_fednas.records.files import check_output, replace_text

_APP = '''"""The server's app and the devices' app, which Flower starts."""

from lit_fednas.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
'''


def init(
    folder: Path,
    *words: str,
    config: list[str] | None = None,
    clients: PositiveInt | None = None,
    tls: bool = False,
    address: str = "127.0.0.1:18000",
) -> None:
    """Writes a folder that starts a run over Flower's devices.

    Args:
        folder: A new folder.
        *words: Options of fit, after --, that change the configuration.
        config: One or more YAML files with the run's configuration.
        clients: Number of devices, in place of the configuration's data.num_clients.
        tls: Whether the server has a certificate and each device a key; the folder's README.md shows how to make them.
        address: Address of the server, HOST:PORT, as the devices reach it.

    Raises:
        ConfigError: The folder is not empty, a setting cannot be used, or Flower is not installed.
    """
    if find_spec("flwr") is None:
        raise ConfigError("flower: needs the package flwr; pip install 'lit-fednas[flower]'")
    check_output(folder / "README.md", overwrite=True)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty; give a new folder")
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"\[[\da-fA-F:.]+\]|[\w.-]+", host) or port not in map(str, range(1, 2**16)):
        raise ConfigError(f"--address: {address} is not HOST:PORT; give, for instance, 127.0.0.1:18000 (up to 65535)")
    if not config:
        raise ConfigError("--config: is missing; give a run's configuration, for instance superfed/digits.yaml")
    files = with_paths([f"--config={file}" for file in config])
    num_clients = [] if clients is None else [f"--data.num_clients={clients}"]
    text = resolved([*files, *num_clients, *words])
    check_over_devices(settings := yaml.safe_load(text))
    count = settings["data"]["num_clients"]
    replace_text(folder / "app" / "lit_fednas_app.py", _APP)
    replace_text(folder / "app" / "pyproject.toml", project(text))
    certificate = f'root-certificates = "{(folder / "certificates" / "ca.crt").absolute()}"'
    security = certificate if tls else "insecure = true"
    replace_text(folder / "flwr" / "config.toml", f'[superlink.server]\naddress = "{address}"\n{security}\n')
    replace_text(folder / "README.md", readme(host, port, count, tls))
    for name, text in services(folder.absolute(), host, port, tls).items():
        replace_text(folder / "systemd" / f"lit-fednas-{name}.service", text)
    print(f"written: {folder}/README.md says what to start")


def resolved(words: Sequence[str]) -> str:
    """Returns the configuration of ``lit-fednas fit`` with all defaults, as YAML."""
    from lit_fednas.cli.lightning_cli import FederatedCLI

    class Printed(FederatedCLI):
        """Parses twice, because ``--print_config`` alone accepts a configuration without its required settings."""

        def parse_arguments(self, parser: Any, args: Any) -> None:
            super().parse_arguments(parser, args)
            super().parse_arguments(parser, [*args, "--print_config"])

    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        Printed(["fit", *words])
    return text.getvalue()


def check_over_devices(config: Mapping[str, Any]) -> None:
    """Validates that a complete configuration works over devices, before the server waits for them."""
    if config["data"]["num_clients"] is None:
        raise ConfigError("data.num_clients: null, but a run begins when all devices have joined; give their number")
    callbacks = config["trainer"]["callbacks"] or []
    callbacks = [config["deployed_accuracy"], *(callbacks if isinstance(callbacks, list) else [callbacks])]
    if any(callback["class_path"].endswith(".DeployedAccuracy") for callback in callbacks if callback):
        raise ConfigError("deployed_accuracy: needs examples that stay on the devices; leave it out, or simulate")
    if (fast := config["model"]["client"]["fast"]) is not None:
        raise ConfigError(f"model.client.fast: {fast} measures the server's process, not the devices'; set it to null")


def project(config: str) -> str:
    """Returns the ``pyproject.toml`` of the app."""
    import tomli_w

    app: dict[str, Any] = {
        "publisher": "lit-fednas",
        "components": {"serverapp": "lit_fednas_app:server_app", "clientapp": "lit_fednas_app:client_app"},
        "config": {"command": "fit", "resume": "", "timeout": 3600.0, "join-timeout": 600.0, "config": config},
    }
    content = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "lit-fednas-app",
            "version": "1.0.0",
            "description": "A run of lit_fednas over devices",
            "license": "Apache-2.0",
            "dependencies": [f"lit-fednas[flower]=={__version__}"],
        },
        "tool": {"hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}}, "flwr": {"app": app}},
    }
    return tomli_w.dumps(content, multiline_strings=True)


def readme(host: str, port: str, count: int, tls: bool) -> str:
    """Returns the ``README.md`` with all commands of the server, the devices and the run."""
    try:
        subject = f"IP:{ip_address(host)}"
    except ValueError:
        subject = f"DNS:{host}"
    text = Path(__file__).with_name("README.md.j2").read_text()
    template = Template(text, trim_blocks=True, keep_trailing_newline=True)
    return template.render(host=shlex.quote(host), port=port, count=count, tls=tls, subject=shlex.quote(subject))


def services(folder: Path, host: str, port: str, tls: bool) -> dict[str, str]:
    """Returns the systemd units of the server and of a device, by name; they restart both after a failure."""
    server, device = "--insecure", "--insecure"
    if tls:
        files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        server = " ".join(f"--ssl-{option} certificates/{file}" for option, file in files.items())
        server += " --enable-supernode-auth --database flower.db"
        device = "--root-certificates certificates/ca.crt --auth-supernode-private-key keys/client-%i"
    config = """'data.source.init_args.root="/path/of/its/data"%s'""" % ("" if tls else " client=%i")
    server = f"flower-superlink --host {host} --port {port} --disable-runtime-dependency-installation {server}"
    device = f"flower-supernode --superlink {host}:{port} --host 127.0.0.1 --port 19000 {device} --node-config {config}"
    usage = "For the device of client N: systemctl enable --now lit-fednas-device@N."
    units = {
        "server": ("the server of a run over devices", server, "For the server."),
        "device@": ("client %i of a run over devices", device, usage),
    }
    template = Template(Path(__file__).with_name("service.j2").read_text(), keep_trailing_newline=True)
    paths = {"folder": folder, "programs": Path(sys.executable).parent}
    return {
        name: template.render(**paths, description=description, command=command, about=about)
        for name, (description, command, about) in units.items()
    }
