"""A network's first weights out of a file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_fednas.errors import ConfigError, FedNASError
from lit_fednas.federation.initial_weights import load_initial


def network(units: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, units), nn.BatchNorm1d(units))


@pytest.mark.parametrize("prefix", ["", "network.", "supernet.network.", "supernet.networks.0."])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_whatever_the_tensors_are_called_there(tmp_path, prefix: str, checkpoint: bool) -> None:
    given, taken = network(), network()
    given[1].running_mean.fill_(0.5)
    state = {prefix + name: tensor for name, tensor in given.state_dict().items()}
    state |= {"supernet.networks.1.0.weight": torch.zeros(1)} if prefix else {}
    torch.save({"state_dict": state, "epoch": 3} if checkpoint else state, tmp_path / "file.pt")
    load_initial(taken, tmp_path / "file.pt", "field")
    for name, tensor in given.state_dict().items():
        assert torch.equal(taken.state_dict()[name], tensor)


def test_another_network_is_refused(tmp_path) -> None:
    torch.save(network(4).state_dict(), tmp_path / "file.pt")
    with pytest.raises(ConfigError, match=r"field: .*file.pt has \[4, 2\] for 0.weight, which is \[3, 2\]"):
        load_initial(network(), tmp_path / "file.pt", "field")
    torch.save({"other": torch.zeros(1)}, tmp_path / "file.pt")
    with pytest.raises(ConfigError, match=r"no tensor for 0.weight"):
        load_initial(network(), tmp_path / "file.pt", "field")


@pytest.mark.parametrize("what", ["text", "list"])
def test_what_is_no_file_of_weights_is_refused(tmp_path, what: str) -> None:
    path = tmp_path / "file.pt"
    if what == "text":
        path.write_text("no weights")
    else:
        torch.save([1, 2], path)
    with pytest.raises(FedNASError, match=r"^field: .*; give a checkpoint or a state dictionary"):
        load_initial(network(), path, "field")
