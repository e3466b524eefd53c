"""What the exchangeable parts of a method have in common: they state what they need of each other."""

from __future__ import annotations

from typing import Any, ClassVar

from lit_fednas.errors import ConfigError
from lit_fednas.messages import Report


class Part:
    """An exchangeable part of a method, or a callback of its own.

    What does not fit together is refused by ``setup``, before any client trains.

    Attributes:
        field: Where the part stands in a configuration.
        supernet_kind: The kind of supernet that the part works with; any if ``None``.
        needs: The reports that the part needs of every client.
        reads: The types of a round's values that the part reads, if a callback gives them.
    """

    field: ClassVar[str]
    supernet_kind: ClassVar[type | None] = None
    needs: ClassVar[tuple[type[Report], ...]] = ()
    reads: ClassVar[tuple[type, ...]] = ()

    def check_supernet(self, supernet: Any) -> None:
        """Validates that the supernet is of the kind that the part works with.

        Raises:
            ConfigError: It is of another kind.
        """
        kind = type(self).supernet_kind
        if kind is not None and not isinstance(supernet, kind):
            raise ConfigError(
                f"{self.field}: {type(self).__name__} does not work with model.supernet "
                f"{type(supernet).__name__}; use {kind.__name__}, or change {self.field}"
            )

    def check_reports(self, reports: tuple[type[Report], ...], objective: str) -> None:
        """Validates that the objective reports what the part needs.

        Args:
            reports: What the objective reports.
            objective: The objective's name.

        Raises:
            ConfigError: A report is missing.
        """
        for kind in self.needs:
            if not any(issubclass(given, kind) for given in reports):
                raise ConfigError(
                    f"{self.field}: {type(self).__name__} needs every client's {kind.__name__}, which "
                    f"model.objective {objective} does not give; use an objective that reports it"
                )
