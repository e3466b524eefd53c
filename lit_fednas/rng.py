"""Random generators by address, in place of generators that are passed around.

Every draw belongs to an address: the run's seed, a purpose, and integers (round, client, epoch). The same address gives
the same generator in any process and in any order, so a run resumes bit-identically and does not depend on the number
of workers. No global generator is read.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def address_seed(seed: int, purpose: str, *address: int) -> int:
    """Returns the seed of an address, a 63-bit hash.

    Example:
        >>> address_seed(0, "batches", 3, 7) == address_seed(0, "batches", 37)
        False
    """
    text = "/".join([str(int(seed)), purpose, *(str(int(part)) for part in address)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, purpose: str, *address: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns torch's generator of an address: for batches, augmentation, paths."""
    return torch.Generator(device=device).manual_seed(address_seed(seed, purpose, *address))


def numpy_generator(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """Returns numpy's generator of an address: for cohorts, architectures, partitions."""
    return np.random.default_rng(address_seed(seed, purpose, *address))


@contextmanager
def isolated(seed: int, purpose: str, *address: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seeds torch's global generators (CPU and ``device``) by address inside the block, and restores them."""
    device = torch.device(device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(address_seed(seed, purpose, *address))
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(address_seed(seed, purpose, *address))
        yield
