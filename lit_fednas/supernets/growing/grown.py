"""A model that a run has grown, to be trained in other ways (FedTrans, App. A.1).

In the paper, methods that cut a model in width get the largest model, and federated averaging trains one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Literal, cast

from typing_extensions import override

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.parts import instantiated
from lit_fednas.records.run import suite_of
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.growth import from_plain, grown
from lit_fednas.supernets.norms import Norm


@dataclass(frozen=True)
class GrownModel(GrowableFamily):
    """A model that a run has grown.

    Args:
        run: The run's folder, which holds ``suite.json``.
        number: The model's number, ``last`` or ``middle``. Models are numbered as they were added, from 0; the
            middle one of five is number 2, and of four, too.
        family: The initial model of the run; as ``suite.json`` has it if not given.

    Raises:
        ConfigError: The run or model does not exist, or it began with another initial model; raised when the model
            is built.
    """

    run: str
    number: int | Literal["middle", "last"] = "last"
    family: GrowableFamily | None = None

    @property
    def norm(self) -> Norm | None:  # type: ignore[override]
        """The norm of the initial model."""
        return self._initial.norm

    @cached_property
    def _initial(self) -> GrowableFamily:
        if self.family is not None:
            return self.family
        family = self._suite.get("family")
        if family is None:
            raise ConfigError(
                f"supernet.family.family: {self.run} does not say with which model it began; give the family of its "
                f"model.supernet"
            )
        return cast(GrowableFamily, instantiated(GrowableFamily, family))

    @cached_property
    def _suite(self) -> dict[str, Any]:
        return suite_of(self.run, "supernet.family.run")

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        rows = self._suite["models"]
        named = {"middle": len(rows) // 2, "last": len(rows) - 1}
        number = named.get(self.number, -1) if isinstance(self.number, str) else self.number
        if not 0 <= number < len(rows):
            raise ConfigError(
                f"supernet.family.number: {self.number!r}: {self.run} has the models 0 to {len(rows) - 1}; give "
                f"one of them, middle, or last"
            )
        blueprint = self._initial.blueprint(input_shape, num_classes)
        try:
            if str(blueprint) != rows[0]["cells"]:
                raise ConfigError(
                    f"supernet.family.family: begins with {blueprint}, and {self.run} with {rows[0]['cells']}; give "
                    f"the family that the run had"
                )
            steps: list[Mapping[str, Any]] = []
            row = rows[number]
            while row["parent"] is not None:
                steps = [*row["steps"], *steps]
                row = rows[row["parent"]]
            return reduce(grown, from_plain(steps), blueprint)
        except CheckpointError as error:
            raise ConfigError(f"supernet.family.run: {self.run}: {error}") from None
        except (LookupError, TypeError) as error:
            raise ConfigError(
                f"supernet.family.run: {self.run}: suite.json is damaged ({error!r}); name a run whose file is whole"
            ) from None
