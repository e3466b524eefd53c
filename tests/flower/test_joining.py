"""Which devices a run takes, and what a folder's configuration must say before one is written."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_fednas.cli import main
from lit_fednas.data import ArraySource, DataSource, FederatedDataModule, Normalize
from lit_fednas.errors import ConfigError
from tests.support import make_module, tiny_data, tiny_examples

loopback = pytest.importorskip("tests.flower.loopback")

from lit_fednas.flower.device import DeviceData, device_of  # noqa: E402
from lit_fednas.flower.server import ServerData  # noqa: E402
from lit_fednas.flower.wire import Packet  # noqa: E402


def own(number: int, **settings: Any) -> Any:
    """A device all of whose training examples are its own."""
    data = tiny_data(1)
    data.source = ArraySource(tiny_examples(40, number), **settings)
    return loopback.device(make_module, data, number, share=False)


def server(grid: Any, source: DataSource | None = None) -> Any:
    data = tiny_data(2)
    data.source = source or ArraySource(tiny_examples(), val=tiny_examples(40, 1))
    joining = loopback.like(data, ServerData)
    joining.link = loopback.connected(grid)
    return joining


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalization": Normalize([0.5], [2.0])}, "client 1 has normalization .*; set mean and std"),
        ({"class_names": list("abcx")}, "client 1 has class_names .*; give classes as numbers"),
    ],
)
def test_a_device_that_prepares_its_data_otherwise_is_refused(settings: dict[str, Any], message: str):
    grid = loopback.Loopback({10: own(0), 11: own(1, **settings)})
    with pytest.raises(ConfigError, match=f"^data.source: {message}"):
        server(grid).setup("fit")
    server(loopback.Loopback({10: own(0), 11: own(1)})).setup("fit")


def test_a_device_trains_on_all_examples_of_its_own_and_reads_no_validation_split():
    def split_of(share: bool) -> tuple[int, bool]:
        data = loopback.like(tiny_data(1, server_val=0), DeviceData)
        data.share = share
        data.setup("fit")
        return len(data.targets), bool(data.val_dataloader())

    assert split_of(share=False) == (len(tiny_examples()), False)
    assert split_of(share=True) == (len(tiny_examples()), True)


def test_a_second_node_takes_part_when_the_first_is_gone(caplog: pytest.LogCaptureFixture):
    grid = loopback.Loopback({10: own(0), 11: own(1)})
    joining = server(grid)
    joining.setup("fit")
    link = joining.link
    asked = len(grid.asked)
    grid.devices[12] = own(1)  # client 1 came back without a key, and its old node counts as connected for a while
    with caplog.at_level(logging.WARNING, "lit_fednas"):
        link._ask_newcomers()
        link._ask_newcomers()
    assert link.nodes == {0: 10, 1: 11}
    assert len(grid.asked) == asked + 1
    del grid.devices[11]
    link._ask_newcomers()
    assert link.nodes == {0: 10, 1: 12}
    assert len(grid.asked) == asked + 1


def test_a_newcomer_that_refuses_is_asked_once_and_ends_no_run(caplog: pytest.LogCaptureFixture):
    grid = loopback.Loopback({10: own(0), 11: own(1)})
    joining = server(grid)
    joining.setup("fit")
    asked = len(grid.asked)
    grid.devices[12] = own(5)
    grid.devices[12].config = "another"
    for _ in range(2):
        joining.link._ask_newcomers()
    assert len(grid.asked) == asked + 1
    assert joining.link.nodes == {0: 10, 1: 11}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client": "zero"}, "node-config: partition-id or client is 'zero'"),
        ({"client": 0, "data.source.init_args.fils": "x"}, "node-config: .*fils"),
        ({"client": 0, "model.client.epochs": 3}, "node-config: model.client.epochs is not a setting"),
    ],
)
def test_a_node_s_settings_are_checked(settings: dict[str, Any], message: str):
    config = {"seed_everything": 0, "model": {}, "data": {"source": "Digits", "partitioner": "IID"}}
    with pytest.raises(ConfigError, match=f"^{message}"):
        device_of(json.dumps(config), settings)


def test_a_node_s_files_take_the_place_of_the_server_s(tmp_path: Path):
    examples = tiny_examples(20)
    own_file = tmp_path / "own.npz"
    np.savez(own_file, inputs=examples.inputs.numpy(), targets=examples.targets.numpy())
    source = {
        "class_path": "ArrayFiles",
        "init_args": {
            "files": {"train": "/at/the/server.npz", "val": "/at/the/server.npz"},
            "task": {"class_path": "lit_fednas.data.Classification", "init_args": {"num_classes": 4}},
        },
    }
    config = {"seed_everything": 0, "model": {}, "data": {"source": source, "partitioner": "IID"}}
    device = device_of(json.dumps(config), {"client": 0, "data.source.init_args.files": f"{{train: {own_file}}}"})
    data: FederatedDataModule = device._set_up(0)
    assert data.clients.sizes.tolist() == [20]
    refusal = device_of(json.dumps(config), {"client": 0}).answer("join", Packet({"version": "0", "config": ""}))
    assert "refused" in refusal.fields


def test_a_folder_is_not_written_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    part = tmp_path / "part.yaml"
    part.write_text("data: {source: Digits, partitioner: IID}")
    assert main(["flower", "init", str(tmp_path / "app"), "--config", str(part), "--clients", "2"]) == 2
    assert "model.supernet, model.assignment, model.aggregation: not given" in capsys.readouterr().err
    assert not (tmp_path / "app").exists()
    words = ["flower", "init", str(tmp_path / "app"), "--config", "superfed/digits.yaml", "--config", str(part)]
    assert main([*words, "--clients", "2"]) == 0
