"""Tables and figures of numbers as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown.

    Args:
        head: The columns' names.
        body: Rows of as many cells.
        left: How many columns are text; the others are aligned to the right.

    Example:
        >>> print(markdown_table(["tier", "MB"], [["small", "1.5"]]))
        | tier | MB |
        |---|---:|
        | small | 1.5 |
    """
    lines = ["---" if place < left else "---:" for place in range(len(head))]
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, *body)]
    return "\n".join([rows[0], f"|{'|'.join(lines)}|", *rows[1:]])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean, and the least and greatest where there are several.

    Example:
        >>> spread([50, 52.04]), spread([25])
        ('51.0 (50.0 to 52.0)', '25.0')
    """
    mean = f"{sum(values) / len(values):.{digits}f}"
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else mean
