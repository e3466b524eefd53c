"""The models of a run that grows them, side by side in one supernet (FedTrans, section 4).

An architecture is a model of the suite. Every model has weights of its own; what it inherits, it is given when it
is added. The structure, that is which model was derived from which and how, is part of every checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lit_fednas.costs import count_macs
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets.base import Region, Supernet
from lit_fednas.supernets.growing.blueprint import Blueprint, CellNetwork, GrowableFamily
from lit_fednas.supernets.growing.cnn import GrowableCNN
from lit_fednas.supernets.growing.growth import Step, carried_over, from_plain, grown, to_plain
from lit_fednas.supernets.growing.similarity import similarity
from lit_fednas.supernets.separate import SideBySide
from lit_fednas.supernets.space import Ladder


@dataclass(frozen=True)
class Model:
    """A model of the suite, or several side by side.

    Attributes:
        numbers: In the order in which they were added, from 0.

    Example:
        >>> str(Model((2,))), str(Model((0, 1)))
        ('model: 2', 'model: 0,1')
    """

    numbers: tuple[int, ...]

    @property
    def number(self) -> int:
        """The model's, or that of the last of several."""
        return self.numbers[-1]

    def __str__(self) -> str:
        return f"model: {','.join(map(str, self.numbers))}"


@dataclass(frozen=True)
class SuiteModel:
    """What is known of a model besides its weights.

    Attributes:
        number: Its number, from 0.
        parent: The model that it was derived from; ``None`` for the initial one.
        round: In which it was added; ``None`` for the initial one.
        steps: How it was derived.
        blueprint: Its structure.
    """

    number: int
    parent: int | None
    round: int | None
    steps: tuple[Step, ...]
    blueprint: Blueprint


class SuiteSpace(Ladder[Model]):
    """The models, from the cheapest to the dearest; it grows with the suite.

    Args:
        macs: Multiply-accumulates of each model, by its number.
    """

    refusal = "is several models; name one"

    def __init__(self, macs: Sequence[int]) -> None:
        self.count = len(macs)
        super().__init__([Model((number,)) for number in sorted(range(self.count), key=lambda n: (macs[n], n))])

    @property
    def superset(self) -> Model:
        """All of them."""
        return Model(tuple(range(self.count)))

    def parse(self, text: Any) -> Model:
        """Reads ``model: 2``, a number, or a ``Model``."""
        if isinstance(text, Model):
            arch = text
        else:
            words = str(text).removeprefix("model:").split(",")
            try:
                arch = Model(tuple(int(word) for word in words))
            except ValueError:
                raise ConfigError(f"architecture: {text!r} cannot be read; write it as 'model: 0'") from None
        self.validate(arch)
        return arch

    def validate(self, arch: Model) -> None:
        """Raises ``ConfigError`` if a model is not there, stands twice, or they are out of order."""
        numbers = list(arch.numbers)
        if not numbers or numbers != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < self.count:
            raise ConfigError(f"architecture {arch}: the suite has the models 0 to {self.count - 1} as yet")


class ModelSuite(Supernet):
    """Models that were derived one from another, each with weights of its own.

    Args:
        input_shape: Shape of one example.
        num_classes: Classes.
        family: The initial model; ``GrowableCNN`` if not given.

    Attributes:
        models: What is known of each.
        networks: Their weights.

    Example:
        >>> from lit_fednas.supernets.growing.growth import plan
        >>> suite = ModelSuite((3, 8, 8), 10, GrowableCNN([8, 16]))
        >>> model = suite.add(0, plan(suite.models[0].blueprint, ["conv1"], 1), seed=0)
        >>> str(model), str(suite.models[1].blueprint), [str(arch) for arch in suite.space.each()]
        ('model: 1', 'conv1 16, conv2 16, head', ['model: 0', 'model: 1'])
    """

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        family: GrowableFamily | None = None,
    ) -> None:
        super().__init__(input_shape, num_classes)
        # no family as the default: of one in a signature, jsonargparse hands settings on to another that is given
        family = GrowableCNN() if family is None else family
        self.family = family
        first = SuiteModel(0, None, None, (), family.blueprint(self.input_shape, self.num_classes))
        self.models = [first]
        self.networks = nn.ModuleList([first.blueprint.build()])
        self._space = SuiteSpace([self.macs_of(first.blueprint)])
        self._similarities: dict[tuple[int, int], float] = {}

    # ---- the supernet's contract ----------------------------------------------------------------------

    @property
    def space(self) -> SuiteSpace:
        """The models so far."""
        return self._space

    @property
    def default_eval_archs(self) -> tuple[str, ...]:
        """All models so far."""
        return tuple(str(Model((model.number,))) for model in self.models)

    def build(self, arch: Model) -> nn.Module:
        """The model's network; several stand in a ``SideBySide``."""
        self._space.validate(arch)
        networks = [self.models[number].blueprint.build() for number in arch.numbers]
        return networks[0] if len(networks) == 1 else SideBySide(networks)

    def index(self, arch: Model) -> dict[str, Region]:
        """Each tensor is a whole tensor of its own network."""
        found = {}
        for turn, number in enumerate(arch.numbers):
            before = f"networks.{turn}." if len(arch.numbers) > 1 else ""
            network = self.networks[number]
            for name, _ in [*network.named_parameters(), *network.named_buffers()]:
                found[before + name] = Region(f"networks.{number}.{name}")
        return found

    # ---- growth ---------------------------------------------------------------------------------------

    def macs_of(self, blueprint: Blueprint) -> int:
        """Multiply-accumulates of one example of any structure."""
        with torch.device("meta"):
            network = blueprint.build()
        return count_macs(network, self.input_shape)

    def add(
        self,
        parent: int,
        steps: Sequence[Step],
        seed: int,
        round: int | None = None,
        noise: float = 0.0,
        warm_up: bool = True,
    ) -> Model:
        """Derives a model from another and adds it; the same for a seed and the parent's weights.

        Args:
            parent: The model that it is derived from.
            steps: How.
            seed: The run's seed.
            round: In which it happens.
            noise: See :func:`~lit_fednas.supernets.growing.growth.carried_over`.
            warm_up: Whether it inherits its parent's weights; else they are drawn anew (FedTrans, Table 3,
                without warm-up).

        Returns:
            The new model.

        Raises:
            ConfigError: There is no such parent, or a step does not fit it.
        """
        self._space.validate(Model((parent,)))
        number = len(self.models)
        blueprint, network = self.models[parent].blueprint, self.networks[parent]
        assert isinstance(network, CellNetwork)
        draws = generator(seed, "transformation", number)
        device = next(network.parameters()).device
        with isolated(seed, "transformation-weights", number):
            for step in steps:
                network = carried_over(network, blueprint, step, draws, noise)
                blueprint = grown(blueprint, step)
            if not steps or not warm_up:
                fresh = blueprint.build()
                if warm_up:
                    fresh.load_state_dict(network.state_dict())
                network = fresh.to(device).train(self.training)
        self._append(SuiteModel(number, parent, round, tuple(steps), blueprint), network)
        return Model((number,))

    def _append(self, model: SuiteModel, network: nn.Module) -> None:
        self.models.append(model)
        self.networks.append(network)
        self._space = SuiteSpace([self.macs_of(model.blueprint) for model in self.models])

    def planned(self, parent: int, steps: Sequence[Step]) -> ModelSuite:
        """This suite with one model more, on the meta device: what that model would cost.

        Args:
            parent: As in :meth:`add`.
            steps: As in :meth:`add`.
        """
        structure = self.structure()
        structure["models"].append({"parent": parent, "round": None, "steps": to_plain(steps)})
        with torch.device("meta"):
            suite = ModelSuite(self.input_shape, self.num_classes, self.family)
            suite.restore(structure)
        return suite

    def is_ancestor(self, one: int, other: int) -> bool:
        """Whether a model was derived from another, by any number of transformations; also from itself."""
        found: int | None = other
        while found is not None and found != one:
            found = self.models[found].parent
        return found == one

    def similarity(self, one: int, other: int) -> float:
        """How alike two models are, from 0 to 1 (:func:`~lit_fednas.supernets.growing.similarity.similarity`)."""
        pair = (min(one, other), max(one, other))
        if pair not in self._similarities:  # every round asks for it, and networks have to be built
            related = self.is_ancestor(*pair) or self.is_ancestor(*reversed(pair))
            first, second = (self.models[number].blueprint for number in pair)
            self._similarities[pair] = similarity(first, second, related)
        return self._similarities[pair]

    # ---- checkpoints ----------------------------------------------------------------------------------

    def structure(self) -> dict[str, Any]:
        """How each model but the first was derived; plain values."""
        return {
            "initial": str(self.models[0].blueprint),
            "models": [
                {"parent": model.parent, "round": model.round, "steps": to_plain(model.steps)}
                for model in self.models[1:]
            ],
        }

    def restore(self, structure: Mapping[str, Any]) -> None:
        """Rebuilds all models but the first; their weights are not set.

        Raises:
            CheckpointError: The structure begins with another initial model.
        """
        first = self.models[0]
        if structure.get("initial") != str(first.blueprint):
            raise CheckpointError(
                f"checkpoint: its suite of models began with {structure.get('initial')}, model.supernet.family "
                f"with {first.blueprint}; use the settings that the run was started with"
            )
        device = next(self.networks[0].parameters()).device
        self.models, self.networks = [first], nn.ModuleList([self.networks[0]])
        self._skeletons.clear()
        self._similarities.clear()
        self._space = SuiteSpace([self.macs_of(first.blueprint)])
        for model in structure["models"]:
            steps = from_plain(model["steps"])
            blueprint = self.models[model["parent"]].blueprint
            for step in steps:
                blueprint = grown(blueprint, step)
            made = SuiteModel(len(self.models), model["parent"], model["round"], steps, blueprint)
            self._append(made, blueprint.build().to(device).train(self.training))
