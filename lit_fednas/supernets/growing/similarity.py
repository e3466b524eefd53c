"""How similar two models of a suite are (FedTrans, section 4.2)."""

from __future__ import annotations

from lit_fednas.supernets.growing.blueprint import Blueprint


def similarity(one: Blueprint, other: Blueprint, related: bool = True) -> float:
    """Compares two models cell by cell.

    Cells are matched by their names, which a cell's descendants keep. Every cell of the union counts:

    - in both models: the fewer of its parameters divided by the more; so 1 if it is unchanged (the paper's case
      a), and the share that was inherited if it was widened (b). A cell whose input was widened by its neighbour
      has more parameters as well and counts as b, for it kept what it had;
    - in one model alone: 0 if it was inserted into a model that comes from the other (c), and -1 where neither
      model comes from the other (d), so that either has lost what the other has.

    The paper has the similarity in [0, 1] and "cumulates" the cells, which may come to any number. Here the sum is
    divided by the number of cells in the union, and what is negative becomes 0. So it lies in [0, 1], is the same
    both ways, and is 1 for a model with itself.

    Args:
        one: A model.
        other: Another.
        related: Whether one of the two comes from the other, in one step or several, or they are the same.

    Returns:
        The similarity, from 0 to 1.

    Example:
        >>> from lit_fednas.supernets.growing.cnn import GrowableCNN
        >>> narrow, wide = (GrowableCNN([8, width], norm=None).blueprint((3, 8, 8), 10) for width in (8, 16))
        >>> round(similarity(narrow, wide), 4)  # 1 for conv1, 584 / 1168 for conv2, 90 / 170 for the head
        0.6765
    """
    here, there = one.parameters(), other.parameters()
    alone = 0 if related else -1
    total = 0.0
    union = sorted({*here, *there})  # in one order, so that rounding is the same both ways
    for cell in union:
        if cell in here and cell in there:
            fewer, more = sorted((here[cell], there[cell]))
            total += fewer / more if more else 1.0
        else:
            total += alone
    return max(0.0, total / len(union))
