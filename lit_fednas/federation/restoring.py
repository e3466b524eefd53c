"""What a run's checkpoint must fit: a supernet of the same structure, and the configuration beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from lit_fednas.errors import CheckpointError
from lit_fednas.records.files import reading
from lit_fednas.supernets import Supernet


def model_settings(checkpoint_path: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model's settings in the ``config.yaml`` of a checkpoint's run, with what its data gave."""
    path = checkpoint_path.parent.parent / "config.yaml"
    if not path.exists() or "data" not in saved:
        raise CheckpointError(
            f"checkpoint: its run's {path} does not exist, or is of an earlier version; give the module's parts: "
            f"load_from_checkpoint({str(checkpoint_path)!r}, supernet=..., assignment=..., ...)"
        )
    with reading(path):
        settings = yaml.safe_load(path.read_text())["model"]
        settings["supernet"]["init_args"].update(saved["data"])
    return {**settings, "seed": saved["seed"]}


def check_supernet(supernet: Supernet, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Checks that a checkpoint's weights are those of a supernet, and sound."""
    own, name = supernet.fingerprint, saved["class"]
    if name != own["class"]:
        raise CheckpointError(
            f"checkpoint: it is of a {name}, model.supernet is a {own['class']}; "
            f"use the config that the run was started with"
        )
    second = supernet.state_dict().keys() - saved["shapes"].keys()  # further names of tensors that layers share
    shapes = {tensor: list(content.shape) for tensor, content in tensors.items() if tensor not in second}
    if shapes != own["shapes"]:
        names = sorted(set(shapes) ^ set(own["shapes"]))
        names += [tensor for tensor, shape in own["shapes"].items() if shapes.get(tensor, shape) != shape]
        raise CheckpointError(
            f"checkpoint: its {name} differs in {len(names)} tensors, first in {names[0]} "
            f"({shapes.get(names[0])} there, {own['shapes'].get(names[0])} here); "
            f"use the model.supernet settings that the run was started with"
        )
    layers = saved.get("layers", own["layers"])
    if layers != own["layers"]:
        raise CheckpointError(
            f"checkpoint: its {name} has layers of {', '.join(layers)}, this one of "
            f"{', '.join(own['layers'])}; use the model.supernet settings that the run was started with"
        )
    for tensor, content in tensors.items():
        if not content.isfinite().all():
            raise CheckpointError(f"checkpoint: its {tensor} holds NaN or infinity; give an earlier checkpoint")
