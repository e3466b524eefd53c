"""The trainer that also searches, and takes networks out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_fednas.data import FederatedDataModule
from lit_fednas.data.readers import EvalBatches
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.interrupts import Interrupts
from lit_fednas.federation.lightning_private import call_hook
from lit_fednas.federation.run_folder import run_folder
from lit_fednas.federation.trainer import check_readable
from lit_fednas.records import SearchFiles, note_after_training
from lit_fednas.rng import generator
from lit_fednas.search.clients import write_clients
from lit_fednas.search.evaluator import Evaluator, share_of
from lit_fednas.search.export import Exported, Format, export_tier
from lit_fednas.search.federated import ClientDraw, FederatedEvaluator
from lit_fednas.search.outcome import format_tiers, write_tiers
from lit_fednas.search.progress import SearchProgress
from lit_fednas.search.run import Progress, TierSearch
from lit_fednas.search.settings import SearchSettings

log = logging.getLogger(__name__)


class SearchTrainer(FederatedTrainer):
    """A federated trainer that searches the supernet it has trained, and exports what it found."""

    def search_tiers(
        self,
        model: FederatedLightningModule,
        datamodule: FederatedDataModule,
        ckpt_path: str | None = "last",
        search: SearchSettings = SearchSettings(),
        folder: Path | str | None = None,
    ) -> SearchFiles:
        """Finds the best architecture of every tier, tests it, and writes its network.

        A search that was stopped goes on where it was when it is started again.

        Args:
            model: The server's module.
            datamodule: The data; the server's validation data are searched on (or the clients', if
                ``search.federated`` is set), its test data are touched at the end.
            ckpt_path: A checkpoint of the weights; ``None`` for the module as it is.
            search: What to do.
            folder: The run's folder; by default the first logger's.

        Returns:
            What was written.

        Raises:
            CheckpointError: The checkpoint is missing, damaged, or of another supernet.
            ConfigError: The settings cannot work.
        """
        self._load(model, datamodule, ckpt_path)
        run_of = Path(folder or run_folder(self))
        files = SearchFiles(run_of / search.name)
        progress = SearchProgress(search.evaluations, enabled=self.progress_bar_callback is not None)
        interrupts = Interrupts()

        def watch(done: Progress) -> None:
            progress(done)
            interrupts.check()

        with self._threads(model), interrupts.listening():
            evaluator = self._evaluator(model, datamodule, search)
            clients = model.population.tiers
            run = TierSearch(search, evaluator, files, model.seed, str(ckpt_path or ""), clients, watch)
            try:
                run.run()
            finally:
                progress.close()
            rows = write_tiers(run, _tester(model, datamodule, evaluator))
            write_clients(model, datamodule, files)
        files.write_settings({**run.written, "complete": True})
        if "communication" in run.written:
            note_after_training(run_of, search.name, run.written["communication"])
        print(format_tiers(rows, run.written["tiers"]))
        call_hook(self, "on_search_end", files.folder)
        return files

    #: The command's name. (jsonargparse names a group after the function, which must not be that of ``search.*``.)
    search = search_tiers

    def export(
        self,
        model: FederatedLightningModule,
        datamodule: FederatedDataModule,
        tier: str,
        ckpt_path: str | None = "last",
        format: Format = "torch-export",
        output: str | None = None,
        name: str = "search",
        folder: Path | str | None = None,
    ) -> Exported:
        """Writes a tier's network as a file that runs without this package, and checks it.

        Args:
            model: The server's module.
            datamodule: The data; the exported network is compared on a batch of the server's validation data, or a
                client's data where it has none.
            tier: The tier.
            ckpt_path: The checkpoint that was searched.
            format: ``torch-export`` (``.pt2``) or ``onnx``.
            output: The file; by default ``network.pt2`` or ``network.onnx`` in the tier's folder.
            name: The search's folder in the run's folder.
            folder: The run's folder; by default the first logger's.

        Returns:
            What was written, and how well it agrees.

        Raises:
            ConfigError: There is no such tier, or a package is missing.
        """
        self._load(model, datamodule, ckpt_path)
        files = SearchFiles(Path(folder or run_folder(self)) / name)
        inputs = _inputs_to_compare(datamodule)
        exported = export_tier(model.supernet.cpu(), files, tier, format, inputs.cpu(), output and Path(output))
        print(
            f"written: {exported.path} ({exported.bytes / 1e6:.2f} MB); on {exported.num_examples} examples "
            f"its logits differ by at most {exported.difference:.1e}, {exported.agreement:.1%} of the "
            f"predictions agree"
        )
        return exported

    def _load(
        self, model: FederatedLightningModule, datamodule: FederatedDataModule, ckpt_path: str | None
    ) -> None:
        """Sets up module and data as ``validate`` does, without running anything."""
        if self.world_size > 1:
            raise ConfigError(
                f"trainer.devices: a search runs in one process, not in {self.world_size}; set it to 1"
            )
        check_readable(ckpt_path)
        datamodule.prepare_data()
        datamodule.setup("validate")
        model.divide(datamodule.clients)
        model.trainer = self
        self.strategy.connect(model)
        if ckpt_path is not None:
            checkpoint: dict[str, Any] = torch.load(ckpt_path, map_location="cpu", weights_only=True)
            model.on_load_checkpoint(checkpoint)
            model.load_state_dict(checkpoint["state_dict"])
        device = self.strategy.root_device
        model.to(device).eval()
        datamodule.move_to(device)

    def _evaluator(
        self, model: FederatedLightningModule, datamodule: FederatedDataModule, search: SearchSettings
    ) -> Evaluator:
        clients = datamodule.clients
        seed = model.seed if search.seed is None else search.seed
        if search.federated is not None:
            cohort = model.cohort.size(clients.num_clients)
            draw = ClientDraw(clients, model.population, cohort, search.federated, seed)
            recalibration = model.recalibration_batches(clients)
            size = datamodule.eval_batch_size
            return FederatedEvaluator(model.supernet, draw, model.evaluation, recalibration, size)
        share = share_of(_validation_batches(datamodule), search.validation_share, seed)
        return Evaluator(model.supernet, share, model.evaluation, model.recalibration_batches(clients))


def _validation_batches(datamodule: FederatedDataModule) -> EvalBatches:
    batches = datamodule.val_dataloader()
    if not isinstance(batches, EvalBatches):
        raise ConfigError(
            "data.server_val: 0 leaves nothing to search on; give some examples to the server, or set "
            "search.federated"
        )
    return batches


def _inputs_to_compare(datamodule: FederatedDataModule) -> Tensor:
    """A batch of the server's validation data; of a client's training data where it has none."""
    batches = datamodule.val_dataloader()
    if isinstance(batches, EvalBatches):
        return next(iter(batches))[0]
    size, draws = datamodule.eval_batch_size, generator(0, "export")
    return next(datamodule.clients.batches(0, size, draws, shuffle=False, augment=False))[0]


def _tester(model: FederatedLightningModule, datamodule: FederatedDataModule, like: Evaluator) -> Evaluator | None:
    """Evaluates on the test data as on the validation data; ``None`` if the source has none."""
    try:
        batches = datamodule.test_dataloader()
    except DataError as error:
        log.warning("no test: %s", error)
        return None
    return Evaluator(model.supernet, batches, model.evaluation, like.recalibration)
