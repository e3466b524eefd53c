"""A picture of a search's fronts."""

from pathlib import Path

from lightning import Callback, Trainer

from lit_fednas.federation import FederatedLightningModule
from lit_fednas.records.files import replacing


class DrawFronts(Callback):
    """Draws a search's fronts as ``pareto.png`` in its folder."""

    def on_search_end(self, trainer: Trainer, module: FederatedLightningModule, folder: Path) -> None:
        """Draws the figure; the command ``search`` calls this hook after it has written the folder."""
        from lit_fednas.analysis import pareto_figure, read_search  # imports pandas and matplotlib only here

        with replacing(folder / "pareto.png") as file:
            pareto_figure(read_search(folder)).savefig(file, dpi=150)
