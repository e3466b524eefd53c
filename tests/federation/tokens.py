"""Small texts of tokens, divided by roles, and metrics by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_fednas.data import ArraySource, ByColumn, Examples, FederatedDataModule, NextToken
from lit_fednas.supernets import PlainNetwork

LENGTH, VOCABULARY, PAD = 6, 5, 0
COUNT = 56


def token_examples(count: int = COUNT, seed: int = 0) -> Examples:
    """Windows that count modulo 4 from a random start, in 1..4; shorter windows end in padding."""
    rng = np.random.default_rng(seed)
    windows = 1 + (rng.integers(4, size=(count, 1)) + np.arange(LENGTH + 1)) % 4
    for window, length in zip(windows, rng.integers(1, LENGTH + 1, size=count), strict=True):
        window[length + 1 :] = PAD
    tokens = torch.from_numpy(windows)
    return Examples(tokens[:, :-1], tokens[:, 1:], {"role": rng.choice(list("aabcdeefg"), count)})


def token_data(train: Examples | None = None, **settings: Any) -> FederatedDataModule:
    """Seven unequal clients, one per role, and 30 examples for the server."""
    splits = train or token_examples(), token_examples(30, 1), token_examples(30, 2)
    return FederatedDataModule(ArraySource(*splits, task=NextToken(VOCABULARY, PAD)), ByColumn("role"), **settings)


def token_net() -> PlainNetwork:
    layers = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))
    return PlainNetwork(layers, (LENGTH,), VOCABULARY, torch.int64)


def by_hand(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Returns the metrics, computed token by token without padding."""
    losses, right = [], []
    for window, answers in zip(outputs.double(), targets, strict=True):
        for position, target in zip(window, answers.tolist(), strict=True):
            if target != PAD:
                losses.append(float(position.logsumexp(0) - position[target]))
                right.append(int(position.argmax()) == target)
    return {"perplexity": math.exp(np.mean(losses)), "accuracy": float(np.mean(right)), "loss": float(np.mean(losses))}
