"""Training of the classifier alone."""

import torch

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import FixedArchitecture
from lit_fednas.federation import ClientSettings, UniformCohort
from lit_fednas.objectives import HeadOnly
from lit_fednas.supernets import PathCNN
from tests.support import fit, make_module, sgd, tiny_data


def test_nothing_but_the_classifier_changes_not_even_statistics() -> None:
    net = PathCNN((1, 8, 8), 4, 8, [1, 1], [2, 2], ["conv1", "id"])
    before = {name: tensor.clone() for name, tensor in net.shared_tensors().items()}
    module = make_module(
        net,
        FixedArchitecture("conv1 conv1"),
        OverlapAverage(),
        UniformCohort(count=3),
        ClientSettings(sgd(0.1, momentum=0.9, weight_decay=0.1), batch_size=8),
        objective=HeadOnly(),
    )
    fit(module, tiny_data(6), max_rounds=2)
    for name, tensor in net.shared_tensors().items():
        if ".heads." in name:
            assert not torch.equal(tensor, before[name]), name
        else:  # averaging equal weights may round the last bit
            torch.testing.assert_close(tensor, before[name], rtol=1e-5, atol=1e-6, msg=name)
