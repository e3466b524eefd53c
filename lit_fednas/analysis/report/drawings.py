"""Architectures as pictures: one column of boxes per stage, where a text can be read so."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lit_fednas.analysis.report.markup import Html, code, tag


@dataclass(frozen=True)
class Stages:
    """What is read from a text such as ``d: [0,1], e: [0.1,0.1,0.25,0.14]``.

    Attributes:
        ratios: Per stage, the expand ratios of the blocks that are there.
        blocks: The most blocks that a stage can have, as far as the text says.
    """

    ratios: tuple[tuple[float, ...], ...]
    blocks: int


def read_stages(arch: str) -> Stages | None:
    """Depths and ratios of a text, or ``None`` where it is written otherwise.

    Example:
        >>> read_stages("d: [0,1], e: [0.1,0.1,0.25,0.14]")
        Stages(ratios=((0.1,), (0.25, 0.14)), blocks=2)
        >>> read_stages("d: [0,2], e: 0.1").blocks
        3
        >>> read_stages("conv3x3-skip") is None
        True
    """
    match = re.fullmatch(r"\s*d:\s*(\[[\d,\s]+\])\s*,\s*e:\s*(\[[\d.,\seE+-]+\]|[\d.eE+-]+)\s*", arch)
    try:
        depths, ratios = (json.loads(match[1]), json.loads(match[2])) if match else (None, None)
    except ValueError:
        return None
    if not depths:
        return None
    if not isinstance(ratios, list):
        return Stages(tuple((ratios,) * (1 + depth) for depth in depths), 1 + max(depths))
    blocks, left = divmod(len(ratios), len(depths))
    if left or blocks <= max(depths):
        return None
    stages = [ratios[blocks * stage : blocks * stage + 1 + depth] for stage, depth in enumerate(depths)]
    return Stages(tuple(tuple(stage) for stage in stages), blocks)


def draw_all(archs: Sequence[str]) -> list[Html]:
    """A picture of each, all to the same measure; the text where it cannot be read."""
    read = [read_stages(arch) for arch in archs]
    known = [stages for stages in read if stages is not None]
    widest = max((ratio for stages in known for stage in stages.ratios for ratio in stage), default=1.0) or 1.0
    blocks = max((stages.blocks for stages in known), default=1)
    return [
        tag("p", code(arch)) if stages is None else _draw(stages, blocks, widest)
        for arch, stages in zip(archs, read, strict=True)
    ]


def _draw(stages: Stages, blocks: int, widest: float) -> Html:
    columns = []
    for number, ratios in enumerate(stages.ratios, start=1):
        boxes = [
            tag(
                "span",
                tag("i", style=f"width:{100 * ratio / widest:.4g}%"),
                tag("b", f"{ratio:g}"),
                class_="block",
            )
            for ratio in ratios
        ]
        absent = [tag("span", class_="block absent")] * (blocks - len(ratios))
        columns.append(tag("div", tag("small", f"stage {number}"), boxes, absent, class_="stage"))
    said = "; ".join(
        f"stage {n}: {', '.join(f'{r:g}' for r in stage)}" for n, stage in enumerate(stages.ratios, 1)
    )
    return tag("div", columns, class_="arch", role="img", aria_label=f"expand ratios by block: {said}")
