"""An overlay changes what it is named after, over every configuration of its folder, and nothing else."""

from __future__ import annotations

import functools
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser

from lit_fednas.callbacks import OPTIONAL_CALLBACKS
from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.lightning_cli import LINKED
from lit_fednas.parts import instantiated
from lit_fednas.supernets import BaseNetworks, Supernet

CONFIGS = Path(__file__).parents[1] / "configs"
SUPERNET, SCALER = "model.supernet.class_path", "model.supernet.init_args.scaler"
OBJECTIVE, AGGREGATION, ASSIGNMENT = "model.objective", "model.aggregation", "model.assignment"
PLAIN = (OBJECTIVE, AGGREGATION)  # HeteroFL's masked loss and its average by class go together

#: What each overlay may change besides the run's name.
CHANGES: dict[str, dict[str, tuple[str, ...]]] = {
    "fedhen": {
        "decouple": (SUPERNET, "model.supernet.init_args.early_heads", OBJECTIVE),
        "noniid": ("data.partitioner",),
        "noside": (OBJECTIVE,),
        "noside_own_head": ("model.supernet.init_args.early_heads", OBJECTIVE),
    },
    "width": {
        "fedavg_narrowest": (SCALER, ASSIGNMENT, *PLAIN),
        "fedavg_whole": (SCALER, ASSIGNMENT, *PLAIN),
        "fedprox": PLAIN,
        "fedrolex": (ASSIGNMENT, *PLAIN),
        "fedrolex_fast": (ASSIGNMENT, *PLAIN),
        "fjord": (SCALER, *PLAIN),
        "fjord_distilled": (SCALER, *PLAIN),
        "fluid": (SCALER, ASSIGNMENT, *PLAIN),
        "heterofl_dynamic": (ASSIGNMENT,),
        "heterofl_masked": PLAIN,
        "iid": ("data.partitioner",),
        "partial_work": ("model.client.epochs", "model.faults.straggler_rate"),
        "separate": (SUPERNET, SCALER, *PLAIN),
        "stragglers": ("model.tiers.allocation",),
        "splitmix": (SUPERNET, SCALER, "model.supernet.init_args.count", ASSIGNMENT, *PLAIN),
    },
}
PAIRS = [
    (folder, base.stem, overlay)
    for folder, overlays in CHANGES.items()
    for base, overlay in product(sorted((CONFIGS / folder).glob("*.yaml")), overlays)
]
RUN_NAME = "trainer.logger.init_args.name"
LINKS = tuple(LINKED)  # what the data give


@pytest.fixture(scope="module")
def parser() -> LightningArgumentParser:
    """The command line's, of what stands in these files."""
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--seed_everything", type=int)
    parser.add_lightning_class_args(FederatedTrainer, "trainer")
    parser.add_lightning_class_args(FederatedLightningModule, "model")
    parser.add_lightning_class_args(FederatedDataModule, "data")
    for name, callback in OPTIONAL_CALLBACKS.items():
        parser.add_argument(f"--{name}", type=callback | None, default=None)
    for name in LINKED:
        parser.link_arguments(f"data.{name}", f"model.supernet.init_args.{name}", apply_on="instantiate")
    return parser


@functools.cache  # every overlay is compared with its base
def parsed(parser: ArgumentParser, *paths: Path) -> dict[str, Any]:
    """Read only."""
    config = parser.parse_args([word for path in paths for word in ("--config", str(path))]).as_dict()
    return {key: value for key, value in config.items() if key != "config"}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix[:-1]: value}
    return {name: leaf for key, item in value.items() for name, leaf in flat(item, f"{prefix}{key}.").items()}


def supernet(config: dict[str, Any], **settings: Any) -> Supernet:
    part = config["model"]["supernet"]
    given = {**part["init_args"], "input_shape": (3, 32, 32), "num_classes": 10, **settings}
    with torch.device("meta"):
        return instantiated(Supernet, {"class_path": part["class_path"], "init_args": given})


def test_all_are_here():
    for folder, overlays in CHANGES.items():
        assert sorted(overlays) == [path.stem for path in sorted((CONFIGS / folder / "overlays").glob("*.yaml"))]


@pytest.mark.parametrize(
    ("folder", "base", "overlay"),
    [pytest.param(*pair, marks=() if pair[1] == "cifar10" else pytest.mark.slow) for pair in PAIRS],
    ids=map("-".join, PAIRS),
)
def test_an_overlay_changes_only_what_it_is_named_after(parser, folder, base, overlay):
    paths = CONFIGS / folder / f"{base}.yaml", CONFIGS / folder / "overlays" / f"{overlay}.yaml"
    before, after = parsed(parser, *paths[:1]), parsed(parser, *paths)
    ours, theirs = flat(after), flat(before)
    differing = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key) and not key.endswith(LINKS)]
    allowed = (RUN_NAME, *CHANGES[folder][overlay])
    assert [key for key in differing if not any(f"{key}.".startswith(f"{one}.") for one in allowed)] == []
    assert RUN_NAME not in differing or not any(word in ours[RUN_NAME] for word in ("cifar", "digits", "small"))
    check_network(before, after)


def test_the_fast_window_goes_round_once_in_the_small_configurations(parser):
    for base in ("cifar10_small", "digits"):
        config = parsed(parser, *(CONFIGS / "width" / path for path in (f"{base}.yaml", "overlays/fedrolex_fast.yaml")))
        steps = config["trainer"]["max_rounds"] * config["model"]["assignment"]["init_args"]["step"]
        assert steps >= max(supernet(config).units.values())


def check_network(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Asserts that the largest network is the base's, without the heads before its last or as its base networks."""
    if before["model"]["supernet"] == after["model"]["supernet"]:
        return
    net = supernet(after)
    settings = before["model"]["supernet"]["init_args"]
    if isinstance(net, BaseNetworks):
        assert net.family.units(net.input_shape) == supernet(before).units
        assert len(net.networks) == 1 / min(settings["widths"])
        return
    without = {"early_heads": False} if "early_heads" in settings else {}
    whole = supernet(before, **without)
    assert net.cost(net.space.largest).parameters == whole.cost(whole.space.largest).parameters
