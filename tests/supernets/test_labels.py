"""Label sets: classifiers of coarser labels on one body."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lit_fednas.aggregation import OperatorAverage
from lit_fednas.assignment import Subspaces
from lit_fednas.costs import count_macs, count_operations, sent_bytes
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, EvaluationSettings, UniformCohort
from lit_fednas.objectives import PathSampling
from lit_fednas.supernets import ElasticResNet, Operators, PathCNN, PathRNN, labelled_space, labels_of
from lit_fednas.supernets.labels import LabelSets
from lit_fednas.tiers import Budgets, ClientTiers, ListedTiers
from tests.support import fit, make_module, make_trainer, sgd, tiny_data

COARSE = [0, 0, 1, 1]


def net(seed: int = 0) -> PathCNN:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PathCNN((1, 8, 8), 4, 8, [1, 1], [2, 2], ["conv1", "sep_e1", "id"], label_sets={"halves": COARSE})


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"own": COARSE}, "'own' cannot name a set"),
        ({"two words": COARSE}, "'two words' cannot name a set"),
        ({"halves": [0, 0, 1]}, "supernet.label_sets.halves: has 3 labels; give one for each of the data's 4"),
        ({"halves": [0, 0, 2, 2]}, "supernet.label_sets.halves: labels must be 0, 1"),
    ],
)
def test_sets_that_are_none_are_refused(sets: dict[str, list[int]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LabelSets(4, sets)


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
    network = supernet.subnet(arch)
    assert supernet.macs(arch) == count_macs(network, (1, 8, 8))
    assert supernet.operations(arch) == count_operations(network, (1, 8, 8))
    assert supernet.path_costs("bytes").sent(arch) == sent_bytes(network) == supernet.cost(arch).bytes


def test_the_superset_holds_all_classifiers() -> None:
    supernet = net()
    everything = supernet.space.superset
    assert supernet.path_costs("parameters").sent(everything) == sum(p.numel() for p in supernet.parameters())
    assert supernet.cost(everything).parameters == sum(p.numel() for p in supernet.parameters())


def test_the_space_of_a_label_set_draws_paths_that_end_in_it() -> None:
    space = labelled_space(net().space, "halves")
    assert space.largest.labels == space.smallest.labels == space.sample(np.random.default_rng(0)).labels == "halves"
    assert labels_of(space.decode((0, 1))) == "halves"
    assert (space.size, space.cardinalities) == (9, (3, 3))
    assert space.encode(space.decode((0, 1))) == (0, 1)
    assert space.parse("id id") == Operators((("id",), ("id",)), "halves")
    with pytest.raises(
        ConfigError, match="labels: 'thirds' is not a label set of the supernet; there are: own, halves"
    ):
        labelled_space(net().space, "thirds")
    with pytest.raises(ConfigError, match="'thirds' is not a label set"):
        space.parse("id id > thirds")
    elastic = ElasticResNet((1, 8, 8), 4, 4, [8], [0]).space
    assert labelled_space(elastic, "own") is elastic
    with pytest.raises(ConfigError, match=r"'halves' is not a label set of the supernet; there are: own$"):
        labelled_space(elastic, "halves")


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
        tiers=tiers(),
        evaluation=EvaluationSettings(["fine = conv1 sep_e1", "coarse = conv1 sep_e1 > halves"]),
        **settings,
    )


def test_every_client_trains_the_classifier_of_its_labels() -> None:
    one = module(seed=3)
    before = {name: tensor.clone() for name, tensor in one.supernet.shared_tensors().items()}
    asked = []
    plan = one.plan
    one.plan = lambda *args: asked.extend(plan(*args)) or asked  # type: ignore[method-assign]
    make_trainer(1).fit(one, datamodule=tiny_data(6))
    assert {task.client: task.arch.labels for task in asked} == dict.fromkeys(range(4), "halves") | {
        4: "own",
        5: "own",
    }
    after = one.supernet.shared_tensors()
    for labels in ("own", "halves"):
        assert any(not torch.equal(before[n], after[n]) for n in before if f".heads.{labels}." in n)


def test_a_classifier_that_nobody_trains_stays() -> None:
    one = module(assignment=Subspaces(share=1.0, labels="halves"))
    before = {name: tensor.clone() for name, tensor in one.supernet.shared_tensors().items()}
    make_trainer(1).fit(one, datamodule=tiny_data(6))
    after = one.supernet.shared_tensors()
    own = [name for name in before if ".heads.own." in name]
    assert own
    assert all(torch.equal(before[name], after[name]) for name in own)
    assert any(not torch.equal(before[name], after[name]) for name in before if ".heads.halves." in name)


def test_both_are_learnt_and_evaluated_on_their_own_labels() -> None:
    one = module()
    trainer = make_trainer(12)
    trainer.fit(one, datamodule=tiny_data(6))
    data = trainer.datamodule  # type: ignore[attr-defined]
    supernet = one.supernet.eval()
    for name in ("fine", "coarse"):
        arch = one.subnets[name]
        right = count = 0
        for inputs, classes in data.val_dataloader():
            wanted = torch.tensor(COARSE)[classes] if name == "coarse" else classes
            with torch.no_grad():
                right += int((supernet(inputs, arch).argmax(1) == wanted).sum())
            count += len(classes)
        logged = float(trainer.callback_metrics[f"val/{name}/accuracy"])
        assert logged == pytest.approx(right / count, abs=1e-6)
    assert float(trainer.callback_metrics["val/coarse/accuracy"]) > 0.8  # two labels: chance is a half


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (
            {"small": "thirds"},
            "tiers.labels.small: 'thirds' is not a label set of the supernet; there are: own, halves",
        ),
        ({"medium": "halves"}, "tiers.labels: 'medium' is not a tier"),
    ],
)
def test_tiers_with_labels_that_are_not_there_are_told_before_training(labels: dict[str, str], words: str) -> None:
    one = make_module(
        net(),
        Subspaces(share=1.0),
        OperatorAverage(),
        objective=PathSampling(),
        tiers=replace(tiers(), labels=labels),
    )
    with pytest.raises(ConfigError, match=words):
        fit(one, tiny_data(6))


def test_an_assignment_with_labels_that_are_not_there_is_told_before_training() -> None:
    with pytest.raises(ConfigError, match=r"assignment\.labels: 'thirds' is not a label set"):
        fit(module(assignment=Subspaces(share=1.0, labels="thirds")), tiny_data(6))


def test_tokens_have_no_label_sets() -> None:
    net = PathRNN((8,), 4, width=4)
    with pytest.raises(
        ConfigError, match=r"tiers\.labels\.small: 'halves' is not a label set of the supernet; there are: own$"
    ):
        tiers().tiers(net, seed=0)
