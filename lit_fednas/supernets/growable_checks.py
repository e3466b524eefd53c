"""What families of growable networks ask of their settings and inputs: the same as families that are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from lit_fednas.supernets import width_families
from lit_fednas.supernets.blueprint import GrowableFamily


def check_image(family: GrowableFamily, input_shape: Sequence[int], least: int = 1) -> None:
    """Raises ``ConfigError`` if inputs are no images, or smaller than ``least`` pixels in height or width."""
    width_families.check_image(cast(Any, family), input_shape, least)


def check_positive(family: GrowableFamily, **settings: int | Sequence[int]) -> None:
    """Raises ``ConfigError`` if a setting, or one of its numbers, is missing or below 1."""
    width_families.check_positive(cast(Any, family), **settings)
