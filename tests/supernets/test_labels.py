"""Label sets: classifiers of coarser labels on one body."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lit_fednas.aggregation import OperatorAverage
from lit_fednas.assignment import Subspaces
from lit_fednas.costs import count_operations
from lit_fednas.federation import ClientSettings, EvaluationSettings, UniformCohort
from lit_fednas.objectives import PathSampling
from lit_fednas.supernets import Operators, PathCNN, PathRNN
from lit_fednas.supernets.paths.supernet import LabelSets
from lit_fednas.supernets.space import labelled_space, labels_of
from lit_fednas.tiers import Budgets, ClientTiers, ListedTiers, Population
from tests.support import fit, make_module, refusals, seeded, sgd, tiny_data

COARSE = [0, 0, 1, 1]


def net() -> PathCNN:
    operators = ["conv1", "sep_e1", "id"]
    return seeded(PathCNN, (1, 8, 8), 4, 8, [1, 1], [2, 2], operators, label_sets={"halves": COARSE})


def test_a_path_has_its_own_classifier_and_no_other() -> None:
    supernet = net()
    x = torch.randn(5, 1, 8, 8)
    fine, coarse = supernet.space.parse("conv1 id"), supernet.space.parse("conv1 id > halves")
    assert str(coarse) == "conv1 id > halves"
    assert supernet(x, fine).shape == (5, 4)
    assert supernet(x, coarse).shape == (5, 2)
    names = set(supernet.subnet(coarse).state_dict())
    assert any(name.startswith("heads.halves.") for name in names)
    assert not any(name.startswith("heads.own.") for name in names)
    classes = torch.tensor([0, 1, 2, 3])
    assert supernet.targets(coarse, classes).tolist() == COARSE
    assert supernet.targets(fine, classes) is classes


@pytest.mark.parametrize("text", ["conv1 sep_e1", "conv1 sep_e1 > halves"])
def test_costs_count_the_classifier_that_is_there(text: str) -> None:
    supernet = net()
    arch = supernet.space.parse(text)
    assert supernet.operations(arch) == count_operations(supernet.subnet(arch), (1, 8, 8))
    assert supernet.path_costs("bytes").sent(arch) == supernet.cost(arch).bytes
    everything = supernet.space.superset
    assert supernet.path_costs("parameters").sent(everything) == sum(p.numel() for p in supernet.parameters())


def test_the_space_of_a_label_set_draws_paths_that_end_in_it() -> None:
    space = labelled_space(net().space, "halves")
    assert space.largest.labels == space.smallest.labels == space.sample(np.random.default_rng(0)).labels == "halves"
    assert labels_of(space.decode((0, 1))) == "halves"
    assert space.size == 9
    assert space.parse("id id") == Operators((("id",), ("id",)), "halves")


def tiers() -> ClientTiers:
    """Clients 0 to 3 have halves, 4 and 5 have classes."""
    budgets = Budgets({"small": {"macs": 1e9}, "large": {"macs": 2e9}})
    return ClientTiers(budgets, ListedTiers({"small": [0, 1, 2, 3], "large": [4, 5]}), labels={"small": "halves"})


def module(**settings):
    return make_module(
        net(),
        settings.pop("assignment", Subspaces(share=1.0)),
        OperatorAverage(),
        UniformCohort(count=6),
        ClientSettings(sgd(0.1, momentum=0.9), batch_size=8, epochs=2),
        objective=PathSampling(),
        tiers=settings.pop("tiers", None) or tiers(),
        evaluation=EvaluationSettings(["fine = conv1 sep_e1", "coarse = conv1 sep_e1 > halves"]),
        **settings,
    )


def test_every_client_trains_the_classifier_of_its_labels_and_both_are_evaluated_on_theirs() -> None:
    one, data, asked = module(), tiny_data(6), {}
    plan = one.plan

    def recorded(*args: Any) -> Any:
        tasks = plan(*args)
        asked.update({task.client: task.arch.labels for task in tasks})
        return tasks

    one.plan = recorded  # type: ignore[method-assign]
    trainer = fit(one, data, 2)
    assert asked == dict.fromkeys(range(4), "halves") | dict.fromkeys((4, 5), "own")
    supernet = one.supernet.eval()
    for name in ("fine", "coarse"):
        right = count = 0
        for inputs, classes in data.val_dataloader():
            wanted = torch.tensor(COARSE)[classes] if name == "coarse" else classes
            with torch.no_grad():
                right += int((supernet(inputs, one.subnets[name]).argmax(1) == wanted).sum())
            count += len(classes)
        assert float(trainer.callback_metrics[f"val/{name}/accuracy"]) == pytest.approx(right / count, abs=1e-6)


def test_an_assignment_may_name_the_labels() -> None:
    subspaces = Subspaces(share=1.0, labels="halves")
    subspaces.setup(net(), Population(2))
    assert subspaces.draw(0, np.random.default_rng(0)).labels == "halves"


test_labels_that_are_not_there_are_told_before_training = refusals(
    (
        lambda: LabelSets(4, {"halves": [0, 0, 1]}),
        "supernet.label_sets.halves: has 3 labels; give one for each of the data's 4",
    ),
    (lambda: net().space.parse("id id > thirds"), "'thirds' is not a label set"),
    (
        lambda: replace(tiers(), labels={"small": "thirds"}).tiers(net(), seed=0),
        "tiers.labels.small: 'thirds' is not a label set of the supernet",
    ),
    (
        lambda: tiers().tiers(PathRNN((8,), 4, width=4), seed=0),  # tokens have none
        r"tiers\.labels\.small: 'halves' is not a label set of the supernet; there are: own$",
    ),
)
