"""Devices train with the settings that the server's command resolves to."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from lit_fednas.cli import with_paths
from lit_fednas.lightning_cli import run

loopback = pytest.importorskip("tests.flower.loopback")

from lit_fednas.flower.device import device_settings  # noqa: E402
from lit_fednas.flower.folder import resolved  # noqa: E402
from lit_fednas.flower.link import Link  # noqa: E402
from lit_fednas.flower.server import FlowerCLI  # noqa: E402
from lit_fednas.flower.wire import Packet  # noqa: E402

SMALL = ["--config=superfed/digits.yaml", "--data.num_clients=2", "--trainer.max_rounds=1"]
SMALL += [
    "--model.client.steps=1",
    "--model.supernet.init_args.stem_width=8",
    "--model.supernet.init_args.stage_widths=[8,8,8,8]",
]


def test_options_of_the_command_take_effect_on_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learning rate of 0 leaves every parameter as it was; only sections that the command changes are sent."""
    monkeypatch.chdir(tmp_path)
    config = resolved(with_paths(SMALL))
    Path("run.yaml").write_text(config)
    grid = loopback.Loopback({9 + number: loopback.Node(config, {"partition-id": number}) for number in range(2)})
    runs = []

    class Kept(FlowerCLI):
        def _run_subcommand(self, subcommand: str) -> None:
            before = {name: value.detach().clone() for name, value in self.model.supernet.named_parameters()}
            super()._run_subcommand(subcommand)
            runs.append((before, dict(self.model.supernet.named_parameters())))

    link = Link(grid, device_settings(config), poll=0)
    assert run(["fit", "--config=run.yaml", "--model.client.optimizer.init_args.lr=0"], partial(Kept, link=link)) == 0
    ((before, after),) = runs
    assert all(torch.equal(before[name], after[name]) for name in before)
    (rounds,) = tmp_path.rglob("rounds.jsonl")
    assert [(one["status"], one["num_steps"]) for one in json.loads(rounds.read_text())["clients"]] == [("ok", 1)]
    changed = {Packet.of(message.content).fields["changed"] for message in grid.asked}
    assert [set(yaml.safe_load(text)) for text in changed] == [{"model"}]
    plain = Link(grid, device_settings(config))
    plain.use(device_settings(config))
    assert plain.changed == ""
