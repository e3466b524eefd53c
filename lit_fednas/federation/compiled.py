"""``torch.compile`` for the clients' training.

A compilation takes tens of seconds and belongs to one shape of inputs. So each architecture is compiled once, for
full batches, before its first client's fit begins; smaller last batches run as if nothing were compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lit_fednas.errors import ConfigError
from lit_fednas.objectives import Objective
from lit_fednas.rng import isolated
from lit_fednas.supernets import Supernet

MOST_ARCHITECTURES = 16

_REMEDY = "set client.compile to false"


def check_compilable(supernet: Supernet, objective: Objective, together: int = 1) -> None:
    """Refuses what a compilation would not reach or pay for, and lets torch compile as often as is allowed.

    Args:
        supernet: The global weights.
        objective: The local loss.
        together: Clients trained together, for whom not the network but the whole loss is compiled.

    Raises:
        ConfigError: The objective does not call the network, or there are too many architectures.
    """
    if together == 1 and not objective.compilable:
        raise ConfigError(
            f"client.compile: true compiles what a network does when it is called, and {type(objective).__name__} "
            f"runs parts of it; {_REMEDY}"
        )
    size = supernet.space.size
    if size > MOST_ARCHITECTURES:
        raise ConfigError(
            f"client.compile: true would compile each of the supernet's {size} architectures, for tens of seconds "
            f"each, and up to {MOST_ARCHITECTURES} are allowed; {_REMEDY}"
        )
    # torch counts the compilations of all networks together, because they share the code of Module.__call__
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 4 * MOST_ARCHITECTURES)


def compile_network(network: nn.Module, inputs: Tensor) -> None:
    """Compiles a network in place, its tensors' names unchanged, by a forward and a backward pass.

    Args:
        network: On its device; its buffers and gradients are changed.
        inputs: A full batch.

    Raises:
        ConfigError: It cannot be compiled.
    """
    network.train()
    network.compile(dynamic=False)
    with torch.enable_grad():
        compile_now(lambda: network(inputs).sum().backward(), inputs.device)
    network.zero_grad(set_to_none=True)


def compile_now(call: Callable[[], Any], device: torch.device) -> None:
    """Calls what is compiled when it is called first, without moving a random generator.

    Raises:
        ConfigError: It cannot be compiled.
    """
    try:
        with isolated(0, "compilation", device=device):
            call()
    except Exception as error:
        reason = " ".join(str(error).split("\n")[:2])  # torch names its backend, then what that has raised
        raise ConfigError(
            f"client.compile: true, but torch.compile failed ({type(error).__name__}: {reason}); {_REMEDY}"
        ) from error


def uncompiled() -> AbstractContextManager[Any]:
    """Runs what is compiled as if it were not."""
    return torch.compiler.set_stance("force_eager")
