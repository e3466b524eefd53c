"""Random generators that are addressed, not passed around.

Every draw of a run belongs to an address: the run's seed, a purpose, and the integers that say where
(round, client, epoch). The same address gives the same generator in any process and in any order, so a run
resumes bit-identically and its result does not depend on the number of workers. No global generator is read.

Dropout layers draw from torch's global generator and cannot be given another; :func:`isolated` therefore
seeds the global generator for the length of one client's fit and puts the old state back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

#: Skipping numbers of a stream takes about as long as drawing so many.
_SKIPPED = 500


def address_seed(seed: int, purpose: str, *address: int) -> int:
    """Returns the 63-bit seed of an address, a hash.

    Example:
        >>> address_seed(0, "batches", 3, 7) == address_seed(0, "batches", 3, 7)
        True
        >>> address_seed(0, "batches", 3, 7) == address_seed(0, "batches", 37)
        False
    """
    text = "/".join([str(int(seed)), purpose, *(str(int(part)) for part in address)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, purpose: str, *address: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns torch's generator of an address: for batches, augmentation, paths.

    Example:
        >>> a = torch.randperm(5, generator=generator(0, "batches", 1, 2))
        >>> b = torch.randperm(5, generator=generator(0, "batches", 1, 2))
        >>> bool((a == b).all())
        True
    """
    return torch.Generator(device=device).manual_seed(address_seed(seed, purpose, *address))


def numpy_generator(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """Returns numpy's generator of an address: for cohorts, architectures, partitions.

    Example:
        >>> int(numpy_generator(0, "cohort", 4).integers(10)) == int(numpy_generator(0, "cohort", 4).integers(10))
        True
    """
    return np.random.default_rng(address_seed(seed, purpose, *address))


def uniforms_at(places: np.ndarray, seed: int, purpose: str, *address: int) -> np.ndarray:
    """Returns some numbers of an address's stream of uniform ones, without drawing all that come before them.

    Args:
        places: Which ones, int64 [n], counted from 0.
        seed: The run's seed.
        purpose: What they are for.
        *address: Where.

    Returns:
        In [0, 1), float64 [n].

    Example:
        >>> everybody = numpy_generator(0, "availability", 1).random(1000)
        >>> bool((uniforms_at(np.array([7, 999]), 0, "availability", 1) == everybody[[7, 999]]).all())
        True
    """
    draws = numpy_generator(seed, purpose, *address)
    length = int(places.max(initial=-1)) + 1
    if length < _SKIPPED * len(places):
        return draws.random(length)[places]
    found, here = np.empty(len(places)), 0
    for position in np.argsort(places, kind="stable").tolist():
        place = int(places[position])
        if place >= here:  # not the same as the one before
            draws.bit_generator.advance(place - here)  # type: ignore[attr-defined]
            value, here = draws.random(), place + 1
        found[position] = value
    return found


@contextmanager
def isolated(seed: int, purpose: str, *address: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seeds torch's global generators (CPU and ``device``) by address inside the block, and restores them.

    For what cannot be given a generator, such as ``torch.nn.Dropout``.

    Example:
        >>> with isolated(0, "dropout", 1):
        ...     a = torch.rand(1)
        >>> with isolated(0, "dropout", 1):
        ...     b = torch.rand(1)
        >>> bool(a == b)
        True
    """
    device = torch.device(device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(address_seed(seed, purpose, *address))
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(address_seed(seed, purpose, *address))
        yield
