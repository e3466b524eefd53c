"""Warnings about settings that nothing reads."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from lit_fednas.cli.effects import RULES, without_effect

USUAL = {
    "checkpoint": {"monitor": None, "save_top_k": 1, "mode": None},
    "model": {
        "objective": {"class_path": "lit_fednas.objectives.TaskLoss", "init_args": {}},
        "client": {"epochs": 1, "steps": None, "validate": None},
    },
    "data": {"client_val": 0.0},
    "deployed_accuracy": None,
}
OF_VALIDATION = {"class_path": "x.Proximal", "init_args": {"objective": {"class_path": "x.DifferentiableSearch"}}}
DEPLOYED = {"class_path": "lit_fednas.callbacks.DeployedAccuracy", "init_args": {"split": "val"}}
#: A setting with its value, and other settings that make a part read it.
CASES: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"checkpoint.save_top_k": 3}, [{"checkpoint.monitor": "val/mean/accuracy"}]),
    ({"checkpoint.mode": "min"}, [{"checkpoint.monitor": "val/mean/accuracy"}]),
    ({"model.client.epochs": 5, "model.client.steps": 8}, [{"model.client.steps": None}]),
    (
        {"data.client_val": 0.2},
        [{"model.client.validate": "trained"}, {"model.objective": OF_VALIDATION}, {"deployed_accuracy": DEPLOYED}],
    ),
]


def changed(**settings: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in USUAL.items()}
    tree["model"] = {key: dict(value) for key, value in tree["model"].items()}
    for name, value in settings.items():
        *above, last = name.split(".")
        node = tree
        for word in above:
            node = node[word]
        node[last] = value
    return tree


@pytest.mark.parametrize(("settings", "readers"), CASES, ids=str)
def test_a_setting_is_named_unless_a_part_reads_it(settings: dict[str, Any], readers: list[dict[str, Any]]) -> None:
    (line,) = without_effect(changed(**settings), "fit")
    name = next(iter(settings))
    assert line.startswith(f"{name}: ")
    assert "has no effect on fit, as " in line
    for reader in readers:
        assert without_effect(changed(**{**settings, **reader}), "fit") == []


def test_the_reasons_are_named() -> None:
    settings = changed(**{"model.client.steps": 4, "model.client.epochs": 2})
    assert without_effect(settings, "fit") == [
        "model.client.epochs: 2 has no effect on fit, as model.client.steps is 4"
    ]
    assert without_effect(changed(), "fit") == []


@pytest.mark.parametrize("name", ["mine.Loss", "torchmetrics.Loss"])
def test_no_warning_if_a_part_of_another_package_may_read_it(name: str) -> None:
    wrapped = {"class_path": "lit_fednas.objectives.Proximal", "init_args": {"objective": {"class_path": name}}}
    lines = without_effect(changed(**{"data.client_val": 0.2, "model.objective": wrapped}), "fit")
    assert [line.partition(":")[0] for line in lines] == ([] if name == "mine.Loss" else ["data.client_val"])


def test_defaults_are_never_named() -> None:
    """The rules' usual values are the defaults."""
    from lit_fednas.callbacks import RoundCheckpoint
    from lit_fednas.data import FederatedDataModule
    from lit_fednas.federation import ClientSettings

    owners = {"checkpoint": RoundCheckpoint, "client": ClientSettings}
    for rule in RULES:
        *_, owner, name = rule.setting.split(".")
        assert inspect.signature(owners.get(owner, FederatedDataModule)).parameters[name].default == rule.usual
