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


def check_compilable(supernet: Supernet, objective: Objective, clients_per_fit: int = 1) -> None:
    """Validates that compilation reaches the network and pays, and raises torch's limit of compilations."""
    if clients_per_fit == 1 and not objective.compilable:
        raise ConfigError(
            f"client.compile: true compiles calls of a network, and {type(objective).__name__} runs parts of it; "
            f"{_REMEDY}"
        )
    size = supernet.space.size
    if size > MOST_ARCHITECTURES:
        raise ConfigError(
            f"client.compile: true would compile each of the supernet's {size} architectures, for tens of seconds "
            f"each, and up to {MOST_ARCHITECTURES} are allowed; {_REMEDY}"
        )
    # torch counts the compilations of all networks together, because they share the code of one function
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 4 * MOST_ARCHITECTURES)


def compile_network(network: nn.Module, inputs: Tensor) -> None:
    """Compiles a network in place, by a forward and a backward pass; its tensors keep their names."""
    network.train()
    forward = network.forward

    # not Module.compile: up to 2.12 torch silently skips what its own files define, such as Sequential's forward
    def call(*args: Any) -> Any:
        return forward(*args)

    network.forward = torch.compile(call, dynamic=False)
    with torch.enable_grad():
        compile_now(lambda: network(inputs).sum().backward(), inputs.device)
    network.zero_grad(set_to_none=True)


def compile_now(call: Callable[[], Any], device: torch.device) -> None:
    """Makes the first call of a compiled function, which compiles it, without advancing a random generator."""
    try:
        with isolated(0, "compilation", device=device):
            call()
    except Exception as error:
        reason = " ".join(str(error).split("\n")[:2])  # torch names its backend, then what that has raised
        raise ConfigError(
            f"client.compile: true, but torch.compile failed ({type(error).__name__}: {reason}); {_REMEDY}"
        ) from error


def uncompiled() -> AbstractContextManager[Any]:
    """Returns a context in which compiled code runs eagerly."""
    return torch.compiler.set_stance("force_eager")
