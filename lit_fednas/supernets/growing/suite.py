"""The models of a growing run, side by side in one supernet (FedTrans, section 4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Literal

from torch import nn
from typing_extensions import override

from lit_fednas.costs.counting import on_meta
from lit_fednas.errors import ConfigError
from lit_fednas.parts import instantiated
from lit_fednas.records.run import step_words, suite_of
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets.growing.families import GrowableCNN
from lit_fednas.supernets.growing.growth import (
    Blueprint,
    CellNetwork,
    GrowableFamily,
    NewUnits,
    Step,
    carry_over,
    from_plain,
    grow,
    to_plain,
)
from lit_fednas.supernets.layers import Norm
from lit_fednas.supernets.plain import PlainNetwork
from lit_fednas.supernets.side_by_side import Model, ModelCollection


@dataclass(frozen=True)
class SuiteModel:
    """A model without its weights; the initial one has no ``parent`` and no ``round`` of addition."""

    number: int
    parent: int | None
    round: int | None
    steps: tuple[Step, ...]
    blueprint: Blueprint


class ModelSuite(ModelCollection):
    """Models that are derived from each other, each with its own weights; checkpoints record the steps.

    Args:
        input_shape: Shape of one example.
        num_classes: Number of classes.
        family: The family of the initial model; by default a ``GrowableCNN``.

    Example:
        >>> from lit_fednas.supernets.growing.growth import plan
        >>> suite = ModelSuite((3, 8, 8), 10, GrowableCNN([8, 16]))
        >>> model = suite.add(0, plan(suite.models[0].blueprint, ["conv1"], 1), seed=0)
        >>> str(model), str(suite.models[1].blueprint), [str(arch) for arch in suite.space.each()]
        ('model: 1', 'conv1 16, conv2 16, head', ['model: 0', 'model: 1'])
    """

    KIND = "suite"

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        family: GrowableFamily | None = None,
    ) -> None:
        super().__init__(input_shape, num_classes)
        # no family in the signature: jsonargparse would pass its settings to another family
        family = GrowableCNN() if family is None else family
        self.family = family
        first = SuiteModel(0, None, None, (), family.blueprint(self.input_shape, self.num_classes))
        self.models: list[SuiteModel] = []
        self.networks = nn.ModuleList()
        self._append(first, first.blueprint.build())

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        return tuple(map(str, self.space.members))

    @override
    def build_member(self, member: Model) -> nn.Module:
        self.space.validate(member)
        return self.models[member.number].blueprint.build()

    @override
    def details(self, model: SuiteModel) -> dict[str, Any]:
        words = step_words(to_plain(model.steps))
        return {"parent": model.parent, "round": model.round, "cells": str(model.blueprint), "steps": words}

    def add(
        self,
        parent: int,
        steps: Sequence[Step],
        seed: int,
        round: int | None = None,
        noise: float = 0.0,
        warm_up: bool = True,
        new_units: NewUnits = "drawn",
    ) -> Model:
        """Derives a model from another and adds it; seed and parent determine its weights.

        Args:
            parent: The model from which it is derived.
            steps: The transformation.
            seed: The run's seed.
            round: The current round.
            noise: As in ``TransformOnConvergence``.
            warm_up: Whether it inherits its parent's weights (FedTrans, Table 3).
            new_units: As in ``TransformOnConvergence``.

        Returns:
            The new model; raises ``ConfigError`` if the parent is unknown, or has no cell of a step.
        """
        self.space.validate(Model(parent))
        number = len(self.models)
        blueprint, network = self.models[parent].blueprint, self.networks[parent]
        assert isinstance(network, CellNetwork)
        draws = generator(seed, "transformation", number)
        device = next(network.parameters()).device
        with isolated(seed, "transformation-weights", number):
            for step in steps:
                network = carry_over(network, blueprint, step, draws, noise, new_units)
                blueprint = grow(blueprint, step)
            if not steps or not warm_up:
                fresh = blueprint.build()
                if warm_up:
                    fresh.load_state_dict(network.state_dict())
                network = fresh.to(device).train(self.training)
        self._append(SuiteModel(number, parent, round, tuple(steps), blueprint), network)
        return Model(number)

    def _append(self, model: SuiteModel, network: nn.Module) -> None:
        self.models.append(model)
        self.networks.append(network)
        self.update_space()

    def planned_network(self, parent: int, steps: Sequence[Step]) -> PlainNetwork:
        """Returns the network that :meth:`add` would add, on the meta device, as a supernet of one architecture."""
        blueprint = reduce(grow, steps, self.models[parent].blueprint)
        return PlainNetwork(on_meta(blueprint.build), self.input_shape, self.num_classes)

    def ancestors(self, number: int) -> set[int]:
        """Returns the numbers of a model and all its ancestors."""
        parent = self.models[number].parent
        return {number} if parent is None else {number, *self.ancestors(parent)}

    def similarity(self, model: int, other: int) -> float:
        """Returns the similarity of two models by their numbers, from 0 to 1 (:func:`similarity`)."""
        older, newer = sorted((model, other))
        are_related = older in self.ancestors(newer)
        return similarity(self.models[older].blueprint, self.models[newer].blueprint, are_related)

    @override
    def structure(self) -> dict[str, Any]:
        first, *models = self.models
        rows = [{"parent": model.parent, "round": model.round, "steps": to_plain(model.steps)} for model in models]
        return {"initial": str(first.blueprint), "models": rows}

    @override
    def restore(self, structure: Mapping[str, Any]) -> None:
        first, network = self.models[0], self.networks[0]
        self._validate_initial(structure.get("initial"), str(first.blueprint))
        self.models, self.networks = [], nn.ModuleList()
        self._append(first, network)
        for row in structure["models"]:
            steps = from_plain(row["steps"])
            blueprint = reduce(grow, steps, self.models[row["parent"]].blueprint)
            model = SuiteModel(len(self.models), row["parent"], row["round"], steps, blueprint)
            self._append(model, self._unset(blueprint.build))


def similarity(model: Blueprint, other: Blueprint, related: bool = True) -> float:
    """Returns the similarity of two models, cell by cell (by names), from 0 to 1 (FedTrans, section 4.2)."""
    parameters, other_parameters = model.parameters, other.parameters
    total = 0.0
    cells = sorted({*parameters, *other_parameters})  # one order, so that rounding is symmetric
    for cell in cells:
        if cell in parameters and cell in other_parameters:  # cases a (unchanged) and b (cell or input widened)
            smaller, larger = sorted((parameters[cell], other_parameters[cell]))
            total += smaller / larger if larger else 1.0
        elif not related:  # case d: only one of two unrelated models has the cell; case c, an inserted cell, adds 0
            total -= 1
    return max(0.0, total / len(cells))


@dataclass(frozen=True)
class GrownModel(GrowableFamily):
    """A model of a growing run, to be cut in width or trained by federated averaging (FedTrans, App. A.1).

    Args:
        run: The run's folder, which holds ``suite.json``.
        number: Number of the model from 0, in the order of addition; or ``last`` or ``middle``, which is number 2 of
            four or five models.
    """

    run: str
    number: int | Literal["middle", "last"] = "last"

    @property
    @override
    def norm(self) -> Norm | None:  # type: ignore[override]
        return self._record[0].norm

    @cached_property
    def _record(self) -> tuple[GrowableFamily, list[dict[str, Any]]]:
        """The family of the initial model and the rows of all models."""
        suite = suite_of(self.run, "supernet.family.run")
        family = suite.get("family")
        if family is None:  # a family that no configuration can describe
            raise ConfigError(f"supernet.family.run: {self.run} does not record its initial model; name another run")
        return instantiated(GrowableFamily, family), suite["models"]

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        family, rows = self._record
        positions = {"middle": len(rows) // 2, "last": len(rows) - 1}
        number = positions.get(self.number, -1) if isinstance(self.number, str) else self.number
        if not 0 <= number < len(rows):
            raise ConfigError(f"supernet.family.number: {self.number!r} must be 0 to {len(rows) - 1}, middle or last")
        blueprints = [family.blueprint(input_shape, num_classes)]
        try:
            for row in rows[1 : number + 1]:
                blueprints.append(reduce(grow, from_plain(row["steps"]), blueprints[row["parent"]]))
        except (LookupError, TypeError) as error:
            raise ConfigError(
                f"supernet.family.run: {self.run}: suite.json is damaged ({error!r}); name another run"
            ) from None
        return blueprints[number]
