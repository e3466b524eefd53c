"""The network of a tier on disk: its weights, and which architecture they are of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation.evaluation import fresh_statistics
from lit_fednas.records import TierFiles, TierModel
from lit_fednas.records.files import replacing
from lit_fednas.supernets import Supernet

WEIGHTS_FILE = "weights.pt"


def save_tier_model(files: TierFiles, model: TierModel, network: nn.Module) -> None:
    """Writes ``weights.pt`` and ``architecture.json`` of a tier.

    The old ``architecture.json`` goes first and the new one comes last: a kill in between leaves a tier without
    a network, never one architecture with another's weights.

    Args:
        files: The search's folder.
        model: What to say of the network.
        network: On any device; its tensors may be views of larger ones, of which only the views are written.
    """
    folder = files.tier_folder(model.tier)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "architecture.json").unlink(missing_ok=True)
    weights = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
    with replacing(folder / WEIGHTS_FILE) as file:
        torch.save(weights, file)
    files.write_tier_model(model)


def load_tier_network(supernet: Supernet, files: TierFiles, tier: str) -> tuple[Any, nn.Module]:
    """Reads a tier's network.

    Args:
        supernet: The one that was searched; it builds the network and is left as it is.
        files: The search's folder.
        tier: The tier's name.

    Returns:
        The architecture, and its network with the tier's weights: in evaluation mode, on the CPU.

    Raises:
        ConfigError: The search wrote no such tier, or was of another supernet.
        CheckpointError: The weights cannot be read, or are not those of the architecture.
    """
    if tier not in files.tier_names:
        there = ", ".join(files.tier_names) or "none; run 'lit-fednas search' first"
        raise ConfigError(f"tier: {tier!r} has no network in {files.folder}; there are: {there}")
    model = files.tier_model(tier)
    arch = _architecture(supernet, model)
    network = supernet.subnet(arch).cpu()
    if model.recalibrated:
        fresh_statistics(network)
    weights = _weights(files, tier)
    _must_fit(network.state_dict(), weights, files.tier_folder(tier) / WEIGHTS_FILE)
    network.load_state_dict(weights)
    return arch, network.eval()


def _architecture(supernet: Supernet, model: TierModel) -> Any:
    searched = f"tier {model.tier!r} is of {model.supernet}, input_shape {model.input_shape}, "
    searched += f"num_classes {model.num_classes}; give the config of its run"
    if (list(supernet.input_shape), supernet.num_classes) != (list(model.input_shape), model.num_classes):
        shapes = f"input_shape {list(supernet.input_shape)} and num_classes {supernet.num_classes}"
        raise ConfigError(f"model.supernet: has {shapes}, but {searched}")
    try:
        return supernet.space.parse(model.arch)
    except ConfigError as error:
        raise ConfigError(f"{error}; {searched}") from None


def _weights(files: TierFiles, tier: str) -> dict[str, Tensor]:
    path = files.tier_folder(tier) / WEIGHTS_FILE
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: cannot be read ({reason}); run the search again") from None


def _must_fit(expected: dict[str, Tensor], found: dict[str, Tensor], path: Path) -> None:
    """Names the first tensor that is missing, left over or of another shape."""
    for name in (*expected, *found):
        shapes = [list(tensors[name].shape) if name in tensors else None for tensors in (expected, found)]
        if shapes[0] != shapes[1]:
            wanted, there = ("none" if shape is None else shape for shape in shapes)
            raise CheckpointError(
                f"{path}: of {name}, the architecture has {wanted} and the file {there}; run the search again"
            )
