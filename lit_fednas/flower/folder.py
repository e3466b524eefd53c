"""The command ``lit-fednas flower init``: a folder with the app that ``flwr run`` starts, and how to start all else."""

from __future__ import annotations

import io
import ipaddress
import shlex
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from lit_fednas import __version__
from lit_fednas.config_files import find_config
from lit_fednas.errors import ConfigError
from lit_fednas.flower.missing import check_flower
from lit_fednas.ranges import PositiveInt
from lit_fednas.records.files import check_output

_APP = '''"""Started by Flower: the server's app and the devices'."""

from lit_fednas.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
'''
_VALID_DAYS = 365


def init(
    folder: Path,
    *words: str,
    config: list[str] | None = None,
    clients: PositiveInt | None = None,
    tls: bool = False,
    address: str = "127.0.0.1:18000",
) -> None:
    """Writes a folder from which a run starts over Flower's devices.

    Args:
        folder: A new folder.
        *words: What follows -- changes settings of the configuration, as for fit.
        config: The configuration of fit, one file or several.
        clients: How many devices take part (data.num_clients).
        tls: Whether to make certificates, and a key for each device.
        address: Where the devices reach the server, HOST:PORT.

    Raises:
        ConfigError: The folder is there already, a setting cannot be used, or Flower is not installed.
    """
    check_flower()
    check_output(folder / "README.md")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty; give a new folder")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--address: {address} is not HOST:PORT; give, for instance, 127.0.0.1:18000")
    if not config:
        raise ConfigError("--config: is not given; give the configuration of a run, for instance superfed/digits.yaml")
    files = [word for file in map(find_config, config) for word in ("--config", file)]
    number = [] if clients is None else [f"--data.num_clients={clients}"]
    text = resolved([*files, *number, *words])
    count = yaml.safe_load(text)["data"]["num_clients"]
    if count is None:
        raise ConfigError("--clients: a run begins when all devices are there, and their number is not known; give it")
    (folder / "app").mkdir(parents=True)
    (folder / "app" / "lit_fednas_app.py").write_text(_APP)
    (folder / "app" / "pyproject.toml").write_text(project(text))
    (folder / "flwr").mkdir()
    certificate = f'root-certificates = "{(folder / "certificates" / "ca.crt").absolute()}"'
    way = certificate if tls else "insecure = true"
    (folder / "flwr" / "config.toml").write_text(f'[superlink.server]\naddress = "{address}"\n{way}\n')
    if tls:
        write_certificates(folder / "certificates", host)
        write_keys(folder / "keys", count)
    (folder / "README.md").write_text(readme(address, count, tls))
    print(f"written: {folder}/README.md says what to start")


def resolved(words: Sequence[str]) -> str:
    """Returns the whole configuration that ``lit-fednas fit`` would run with, as YAML."""
    from lit_fednas.cli.lightning_cli import FederatedCLI

    class Printed(FederatedCLI):
        """Parses first: where a configuration is printed, what is required is not asked for."""

        def parse_arguments(self, parser: Any, args: Any) -> None:
            super().parse_arguments(parser, args)
            super().parse_arguments(parser, [*args, "--print_config"])

    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        Printed(["fit", *words])
    return text.getvalue()


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


def write_certificates(folder: Path, host: str) -> None:
    """Writes an authority of its own (``ca.crt``) and the server's certificate and key, for one address."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def begun(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(named("lit-fednas"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=_VALID_DAYS))
        )

    folder.mkdir()
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = begun(named("lit-fednas"), authority).add_extension(x509.BasicConstraints(True, None), critical=True)
    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    own = begun(named(host), server).add_extension(x509.SubjectAlternativeName([name]), critical=False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.sign(authority, hashes.SHA384()).public_bytes(pem))
    (folder / "server.crt").write_bytes(own.sign(authority, hashes.SHA384()).public_bytes(pem))
    plain = serialization.NoEncryption()
    _write_secret(folder / "server.key", server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def write_keys(folder: Path, count: int) -> None:
    """Writes a pair of keys for each device, ``client-0`` and ``client-0.pub``, as ``ssh-keygen`` does."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir()
    plain = serialization.NoEncryption()
    ssh = serialization.PrivateFormat.OpenSSH
    for number in range(count):
        key = ec.generate_private_key(ec.SECP384R1())
        _write_secret(folder / f"client-{number}", key.private_bytes(serialization.Encoding.PEM, ssh, plain))
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / f"client-{number}.pub").write_bytes(public + b"\n")


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def readme(address: str, count: int, tls: bool) -> str:
    """Returns the commands that start everything."""
    host, _, port = address.rpartition(":")
    link = ["flower-superlink", "--host", host, "--port", port, "--disable-runtime-dependency-installation"]
    node = ["flower-supernode", "--superlink", address, "--host", "127.0.0.1", "--port", "19000"]
    register = ""
    if tls:
        link += [
            *("--ssl-ca-certfile", "certificates/ca.crt"),
            *("--ssl-certfile", "certificates/server.crt"),
            *("--ssl-keyfile", "certificates/server.key"),
            *("--enable-supernode-auth", "--database", "flower.db"),
        ]
        node += ["--root-certificates", "certificates/ca.crt", "--auth-supernode-private-key", "keys/client-0"]
        register = _REGISTER.format(count=count, last=count - 1)
    else:
        link, node = [*link, "--insecure"], [*node, "--insecure"]
    return _README.format(
        settings=shlex.join(["export", "FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"]),
        link=shlex.join(link),
        node=shlex.join(node),
        register=register,
        simulation="" if tls else _SIMULATION.format(link=shlex.join(link), count=count),
        number="" if tls else " client=0",
        clients=f"all {count} devices",
    )


_REGISTER = """
Register the devices' keys, once; a device with another key is turned away. The name ends in the client's number:

```bash
for n in $(seq 0 {last}); do flwr supernode register keys/client-$n.pub server --name client-$n; done
```

A device needs `certificates/ca.crt` and its own `keys/client-N`, and nothing else of this folder.
"""

_README = """# A run of lit_fednas over devices

Every machine has `pip install 'lit-fednas[flower]'`, the server's and the devices'. All commands are given in this
folder.

```bash
{settings} FLWR_HOME=$PWD/flwr
```

The server, which keeps running; the run's folder is made below this one (`runs/`):

```bash
{link}
```
{register}
A device, with data of its own (what begins with `data.source.` replaces values of the configuration; several devices on
one machine need a port each):

```bash
{node} \\
    --node-config 'data.source.init_args.root="/path/of/its/data"{number}'
```

Arrays and tables are given as `data.source.init_args.files="{{train: /path/of/its.npz}}"`. If every machine has the
whole data set, as the embedded digits, `partition-id=0` takes the share of client 0 instead.

A device that was killed is taken again after about a minute, when Flower no longer counts it as connected.

The run, which begins when {clients} are there:

```bash
flwr run app server --stream
flwr run app server --stream --run-config 'resume="last"'    # goes on where a run was stopped
```

After it, a search on the devices' own validation examples (`data.client_val` above 0), and a fine-tuning:

```bash
flwr run app server --stream --run-config 'command="search --config search/digits.yaml --search.federated.rounds 4"'
flwr run app server --stream --run-config 'command="finetune --finetune.rounds 5"'
```

`flwr run` says that a run was started, whatever became of it: the last lines and `flwr list server` say how it ended.
`flwr stop RUN server` stops a run.
{simulation}"""

_SIMULATION = """
In Flower's simulation engine (`pip install 'flwr[simulation]'`) the same folder runs on one machine without devices.
Start the server as `{link} --simulation`, then:

```bash
flwr run app server --stream --federation-config 'num-supernodes={count}'
```
"""
