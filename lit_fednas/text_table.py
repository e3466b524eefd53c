"""Tables as aligned text."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligns columns: the first to the left, figures to the right.

    Args:
        head: The columns' names.
        body: Rows of as many cells.
        left: How many columns are text.

    Example:
        >>> print(text_table(["tier", "MB"], [["small", "1.5"], ["large", "12.0"]]))
        tier     MB
        small   1.5
        large  12.0
    """
    lines = [head, *body]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
