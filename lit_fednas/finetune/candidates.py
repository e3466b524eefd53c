"""The settings of a fine-tuning, the networks that it trains, and the clients that may train each.

They are those of a search, random architectures of the tiers, or architectures that a user names, each of a tier of its
own without limits.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from lit_fednas.callbacks.pruning import balanced_groups
from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, CohortSampler
from lit_fednas.objectives import Objective
from lit_fednas.ranges import Filled, NonNegativeInt, PositiveFloat, PositiveInt, checked
from lit_fednas.records import SearchFiles
from lit_fednas.records.files import check_folder_name, reading
from lit_fednas.rng import numpy_generator
from lit_fednas.search import Feasible
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import ArchitectureCosts, Population, Tier

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s+of\s+macs\s*")
_LONGEST = 60  # of a name: folders' names have a limit, and architectures of many layers are long


@checked("finetune")
@dataclass(frozen=True)
class FinetuneSettings:
    """Federated averaging of each tier's network (FedorAS, section 3.3, Tables 10 and 11), or of named models.

    The server optimizer and the running mean of its weights (``weight_average``) are those of the run.

    Args:
        rounds: Rounds per tier.
        macs: A budget in place of ``rounds``: multiply-accumulates of all clients' forward passes per network, without
            losses by ``faults``, of which as many rounds are made as come nearest to it, at least
            one. ``equal`` divides the computation of the run's own training by the number of tiers or models. ``split``
            gives each tier the run's computation for the architectures that fit it and no cheaper tier. Tiers
            that share a network, and may ask the same clients, train it once, with their budgets together; costs are
            those of the first tier, and 0 of others.
        client: How clients train; as in the run's training if not given. They may fail as there (``faults``), but none
            is a straggler.
        cohort: How the clients of a round are drawn from the eligible ones; as in the run's training if not given.
        objective: The clients' objective; plain cross-entropy if not given.
        initial: ``supernet`` starts from the weights of the supernet, ``random`` from scratch (the paper's rand-init).
        tier_aware: Whether only clients of a tier and above train its network; else all clients do, as they do
            with named ``models``, and where clients have no tiers.
        architectures: How many are drawn from each tier and trained in place of the search's; the best on the
            validation data is the tier's (random search, App. F.1); 0 for the search's.
        tiers: Names of the tiers whose networks are trained; all if not given.
        models: Architectures to train in place of the search's (FedNAS, section 4.4, FL-tune): each as the space
            writes it, for instance ``"model: 12"``; ``smallest`` or ``largest``; or in a row of models ``all``, and
            ``0.5 of macs``, the largest of those whose MACs are at most half of the largest one's. No search is
            needed. Each is a tier of its own, named after it (``model-12``). Clients test them (``models.csv``).
        in_groups: Whether the eligible clients are divided into one group per candidate (FedNAS, section 4.4); else
            all eligible clients train each. Cohorts keep their size, if the group has as many clients.
        metric: The metric of the best network on the validation data: one of the task or of ``model.metrics``; the
            task's first (for classes ``accuracy``) if not given.
        search: The search whose tiers are trained.
        check_val_every_n_rounds: How often the server's validation set is evaluated.
        seed: The seed of the draws; that of the run if not given.
        name: The name of the fine-tuning's folder in the run's folder.
    """

    rounds: PositiveInt = 100
    macs: PositiveFloat | Literal["equal", "split"] | None = None
    client: ClientSettings | None = None
    cohort: CohortSampler | None = None
    objective: Objective | None = None
    initial: Literal["supernet", "random"] = "supernet"
    tier_aware: bool = True
    architectures: NonNegativeInt = 0
    tiers: Annotated[Sequence[str], Filled] | None = None
    models: Annotated[Sequence[str], Filled] | None = None
    in_groups: bool = False
    metric: str | None = None
    search: str = "search"
    check_val_every_n_rounds: PositiveInt = 10
    seed: int | None = None
    name: str = "finetune"

    def __post_init__(self) -> None:
        for name in ("models", "tiers"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigError(f"finetune.{name}: {given!r} is one name; give a list, as [{given!r}]")
        for name in ("tiers", "architectures"):
            if self.models is not None and (given := getattr(self, name)):
                raise ConfigError(f"finetune.{name}: {given} and finetune.models are given; give only one")
        if self.macs == "split" and (self.models is not None or self.architectures):
            other = "architectures" if self.models is None else "models"
            raise ConfigError(f"finetune.macs: 'split' is for the tiers of a search; leave finetune.{other} out")
        check_folder_name("finetune.name", self.name)
        if self.name == self.search:
            raise ConfigError(f"finetune.name: {self.name!r} is the search's folder; give another")


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
    """Returns the networks to train, of the clients' tiers, or of the search's."""
    if settings.models is not None:
        archs = named_architectures(supernet, settings.models)
        return [Candidate(tier, 0, arch) for tier, arch in zip(own_tiers(archs), archs, strict=True)]
    if not settings.architectures:
        candidates = _searched(settings, supernet, search)
    elif tiers:
        candidates = [candidate for tier in tiers for candidate in _drawn(settings, supernet, tier, seed)]
    else:
        raise ConfigError("finetune.architectures: are drawn for the clients' tiers; set model.tiers")
    if settings.tiers is None:
        return candidates
    names = dict.fromkeys(candidate.tier.name for candidate in candidates)
    for unknown in set(settings.tiers) - set(names):
        raise ConfigError(f"finetune.tiers: no tier is named {unknown!r}; choose from {', '.join(names)}")
    return [candidate for candidate in candidates if candidate.tier.name in settings.tiers]


def _drawn(settings: FinetuneSettings, supernet: Supernet, tier: Tier, seed: int) -> list[Candidate]:
    rng = numpy_generator(seed, f"finetune-architectures-{tier.name}")
    feasible = Feasible(supernet.space, ArchitectureCosts(supernet), tier, rng)
    drawn = feasible.distinct(set(), settings.architectures, rng)
    return [Candidate(tier, number, arch) for number, arch in enumerate(drawn)]


def _searched(settings: FinetuneSettings, supernet: Supernet, search: SearchFiles) -> list[Candidate]:
    searched, rows = search.settings(), search.rows("tiers")
    if not searched.get("complete") or not rows:
        raise ConfigError(
            f"finetune.search: {search.folder} holds no finished search; run 'lit-fednas search' first, or "
            f"set finetune.architectures to train random ones, or finetune.models"
        )
    if settings.initial == "supernet" and searched["weights"] != supernet.digest():
        raise ConfigError(
            f"finetune.search: {search.folder} was of other weights than the checkpoint's; search these (lit-fednas "
            f"search with --search.name {search.free_name}), then add --finetune.search {search.free_name}"
        )
    tiers = {row["name"]: Tier(row["name"], row["at_most"], row.get("above") or {}) for row in searched["tiers"]}
    with reading(search.folder / "tiers.csv"):
        archs = [supernet.space.parse(row["arch"]) for row in rows]
        return [Candidate(tiers[row["tier"]], 0, arch) for row, arch in zip(rows, archs, strict=True)]


def eligible_clients(
    candidate: Candidate, population: Population, tier_aware: bool, costs: ArchitectureCosts
) -> list[int]:
    """Returns the clients that can run a network; all of them if not ``tier_aware``."""
    if not tier_aware:
        return list(range(population.num_clients))
    name, arch = candidate.tier.name, candidate.arch
    eligible = [client for client in population.eligible(name) if costs.affordable(arch, population.tier(client))]
    if not eligible:
        raise ConfigError(
            f"finetune: no client of tier {name} or above can run {arch}; change model.tiers or finetune.tier_aware"
        )
    return eligible


def grouped(eligible: Mapping[str, Sequence[int]], data: FederatedDataModule) -> dict[str, list[int]]:
    """Returns a group of clients for each candidate, balanced by examples and classes (FedNAS, section 4.2)."""
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


def named_architectures(supernet: Supernet, texts: Sequence[str]) -> list[Any]:
    """Returns the architectures of ``finetune.models`` (FedNAS, section 4.4: "GM_T or other GMs if needed")."""
    texts_of_archs: dict[Any, str] = {}
    for text in texts:
        for arch in _named(supernet, text):
            if arch in texts_of_archs:
                first = texts_of_archs[arch]
                twice = f"{text!r}" if text == first else f"{first!r} and {text!r}"
                raise ConfigError(f"finetune.models: names {arch} twice, as {twice}; name each once")
            texts_of_archs[arch] = text
    return list(texts_of_archs)


def own_tiers(archs: Sequence[Any]) -> list[Tier]:
    """Returns one tier without limits per architecture, named after it with characters that a folder may have."""
    names = [re.sub(r"[^A-Za-z0-9_.]+", "-", str(arch)).strip("-.") for arch in archs]
    tiers = []
    for name, arch in zip(names, archs, strict=True):
        if not name or names.count(name) > 1 or len(name) > _LONGEST:  # a digest makes it unique
            digest = hashlib.blake2b(str(arch).encode(), digest_size=4).hexdigest()
            name = f"{name[: _LONGEST - len(digest) - 1]}-{digest}".lstrip("-")
        tiers.append(Tier(name, {}))
    return tiers


def _named(supernet: Supernet, text: str) -> list[Any]:
    space = supernet.space
    share = _SHARE.fullmatch(str(text))
    if text != "all" and share is None:
        try:
            arch = space.named(text)
            space.encode(arch)  # not everything that clients may train is one architecture
        except ConfigError as error:
            kind = type(supernet).__name__
            raise ConfigError(f"finetune.models: {text!r} is not a model of {kind} ({error})") from None
        return [arch]
    rungs: Sequence[Any] | None = getattr(space, "rungs", None)
    if rungs is None:
        raise ConfigError(
            f"finetune.models: {text!r} chooses from a row of models, which {type(supernet).__name__} does not "
            f"have; name architectures as its space writes them, such as {str(space.largest)!r}"
        )
    if share is None:
        return list(reversed(rungs))
    # a quotient of integers is rounded as the number in the text is, so that equal ones are equal
    shares = {arch: supernet.macs(arch) / supernet.macs(space.largest) for arch in rungs}
    fitting = [arch for arch in rungs if shares[arch] <= float(share[1])]
    if not fitting:
        raise ConfigError(f"finetune.models: no model has at most {text}; the smallest has {min(shares.values()):.4g}")
    return [max(reversed(fitting), key=lambda arch: shares[arch])]
