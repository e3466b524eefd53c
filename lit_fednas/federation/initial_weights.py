"""Files of weights: a run's checkpoint, and initial weights of a network from one or from a state dictionary."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from lit_fednas.errors import CheckpointError, ConfigError

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
    own = content.get("federation")
    missing = [name for name in (*_WEIGHTS, *needed) if content.get(name) is None]
    missing += [f"federation.{name}" for name in _FEDERATION if own and name not in own]
    if missing:
        raise CheckpointError(f"ckpt_path: {path} is not of a run: it has no {', '.join(missing)}; {remedy}")
    return content


def load_initial(network: nn.Module, file: Path, field: str) -> None:
    """Writes a file's weights into a network, in place."""
    loaded = read_tensors(file, field, "give a checkpoint or a state dictionary")
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
