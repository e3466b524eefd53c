"""Architectures that a user names to be fine-tuned (FedNAS, section 4.4: "GM_T or other GMs if needed").

Each becomes a candidate of a tier of its own, which is called after it and has no limits.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import Supernet, with_labels
from lit_fednas.tiers import Tier

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s+of\s+macs\s*")
_LONGEST = 60  # of a name: folders' names have a limit, and architectures of many layers are long


def named_architectures(supernet: Supernet, texts: Sequence[str], labels: str | None = None) -> list[Any]:
    """The architectures that are named.

    Args:
        supernet: It holds them.
        texts: Each as the space writes it; ``smallest`` or ``largest``; or ``0.5 of macs``, which in a row of
            architectures (:class:`~lit_fednas.supernets.Ladder`) is that of most MACs among those that have at
            most this share of the largest one's.
        labels: The label set that all shall tell apart; that which they are named with if not given.

    Raises:
        ConfigError: One cannot be read, is not there or cannot be taken out, or two are the same.

    Example:
        >>> from lit_fednas.supernets import SlicedCNN, WidthSupernet
        >>> supernet = WidthSupernet((3, 8, 8), 10, SlicedCNN((8, 16)), widths=[1, 0.5, 0.25])
        >>> [str(arch) for arch in named_architectures(supernet, ["smallest", "0.5 of macs"])]
        ['width: 0.25', 'width: 0.5']
    """
    found: dict[Any, str] = {}
    for text in texts:
        arch = _named(supernet, text)
        if labels is not None:
            arch = with_labels(supernet.space, arch, labels)
        if arch in found:
            twice = f"{text!r}" if text == found[arch] else f"{found[arch]!r} and {text!r}"
            raise ConfigError(f"finetune.models: names {arch} twice, as {twice}; name each once")
        found[arch] = text
    return list(found)


def own_tiers(archs: Sequence[Any]) -> list[Tier]:
    """One tier without limits per architecture, called after it with letters that a folder may have.

    Args:
        archs: All different.

    Example:
        >>> [tier.name for tier in own_tiers(["model: 12", "model: 3"])]
        ['model-12', 'model-3']
    """
    slugs = [_slug(str(arch)) for arch in archs]
    number = Counter(slugs)
    return [
        Tier(slug if slug and number[slug] == 1 and len(slug) <= _LONGEST else _told_apart(slug, str(arch)), {})
        for slug, arch in zip(slugs, archs, strict=True)
    ]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")


def _told_apart(slug: str, text: str) -> str:
    """A name of bounded length that no other architecture has."""
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{slug[: _LONGEST - len(digest) - 1]}-{digest}".lstrip("-")


def _named(supernet: Supernet, text: str) -> Any:
    space = supernet.space
    share = _SHARE.fullmatch(text) if isinstance(text, str) else None
    if share is not None:
        return _by_share(supernet, text, float(share[1]))
    try:
        arch = space.named(text)
        space.encode(arch)  # what clients may train is not always an architecture by itself
    except ConfigError as error:
        of = type(supernet).__name__
        raise ConfigError(f"finetune.models: {text!r} is no model of {of} ({error})") from None
    return arch


def _by_share(supernet: Supernet, text: str, share: float) -> Any:
    space = supernet.space
    rungs = getattr(space, "rungs", None)
    if rungs is None:
        raise ConfigError(
            f"finetune.models: {text!r} chooses from a row of models, which {type(supernet).__name__} does not "
            f"have; name architectures as its space writes them, such as {str(space.largest)!r}"
        )
    largest = supernet.macs(space.largest)
    # a quotient of whole numbers is rounded as the number in the text is, so that equal ones are equal
    shares = {arch: supernet.macs(arch) / largest for arch in rungs}
    fitting = [arch for arch in rungs if shares[arch] <= share]
    if not fitting:
        raise ConfigError(
            f"finetune.models: no model has at most {text}; the smallest has {min(shares.values()):.4g} of the "
            f"largest one's"
        )
    return max(reversed(fitting), key=lambda arch: shares[arch])
