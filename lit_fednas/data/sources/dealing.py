"""What sources with natural clients deal out: which part of the data, and to whom."""

from __future__ import annotations

from typing import Literal

import numpy as np

from lit_fednas.errors import ConfigError

Deal = Literal["train", "all"]
"""Which examples go to the clients: those that the data set has for training, or all."""


def check_deal(deal: str, least: int) -> None:
    """Raises ConfigError unless both settings can be used."""
    if deal not in ("train", "all"):
        raise ConfigError(f"deal: {deal!r} is not known; give 'train' or 'all'")
    if least < 1:
        raise ConfigError(f"least: {least} is no number of examples; give 1 or more")


def enough(clients: np.ndarray, least: int) -> np.ndarray:
    """Returns which examples belong to a client with ``least`` examples or more: bool [N].

    Example:
        >>> enough(np.array(["a", "b", "a"]), 2).tolist()
        [True, False, True]
    """
    _, codes, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    return (sizes >= least)[codes]
