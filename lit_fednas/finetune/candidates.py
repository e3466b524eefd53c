"""The networks that a fine-tuning trains, and the clients that may train each.

They are the networks that a search found for the tiers, random architectures of the tiers, or architectures that a
user names, each of which is a candidate of a tier of its own, with its name and no limits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lit_fednas.callbacks.pruning import balanced_groups
from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.finetune.settings import FinetuneSettings
from lit_fednas.records import SearchFiles
from lit_fednas.rng import numpy_generator
from lit_fednas.search import Feasible
from lit_fednas.supernets import OWN, Supernet, labelled_space, labels_of, with_labels
from lit_fednas.tiers import ArchitectureCosts, Population, Tier

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s+of\s+macs\s*")
_LONGEST = 60  # of a name: folders' names have a limit, and architectures of many layers are long


@dataclass(frozen=True)
class Candidate:
    """A network to train: number ``number`` of its tier, with its architecture in the supernet."""

    tier: Tier
    number: int
    arch: Any

    @property
    def folder(self) -> str:
        """The name of its run's folder."""
        return f"{self.tier.name}-{self.number}"


def candidates_of(
    settings: FinetuneSettings, supernet: Supernet, tiers: Sequence[Tier], search: SearchFiles, seed: int
) -> list[Candidate]:
    """Returns the networks to train, of the clients' tiers, or of the search's.

    Raises:
        ConfigError: The search is missing or of other weights, there are no tiers to draw for, a tier is unknown, or a
            text names no architecture.
    """
    if settings.models is not None:
        archs = named_architectures(supernet, settings.models, settings.labels)
        return [Candidate(tier, 0, arch) for tier, arch in zip(own_tiers(archs), archs, strict=True)]
    if not settings.architectures:
        candidates = _searched(settings, supernet, search)
    elif tiers:
        candidates = [candidate for tier in tiers for candidate in _drawn(settings, supernet, tier, seed)]
    else:
        raise ConfigError("finetune.architectures: are drawn for the clients' tiers; set model.tiers")
    if settings.tiers is None:
        return candidates
    names = [candidate.tier.name for candidate in candidates]
    for unknown in set(settings.tiers) - set(names):
        raise ConfigError(
            f"finetune.tiers: no tier is named {unknown!r}; choose from {', '.join(dict.fromkeys(names))}"
        )
    return [candidate for candidate in candidates if candidate.tier.name in settings.tiers]


def _drawn(settings: FinetuneSettings, supernet: Supernet, tier: Tier, seed: int) -> list[Candidate]:
    rng = numpy_generator(seed, f"finetune-architectures-{tier.name}")
    tier = replace(tier, labels=settings.labels or tier.labels)
    feasible = Feasible(labelled_space(supernet.space, tier.labels), ArchitectureCosts(supernet), tier, rng)
    archs = feasible.distinct(set(), settings.architectures, rng)
    return [Candidate(tier, number, arch) for number, arch in enumerate(archs)]


def _searched(settings: FinetuneSettings, supernet: Supernet, search: SearchFiles) -> list[Candidate]:
    searched, rows = search.settings(), search.rows("tiers")
    if not searched.get("complete") or not rows:
        raise ConfigError(
            f"finetune.search: {search.folder} holds no finished search; run 'lit-fednas search' first, or "
            f"set finetune.architectures to train random ones, or finetune.models"
        )
    if settings.initial == "supernet" and searched["weights"] != supernet.digest():
        raise ConfigError(
            f"finetune.search: {search.folder} was of other weights than the checkpoint's; run the search "
            f"again, or give the checkpoint that was searched ({searched['checkpoint'] or 'unknown'})"
        )
    tiers = {row["name"]: Tier(row["name"], row["at_most"], row["above"]) for row in searched["tiers"]}
    archs = [_labelled(supernet, supernet.space.parse(row["arch"]), settings.labels) for row in rows]
    return [Candidate(tiers[row["tier"]], 0, arch) for row, arch in zip(rows, archs, strict=True)]


def eligible_clients(
    candidate: Candidate, population: Population, tier_aware: bool, costs: ArchitectureCosts
) -> list[int]:
    """Returns the clients whose labels are those of a network, or finer; ``tier_aware``: that can run it, too.

    Raises:
        ConfigError: There are none.
    """
    tier, labels = candidate.tier.name, labels_of(candidate.arch)
    clients = population.eligible(tier) if tier_aware else range(population.num_clients)
    tiers = {client: population.tier(client) for client in clients}
    eligible = [
        client
        for client, its in tiers.items()
        if its is None or (its.labels in (OWN, labels) and (not tier_aware or costs.affordable(candidate.arch, its)))
    ]
    if not eligible and not tier_aware:
        raise ConfigError(f"finetune: no client has the labels of {candidate.arch}; change model.tiers")
    if not eligible:
        raise ConfigError(
            f"finetune: no client of tier {tier} or above can run {candidate.arch} and has its labels; change "
            f"model.tiers, or set finetune.tier_aware to false"
        )
    return eligible


def dealt(eligible: Mapping[str, Sequence[int]], data: FederatedDataModule) -> dict[str, list[int]]:
    """Returns a group of clients for each candidate, balanced by examples and classes (FedNAS, section 4.2).

    Raises:
        ConfigError: Not all candidates have the same eligible clients, or there are too few for so many groups.
    """
    (first, clients), *others = eligible.items()
    for name, other in others:
        if list(other) != list(clients):
            raise ConfigError(
                f"finetune.in_groups: {first} and {name} have different eligible clients ({len(clients)} and "
                f"{len(other)}), which cannot be divided among them; set finetune.tier_aware or "
                f"finetune.in_groups to false"
            )
    counts = np.stack([data.clients.label_counts(client, len(data.strata), ["train"]) for client in clients])
    holders = int(counts.any(axis=1).sum())
    if holders < len(eligible):
        raise ConfigError(
            f"finetune.in_groups: {holders} eligible clients hold examples, too few for {len(eligible)} "
            f"candidates; train fewer at once, or set finetune.in_groups to false"
        )
    groups = balanced_groups(counts, len(eligible))
    return {name: [clients[position] for position in group] for name, group in zip(eligible, groups, strict=True)}


def named_architectures(supernet: Supernet, texts: Sequence[str], labels: str | None = None) -> list[Any]:
    """Returns the architectures that a user names (FedNAS, section 4.4: "GM_T or other GMs if needed").

    Args:
        supernet: The supernet.
        texts: Each as the space writes it; ``smallest`` or ``largest``; or, in a row of architectures
            (:class:`~lit_fednas.supernets.Ladder`), ``all``, from the largest on, and ``0.5 of macs``, which is
            that of most MACs among those that have at most this share of the largest one's.
        labels: The label set that all classify; the one that they are named with if not given.

    Raises:
        ConfigError: A text names no architecture, or two texts name the same.

    Example:
        >>> from lit_fednas.supernets import SlicedCNN, WidthSupernet
        >>> supernet = WidthSupernet((3, 8, 8), 10, SlicedCNN((8, 16)), widths=[1, 0.5, 0.25])
        >>> [str(arch) for arch in named_architectures(supernet, ["smallest", "0.5 of macs"])]
        ['width: 0.25', 'width: 0.5']
    """
    texts_of_archs: dict[Any, str] = {}
    named = [(text, arch) for text in texts for arch in _named(supernet, text)]
    for text, arch in named:
        arch = _labelled(supernet, arch, labels)
        if arch in texts_of_archs:
            first = texts_of_archs[arch]
            twice = f"{text!r}" if text == first else f"{first!r} and {text!r}"
            raise ConfigError(f"finetune.models: names {arch} twice, as {twice}; name each once")
        texts_of_archs[arch] = text
    return list(texts_of_archs)


def own_tiers(archs: Sequence[Any]) -> list[Tier]:
    """Returns one tier without limits per architecture, named after it with characters that a folder may have.

    Example:
        >>> [tier.name for tier in own_tiers(["model: 12", "model: 3"])]
        ['model-12', 'model-3']
    """
    names = [re.sub(r"[^A-Za-z0-9_.]+", "-", str(arch)).strip("-.") for arch in archs]
    tiers = []
    for name, arch in zip(names, archs, strict=True):
        if not name or names.count(name) > 1 or len(name) > _LONGEST:  # a digest makes it unique
            digest = hashlib.blake2b(str(arch).encode(), digest_size=4).hexdigest()
            name = f"{name[: _LONGEST - len(digest) - 1]}-{digest}".lstrip("-")
        tiers.append(Tier(name, {}))
    return tiers


def _labelled(supernet: Supernet, arch: Any, labels: str | None) -> Any:
    return arch if labels is None else with_labels(supernet.space, arch, labels)


def _named(supernet: Supernet, text: str) -> list[Any]:
    space = supernet.space
    if text == "all":
        return list(reversed(_rungs(supernet, text)))
    share = _SHARE.fullmatch(text) if isinstance(text, str) else None
    if share is not None:
        return [_by_share(supernet, text, float(share[1]))]
    try:
        arch = space.named(text)
        space.encode(arch)  # not everything that clients may train is one architecture
    except ConfigError as error:
        raise ConfigError(f"finetune.models: {text!r} is not a model of {type(supernet).__name__} ({error})") from None
    return [arch]


def _rungs(supernet: Supernet, text: str) -> Sequence[Any]:
    rungs = getattr(supernet.space, "rungs", None)
    if rungs is None:
        raise ConfigError(
            f"finetune.models: {text!r} chooses from a row of models, which {type(supernet).__name__} does not "
            f"have; name architectures as its space writes them, such as {str(supernet.space.largest)!r}"
        )
    return tuple(rungs)


def _by_share(supernet: Supernet, text: str, share: float) -> Any:
    rungs = _rungs(supernet, text)
    largest = supernet.macs(supernet.space.largest)
    # a quotient of whole numbers is rounded as the number in the text is, so that equal ones are equal
    shares = {arch: supernet.macs(arch) / largest for arch in rungs}
    fitting = [arch for arch in rungs if shares[arch] <= share]
    if not fitting:
        raise ConfigError(
            f"finetune.models: no model has at most {text}; the smallest has {min(shares.values()):.4g} of the "
            f"largest one's"
        )
    return max(reversed(fitting), key=lambda arch: shares[arch])
