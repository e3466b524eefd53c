"""Figures in which texts of users are drawn as they are, whatever matplotlib's settings say."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text
from typing_extensions import override

_AS_IT_IS: dict[Any, bool] = {"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False}


@contextmanager
def as_it_is() -> Iterator[None]:
    """Makes texts that are not read as mathematics or TeX; a character that the font lacks is drawn as a box."""
    with rc_context(_AS_IT_IS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


class PlainFigure(Figure):
    """A figure without pyplot that draws names of users, which may hold any character, as they are."""

    @override
    @as_it_is()
    def add_subplot(self, *args: Any, **settings: Any) -> Any:
        return super().add_subplot(*args, **settings)

    @override
    @as_it_is()
    def draw(self, renderer: Any) -> None:
        for text in self.findobj(Text):
            text.set(parse_math=False, usetex=False)
        super().draw(renderer)
