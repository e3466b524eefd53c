"""Initial weights of a network from a file: a checkpoint of a run, or a state dictionary."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_fednas.errors import ConfigError

#: Prefixes of a whole network's tensors in a checkpoint: an ordinary network, one that is cut in width, the first
#: of several.
_PREFIXES = ("supernet.network.", "supernet.networks.0.", "network.", "")


def load_initial(network: nn.Module, file: Path, field: str) -> None:
    """Writes a file's weights into a network, in place.

    Args:
        network: The network.
        file: A checkpoint of a run that trained the same network, or a state dictionary of it (``torch.save``).
        field: The setting that names the file, for errors.

    Raises:
        ConfigError: The file cannot be read, or its tensors are not those of the network.
    """
    try:
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises depends on what the file is
        reason = re.split(r"[.\n]", str(error))[0]
        raise ConfigError(f"{field}: {file} cannot be read as weights ({reason}); give a checkpoint") from error
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{field}: {file} holds no weights; give a checkpoint or a state dictionary")
    own = network.state_dict()
    given: dict[str, Tensor] = max(
        ({n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)} for prefix in _PREFIXES),
        key=lambda tensors: len(tensors.keys() & own.keys()),
    )
    for name, tensor in own.items():
        given_shape = list(given[name].shape) if name in given else None
        if given_shape != list(tensor.shape):
            raise ConfigError(
                f"{field}: {file} has {'no tensor' if given_shape is None else given_shape} for {name}, which is "
                f"{list(tensor.shape)} in the network; give the file of the same network"
            )
    network.load_state_dict({name: given[name] for name in own})
