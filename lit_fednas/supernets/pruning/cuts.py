"""How many filters a unit must lose to meet a budget (FedNAS, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cut:
    """A network that a unit has lost filters of.

    Attributes:
        unit: The unit: a layer, or several that lose filters together.
        removed: How many units each of its groups has lost.
        sizes: The numbers of units of all groups that are left.
        resource: What the network that is left takes.
    """

    unit: str
    removed: dict[str, int]
    sizes: dict[str, int]
    resource: float


def find_cuts(
    units: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    multiple: int,
    resource: Callable[[Mapping[str, int]], float],
    budget: float,
) -> list[Cut]:
    """For each unit the fewest filters that must go to meet the budget; one at least.

    A unit of several groups loses the same share of each, rounded down. One filter of each group stays (as many as
    go together, where they go in multiples). A unit that cannot meet the budget by itself is left out.

    Args:
        units: The groups of units of each unit.
        sizes: The numbers of units of all groups.
        multiple: In what multiples filters go.
        resource: What a network of given numbers of units takes; it must not grow when filters go. A measured
            latency may, by a little: what is found meets the budget as measured, but a smaller cut might as well.
        budget: What it may take at most.

    Example:
        >>> find_cuts({"a": ["a"], "b": ["b"]}, {"a": 4, "b": 2}, 1, lambda n: 10 * n["a"] + n["b"], 25)
        [Cut(unit='a', removed={'a': 2}, sizes={'a': 2, 'b': 2}, resource=22)]
    """
    found = []
    for unit, groups in units.items():
        blocks = {group: sizes[group] // multiple for group in groups}
        most = max(blocks.values())

        def cut(step: int, unit: str = unit, blocks: dict[str, int] = blocks, most: int = most) -> Cut:
            removed = {group: step * count // most * multiple for group, count in blocks.items()}
            left = {group: size - removed.get(group, 0) for group, size in sizes.items()}
            return Cut(unit, removed, left, resource(left))

        fewest, enough = 0, most - 1
        if enough < 1 or cut(enough).resource > budget:
            continue
        while enough - fewest > 1:  # what is enough meets the budget, what is fewest does not
            middle = (fewest + enough) // 2
            if cut(middle).resource <= budget:
                enough = middle
            else:
                fewest = middle
        found.append(cut(enough))
    return found
