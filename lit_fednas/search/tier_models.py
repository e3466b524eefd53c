"""The network of a tier on disk: its weights, its architecture, and its metrics for single clients."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.federation.checkpoints import read_tensors
from lit_fednas.federation.evaluation import (
    ClientScore,
    batches_of_clients,
    client_scores,
    fresh_statistics,
    normalises_over_batches,
)
from lit_fednas.records import TierFiles, TierModel
from lit_fednas.records.files import replace_saved
from lit_fednas.supernets import Supernet

WEIGHTS_FILE = "weights.pt"
_BATCH_SIZE = 512


def tier_model(supernet: Supernet, tier: str, arch: Any, recalibrated: bool, **fields: Any) -> TierModel:
    """Returns the content of a tier's ``architecture.json``."""
    return TierModel(
        tier=tier,
        arch=str(arch),
        encoding=[int(gene) for gene in supernet.space.encode(arch)],
        supernet=type(supernet).__name__,
        input_shape=list(supernet.input_shape),
        num_classes=supernet.num_classes,
        recalibrated=recalibrated,
        stages=[list(stage) for stage in supernet.space.stages(arch)],
        **fields,
    )


def save_tier_model(files: TierFiles, model: TierModel, network: nn.Module) -> None:
    """Writes ``weights.pt`` and ``architecture.json`` of a tier."""
    folder = files.tier_folder(model.tier)
    (folder / "architecture.json").unlink(missing_ok=True)
    weights = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
    replace_saved(folder / WEIGHTS_FILE, weights)
    files.write_tier_model(model)


def load_tier_network(supernet: Supernet, files: TierFiles, tier: str) -> tuple[Any, nn.Module]:
    """Returns the architecture and the network of a tier."""
    if tier not in files.tier_names:
        names = " or ".join(f"--tier {name}" for name in files.tier_names)
        remedy = f"give {names}" if names else "run 'lit-fednas search' first"
        raise ConfigError(f"tier: {tier!r} has no network in {files.folder}; {remedy}")
    model = files.tier_model(tier)
    arch = _architecture(supernet, model)
    network = supernet.subnet(arch).cpu()
    if model.recalibrated:
        fresh_statistics(network)
    path = files.tier_folder(tier) / WEIGHTS_FILE
    weights = read_tensors(path, "tier", "run the search again")
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()  # the first reason; line 0 is a heading
        raise CheckpointError(f"{path}: does not fit the architecture ({reason}); run the search again") from None
    return arch, network.eval()


def scores_of_clients(
    model: FederatedLightningModule,
    datamodule: FederatedDataModule,
    network: nn.Module,
    clients: Iterable[int],
) -> list[ClientScore]:
    """Returns the metrics of a network for single clients, on their own test examples."""
    data, network = datamodule.clients, network.to(next(model.supernet.parameters()).device)
    sizes = {client: data.size(client, "test") for client in clients}
    groups = batches_of_clients(sizes, 1 if normalises_over_batches(network) else _BATCH_SIZE)
    score = partial(client_scores, network, data, settings=model.evaluation)
    return [client_score for group in groups for client_score in score(group)]


def _architecture(supernet: Supernet, model: TierModel) -> Any:
    origin = f"tier {model.tier!r} is of {model.supernet}, input_shape {model.input_shape}, "
    origin += f"num_classes {model.num_classes}; give the config of its run"
    if (list(supernet.input_shape), supernet.num_classes) != (list(model.input_shape), model.num_classes):
        shapes = f"input_shape {list(supernet.input_shape)} and num_classes {supernet.num_classes}"
        raise ConfigError(f"model.supernet: has {shapes}, but {origin}")
    try:
        return supernet.space.parse(model.arch)
    except ConfigError as error:
        raise ConfigError(f"{error}; {origin}") from None
