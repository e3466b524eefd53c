"""Tests that assignments keep to the tiers' limits, if possible before training."""

from __future__ import annotations

from typing import Any

import pytest
from typing_extensions import override

from lit_fednas.assignment import Assignment, ByTier, CostWeighted, FixedArchitecture, RandomArchitectures, Sandwich
from lit_fednas.errors import ConfigError
from lit_fednas.federation import UniformCohort
from lit_fednas.tiers import Budgets, ClientTiers, ListedTiers
from tests.support import Noted, fit, make_module, tiny_data, tiny_supernet

NET = tiny_supernet()
SMALLEST, LARGEST = (NET.macs(arch) for arch in (NET.space.smallest, NET.space.largest))


class LargeLater(FixedArchitecture):
    """Plans the largest architecture only in rounds that are not tested before training."""

    depends_on = "client"

    @override
    def plan(self, round: Any) -> Any:
        self.arch = "largest" if round.number >= 5 else "smallest"
        return super().plan(round)


def train(assignment: Assignment, weak: float = LARGEST / 2.5, rounds: int = 6, enforced: bool = True) -> int:
    """Returns the number of started rounds; clients 0 to 2 afford ``weak`` MACs, the others all architectures."""
    budgets = Budgets({"weak": {"macs": weak}, "strong": {"macs": LARGEST}})
    tiers = ClientTiers(budgets, ListedTiers({"weak": [0, 1, 2], "strong": [3, 4, 5]}), enforced=enforced)
    seen, cohort = Noted("on_cohort_start", lambda *arguments: None), UniformCohort(ratio=1.0)
    module = make_module(tiny_supernet(), assignment, tiers=tiers, cohort=cohort)
    try:
        fit(module, tiny_data(), rounds, callbacks=[seen])
    except ConfigError as error:
        error.add_note(str(len(seen.all)))
        raise
    return len(seen.all)


@pytest.mark.parametrize(
    "assignment", [FixedArchitecture(), RandomArchitectures(), Sandwich()], ids=lambda part: type(part).__name__
)
def test_ignored_limits_are_refused_before_training(assignment: Assignment) -> None:
    kind = type(assignment).__name__
    with pytest.raises(
        ConfigError, match=rf"^model.assignment: {kind} gives client \d of tier weak .* exceeds"
    ) as raised:
        train(assignment)
    assert raised.value.__notes__ == ["0"]


def test_limits_exceeded_later_are_refused_in_that_round() -> None:
    with pytest.raises(ConfigError, match="LargeLater gives client 0 of tier weak the architecture") as raised:
        train(LargeLater())
    assert raised.value.__notes__[0] == "5"


@pytest.mark.parametrize(
    "assignment", [ByTier(), CostWeighted(), FixedArchitecture("smallest")], ids=lambda part: type(part).__name__
)
def test_assignments_within_the_limits_train(assignment: Assignment) -> None:
    assert train(assignment, weak=SMALLEST, rounds=2) == 2


def test_limits_without_enforcement_are_ignored() -> None:
    assert train(FixedArchitecture(), rounds=1, enforced=False) == 1
