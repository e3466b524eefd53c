"""What an objective keeps of each client from one of its fits to the next: given to it, and collected from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

import torch
from torch import Tensor

from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientState
from lit_fednas.objectives.base import Objective

#: What an objective and those inside it keep, by their place: ``""``, ``"objective"``, ``"objective.objective"``.
ClientStates = Mapping[str, ClientState]


def keeps_state(objective: Objective) -> bool:
    """Returns whether the objective, or one inside it, keeps a state of each client."""
    return any(type(part).client_state is not Objective.client_state for _, part in _parts(objective))


def give_state(objective: Objective, states: ClientStates, device: torch.device | None = None) -> None:
    """Sets ``state`` of the objective and of those inside it, for the next fit; empty if nothing is kept yet."""
    for place, part in _parts(objective):
        part.state = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in states.get(place, {}).items()
        }


@torch.no_grad()
def collect_state(objective: Objective) -> ClientStates | None:
    """Returns copies of what is to be kept after a fit, on the CPU; ``None`` if everything stays as it was."""
    new = {place: (part, part.client_state()) for place, part in _parts(objective)}
    if all(state is None for _, state in new.values()):
        return None
    return {place: _copied(part, part.state if state is None else state) for place, (part, state) in new.items()}


def is_finite(states: ClientStates) -> bool:
    """Returns whether all numbers are finite."""
    values = [value for state in states.values() for value in state.values()]
    return all(
        bool(value.isfinite().all()) if isinstance(value, Tensor) else isinstance(value, str) or isfinite(value)
        for value in values
    )


def _parts(objective: Objective) -> Iterator[tuple[str, Objective]]:
    """Yields the objective and those inside it, with their places."""
    place = ""
    part: Objective | None = objective
    while isinstance(part, Objective):
        yield place, part
        place, part = f"{place}.objective".lstrip("."), getattr(part, "objective", None)


def _copied(part: Objective, state: ClientState) -> ClientState:
    """Returns a copy that ``torch.load(weights_only=True)`` reads."""
    for name, value in state.items():
        if not isinstance(value, Tensor) and type(value) not in (bool, int, float, str):
            raise ConfigError(
                f"model.objective: {type(part).__name__}.client_state returns a {type(value).__name__} for {name!r}, "
                f"which cannot be saved; return tensors, numbers and texts"
            )
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in state.items()
    }
