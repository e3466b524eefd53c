"""Files of weights: a run's checkpoint, what it must fit, and initial weights of a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
import yaml
from torch import Tensor, nn

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.records.files import reading
from lit_fednas.supernets import Supernet

#: Prefixes of a whole network's tensors in a checkpoint: an ordinary network, one that is cut in width, the first
#: of several.
_PREFIXES = ("supernet.network.", "supernet.networks.0.", "network.", "")
#: What a checkpoint of a run has in any case, and what the part of it that is ours has.
_WEIGHTS = ("state_dict", "pytorch-lightning_version", "federation")
_FEDERATION = ("supernet", "assignment", "seed")


def read_tensors(file: Path | str, field: str, remedy: str) -> Any:
    """Reads what ``torch.save`` has written; tensors stay on disk until they are used."""
    if not Path(file).is_file():
        fault = "is a folder" if Path(file).is_dir() else "does not exist"
        raise CheckpointError(f"{field}: {file} {fault}; {remedy}")
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    except Exception:  # what torch says depends on what the file is, and may advise to run the code in it
        raise CheckpointError(
            f"{field}: {file} cannot be read: it is damaged, or holds more than tensors and plain values; {remedy}"
        ) from None


def read_checkpoint(path: Any, needed: Collection[str] = ()) -> dict[str, Any]:
    """Reads a run's checkpoint."""
    remedy = "give a .ckpt file that lit-fednas fit has saved"
    content = read_tensors(path, "ckpt_path", remedy)
    content = content if isinstance(content, dict) else {}
    part = content.get("federation")
    missing = [name for name in (*_WEIGHTS, *needed) if content.get(name) is None]
    missing += [f"federation.{name}" for name in _FEDERATION if part and name not in part]
    if missing:
        raise CheckpointError(f"ckpt_path: {path} is not of a run: it has no {', '.join(missing)}; {remedy}")
    return content


def check_checkpoint(path: Any, needed: Collection[str] = ()) -> None:
    """Validates a checkpoint as :func:`read_checkpoint` does; ``None`` and words like ``last`` pass."""
    if path is not None and str(path) not in ("last", "best", "hpc"):
        read_checkpoint(path, needed)


def load_initial(network: nn.Module, file: Path, field: str) -> None:
    """Writes the weights of a checkpoint or of a state dictionary into a network, in place."""
    loaded = read_tensors(file, field, "give a checkpoint or a state dictionary")
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{field}: {file} holds no weights; give a checkpoint or a state dictionary")
    present = network.state_dict()
    given: dict[str, Tensor] = max(
        ({n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)} for prefix in _PREFIXES),
        key=lambda tensors: len(tensors.keys() & present.keys()),
    )
    for name, tensor in present.items():
        given_shape = list(given[name].shape) if name in given else None
        if given_shape != list(tensor.shape):
            raise ConfigError(
                f"{field}: {file} has {'no tensor' if given_shape is None else given_shape} for {name}, which is "
                f"{list(tensor.shape)} in the network; give the file of the same network"
            )
    network.load_state_dict({name: given[name] for name in present})


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
    """Validates that a checkpoint's weights are those of a supernet, and finite."""
    present, name = supernet.fingerprint, saved["class"]
    if name != present["class"]:
        raise CheckpointError(
            f"checkpoint: it is of a {name}, model.supernet is a {present['class']}; "
            f"use the config that the run was started with"
        )
    second = supernet.state_dict().keys() - saved["shapes"].keys()  # further names of tensors that layers share
    shapes = {tensor: list(content.shape) for tensor, content in tensors.items() if tensor not in second}
    if shapes != present["shapes"]:
        names = sorted(set(shapes) ^ set(present["shapes"]))
        names += [tensor for tensor, shape in present["shapes"].items() if shapes.get(tensor, shape) != shape]
        raise CheckpointError(
            f"checkpoint: its {name} differs in {len(names)} tensors, first in {names[0]} "
            f"({shapes.get(names[0])} there, {present['shapes'].get(names[0])} here); "
            f"use the model.supernet settings that the run was started with"
        )
    layers = saved.get("layers", present["layers"])
    if layers != present["layers"]:
        raise CheckpointError(
            f"checkpoint: its {name} has layers of {', '.join(layers)}, this one of "
            f"{', '.join(present['layers'])}; use the model.supernet settings that the run was started with"
        )
    for tensor, content in tensors.items():
        if not content.isfinite().all():
            raise CheckpointError(f"checkpoint: its {tensor} holds NaN or infinity; give an earlier checkpoint")
