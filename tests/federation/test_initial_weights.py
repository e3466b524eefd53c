"""Initial weights from a file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.errors import FedNASError
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.federation.checkpoints import load_initial
from tests.federation.runs import LAST, run_in
from tests.support import assert_same, linear_net, make_module, tiny_data, tiny_supernet


def network(units: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, units), nn.BatchNorm1d(units))


@pytest.mark.parametrize(("prefix", "checkpoint"), [("", False), ("supernet.networks.0.", True)])
def test_prefixes_of_names_in_a_file(tmp_path, prefix: str, checkpoint: bool) -> None:
    source, target = network(), network()
    source[1].running_mean.fill_(0.5)
    state = {prefix + name: tensor for name, tensor in source.state_dict().items()}
    state |= {"supernet.networks.1.0.weight": torch.zeros(1)} if prefix else {}
    torch.save({"state_dict": state, "epoch": 3} if checkpoint else state, tmp_path / "file.pt")
    load_initial(target, tmp_path / "file.pt", "field")
    assert_same(dict(target.state_dict()), dict(source.state_dict()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (network(4).state_dict(), r"file.pt has \[4, 2\] for 0.weight, which is \[3, 2\]"),
        ([1, 2], "; give a checkpoint or a state dictionary"),
    ],
    ids=["another network", "a list"],
)
def test_other_files_are_refused(tmp_path, content, message: str) -> None:
    path = tmp_path / "file.pt"
    torch.save(content, path)
    with pytest.raises(FedNASError, match=rf"^field: .*{message}"):
        load_initial(network(), path, "field")


def test_a_head_of_other_classes_may_keep_its_random_weights(tmp_path, caplog) -> None:
    def classifier(classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, classes))

    source, target, path = classifier(5), classifier(10), tmp_path / "file.pt"
    initial = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    torch.save(source.state_dict(), path)
    load_initial(target, path, "field", ignore_mismatched_sizes=True)
    fitting = {name: tensor for name, tensor in source.state_dict().items() if name.startswith("0.")}
    assert_same(dict(target.state_dict()), initial | fitting)
    assert "1.weight, 1.bias differ in size" in caplog.text
    parts = {name: tensor for name, tensor in source.state_dict().items() if name != "1.bias"}
    # first a tensor is missing beside one of another size; then no tensor fits
    unlike = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)).state_dict()
    for state, message in ((parts, "no tensor for 1.bias"), (unlike, r"\[4, 3\] for 0.weight")):
        torch.save(state, path)
        with pytest.raises(FedNASError, match=f"{message}.*give the file of the same network"):
            load_initial(target, path, "field", ignore_mismatched_sizes=True)


def test_a_changed_bit_is_detected(tmp_path) -> None:
    path, state = tmp_path / "file.pt", network().state_dict()
    torch.save(state, path)
    content = bytearray(path.read_bytes())
    content[content.index(state["0.weight"].numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(FedNASError, match=r"^field: .*file.pt cannot be read: it is damaged"):
        load_initial(network(), path, "field")


@pytest.mark.parametrize("make", [tiny_supernet, linear_net])
def test_training_starts_from_the_weights_of_another_run(tmp_path, make) -> None:
    trained = make(seed=1)
    run_in(tmp_path, make_module(supernet=trained), RoundCheckpoint(), rounds=1, data=tiny_data(3))
    module = make_module(supernet=make(seed=2), initial=str(tmp_path / LAST))
    assert_same(dict(module.supernet.state_dict()), dict(trained.state_dict()))


def test_a_loaded_module_does_not_read_initial_weights() -> None:
    settings = {
        "initial": "nowhere.pt",
        "supernet": {"class_path": "lit_fednas.supernets.ElasticMLP"},
        "assignment": {"class_path": "lit_fednas.assignment.RandomArchitectures"},
        "aggregation": {"class_path": "lit_fednas.aggregation.OverlapAverage"},
        "client": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}, "batch_size": 8},
    }
    module = FederatedLightningModule.from_settings(settings, seed=3, input_shape=[1, 8, 8], num_classes=4)
    assert (module.initial, module.seed, module.supernet.num_classes) == (None, 3, 4)
    with pytest.raises(FedNASError, match=r"model\.initial: nowhere\.pt does not exist"):
        make_module(initial="nowhere.pt")
