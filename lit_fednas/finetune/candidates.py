"""The settings of a fine-tuning, the networks that it trains, and the clients that may train each."""

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
_MAX_LENGTH = 60  # characters of a tier's name, as folders' names are limited and architectures can be long


@checked("finetune")
@dataclass(frozen=True)
class FinetuneSettings:
    """Federated averaging of each tier's network (FedorAS, section 3.3, Tables 10 and 11), or of named models.

    The server optimizer and the running mean of its weights (``weight_average``) are those of the run.

    Args:
        rounds: Rounds per tier.
        macs: Multiply-accumulates of all clients' forward passes per network, a budget that replaces ``rounds``. The
            number of rounds is at least one and comes nearest to the budget, without losses by ``faults``. ``equal``
            divides the computation of the run's training by the number of tiers or models. ``split`` gives each tier
            the run's computation for the architectures that fit it and no cheaper tier. Tiers with the same network
            and the same clients train it once with the sum of their budgets; the costs are the first tier's.
        client: Settings of client training; the run's if not given. Clients may fail as in the run (``faults``), but
            are never stragglers.
        cohort: Draws the clients of a round from the eligible ones; the run's sampler if not given.
        objective: The clients' objective; plain cross-entropy if not given.
        initial: ``supernet`` starts from the weights of the supernet, ``random`` from scratch (the paper's rand-init).
        tier_aware: Whether only clients of a tier and above train its network; otherwise all clients do. All also
            train named ``models``, and networks where clients have no tiers.
        architectures: Number of random architectures per tier to train in place of the search's; the best on the
            validation data becomes the tier's (random search, App. F.1). 0 trains the search's.
        tiers: Names of the tiers to train; all if not given.
        models: Architectures to train without a search (FedNAS, section 4.4, FL-tune): each as the space writes it,
            for instance ``"model: 12"``; ``smallest`` or ``largest``; in a row of models also ``all``, or
            ``0.5 of macs`` for the largest model with at most half of the greatest MACs. Each is a tier of its own
            with a name like ``model-12``. Clients test them (``models.csv``).
        in_groups: Whether the eligible clients are divided into one group per candidate (FedNAS, section 4.4); else
            all of them train each candidate. Cohorts keep their size if the group has enough clients.
        metric: The metric that decides which network is best on the validation data: one of the task or of
            ``model.metrics``; the task's first (for classes ``accuracy``) if not given.
        search: Name of the search with the tiers to train.
        check_val_every_n_rounds: Rounds between evaluations on the server's validation data.
        seed: The seed of the draws; the run's if not given.
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
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"finetune.{name}: {value!r} is one name; give a list, as [{value!r}]")
        for name in ("tiers", "architectures"):
            if self.models is not None and (value := getattr(self, name)):
                raise ConfigError(f"finetune.{name}: {value} and finetune.models exclude each other; give only one")
        if self.macs == "split" and (self.models is not None or self.architectures):
            other_field = "architectures" if self.models is None else "models"
            raise ConfigError(f"finetune.macs: 'split' is for the tiers of a search; leave finetune.{other_field} out")
        check_folder_name("finetune.name", self.name)
        if self.name == self.search:
            raise ConfigError(f"finetune.name: {self.name!r} is the search's folder; give another")


@dataclass(frozen=True)
class Candidate:
    """A network to train: its tier, its number in the tier, and its architecture in the supernet."""

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
    """Returns the networks to train."""
    if settings.models is not None:
        archs = named_architectures(supernet, settings.models)
        return [Candidate(tier, 0, arch) for tier, arch in zip(unlimited_tiers(archs), archs, strict=True)]
    if not settings.architectures:
        candidates = _search_candidates(settings, supernet, search)
    elif tiers:
        candidates = [candidate for tier in tiers for candidate in _random_candidates(settings, supernet, tier, seed)]
    else:
        raise ConfigError("finetune.architectures: needs the clients' tiers; set model.tiers")
    if settings.tiers is None:
        return candidates
    names = dict.fromkeys(candidate.tier.name for candidate in candidates)
    for unknown in set(settings.tiers) - set(names):
        raise ConfigError(f"finetune.tiers: no tier is named {unknown!r}; choose from {', '.join(names)}")
    return [candidate for candidate in candidates if candidate.tier.name in settings.tiers]


def _random_candidates(settings: FinetuneSettings, supernet: Supernet, tier: Tier, seed: int) -> list[Candidate]:
    rng = numpy_generator(seed, f"finetune-architectures-{tier.name}")
    feasible = Feasible(supernet.space, ArchitectureCosts(supernet), tier, rng)
    archs = feasible.distinct(set(), settings.architectures, rng)
    return [Candidate(tier, number, arch) for number, arch in enumerate(archs)]


def _search_candidates(settings: FinetuneSettings, supernet: Supernet, search: SearchFiles) -> list[Candidate]:
    search_settings, rows = search.settings(), search.rows("tiers")
    if not search_settings.get("complete") or not rows:
        raise ConfigError(
            f"finetune.search: {search.folder} holds no finished search; run 'lit-fednas search' first, or "
            f"set finetune.architectures to train random ones, or finetune.models"
        )
    if settings.initial == "supernet" and search_settings["weights"] != supernet.digest():
        raise ConfigError(
            f"finetune.search: {search.folder} belongs to other weights than the checkpoint's; search these "
            f"(lit-fednas search with --search.name {search.free_name}), then add --finetune.search {search.free_name}"
        )
    tiers = {row["name"]: Tier(row["name"], row["at_most"], row.get("above") or {}) for row in search_settings["tiers"]}
    with reading(search.folder / "tiers.csv"):
        archs = [supernet.space.parse(row["arch"]) for row in rows]
        return [Candidate(tiers[row["tier"]], 0, arch) for row, arch in zip(rows, archs, strict=True)]


def eligible_clients(
    candidate: Candidate, population: Population, tier_aware: bool, costs: ArchitectureCosts
) -> list[int]:
    """Returns the clients that can run a network; all clients if not ``tier_aware``."""
    if not tier_aware:
        return list(range(population.num_clients))
    name, arch = candidate.tier.name, candidate.arch
    eligible = [client for client in population.eligible(name) if costs.affordable(arch, population.tier(client))]
    if not eligible:
        raise ConfigError(
            f"finetune: no client of tier {name} or above can run {arch}; change model.tiers or finetune.tier_aware"
        )
    return eligible


def group_clients(eligible: Mapping[str, Sequence[int]], data: FederatedDataModule) -> dict[str, list[int]]:
    """Divides the clients into one group per candidate, balanced by examples and classes (FedNAS, section 4.2)."""
    (first_name, clients), *others = eligible.items()
    for name, other_clients in others:
        if list(other_clients) != list(clients):
            raise ConfigError(
                f"finetune.in_groups: {first_name} and {name} have different eligible clients ({len(clients)} and "
                f"{len(other_clients)}), which cannot be divided among them; set finetune.tier_aware or "
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
    """Parses ``finetune.models`` (FedNAS, section 4.4: "GM_T or other GMs if needed")."""
    texts_of_archs: dict[Any, str] = {}
    for text in texts:
        for arch in _parse_model(supernet, text):
            if arch in texts_of_archs:
                first_text = texts_of_archs[arch]
                spellings = f"{text!r}" if text == first_text else f"{first_text!r} and {text!r}"
                raise ConfigError(f"finetune.models: names {arch} twice, as {spellings}; name each once")
            texts_of_archs[arch] = text
    return list(texts_of_archs)


def unlimited_tiers(archs: Sequence[Any]) -> list[Tier]:
    """Returns one tier without limits per architecture; its name has only characters that are valid in a folder."""
    names = [re.sub(r"[^A-Za-z0-9_.]+", "-", str(arch)).strip("-.") for arch in archs]
    tiers = []
    for name, arch in zip(names, archs, strict=True):
        if not name or names.count(name) > 1 or len(name) > _MAX_LENGTH:  # a digest makes it unique
            digest = hashlib.blake2b(str(arch).encode(), digest_size=4).hexdigest()
            name = f"{name[: _MAX_LENGTH - len(digest) - 1]}-{digest}".lstrip("-")
        tiers.append(Tier(name, {}))
    return tiers


def _parse_model(supernet: Supernet, text: str) -> list[Any]:
    space = supernet.space
    share = _SHARE.fullmatch(str(text))
    if text != "all" and share is None:
        try:
            arch = space.named(text)
            space.encode(arch)  # raises for a value that is no single architecture
        except ConfigError as error:
            kind = type(supernet).__name__
            raise ConfigError(f"finetune.models: {text!r} is not a model of {kind} ({error})") from None
        return [arch]
    rungs: Sequence[Any] | None = getattr(space, "rungs", None)
    if rungs is None:
        raise ConfigError(
            f"finetune.models: {text!r} needs a row of models, and {type(supernet).__name__} has no row; name "
            f"architectures as its space writes them, such as {str(space.largest)!r}"
        )
    if share is None:
        return list(reversed(rungs))
    # the quotient of integers has the same rounding as the number in the text, so that equal shares compare equal
    shares = {arch: supernet.macs(arch) / supernet.macs(space.largest) for arch in rungs}
    fitting = [arch for arch in rungs if shares[arch] <= float(share[1])]
    if not fitting:
        raise ConfigError(f"finetune.models: no model has at most {text}; the smallest has {min(shares.values()):.4g}")
    return [max(reversed(fitting), key=lambda arch: shares[arch])]
