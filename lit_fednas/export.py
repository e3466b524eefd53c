"""The command ``export``: a tier's network as one file that runs without this package.

The file is torch.export's program, or ONNX. It is read back and compared with the network, in batches of several
sizes, before it is given its name.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lit_fednas.data.readers import EvalBatches
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.records import TierFiles
from lit_fednas.records.files import check_output, replacing
from lit_fednas.rng import generator
from lit_fednas.search.command import AfterTraining
from lit_fednas.search.tier_models import load_tier_network
from lit_fednas.supernets import Supernet

log = logging.getLogger(__name__)

Format = Literal["torch-export", "onnx"]

SUFFIXES: dict[Format, str] = {"torch-export": ".pt2", "onnx": ".onnx"}
PACKAGES: dict[Format, list[str]] = {"torch-export": [], "onnx": ["onnx", "onnxscript", "onnxruntime"]}

#: How far logits may differ, as a share of the greatest of the batch (of 1, if all are smaller).
TOLERANCE = 1e-4

#: Sizes of the batches that are compared, beside that of all examples.
SIZES = (1, 2)

#: The same for networks that normalise by the statistics of the batch. In smaller ones their logits depend on how
#: torch rounds: with two examples, and one pixel at the end, float32 and float64 differ by a thousandth and more.
SIZES_OF_BATCH_STATISTICS = (8,)


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how well it agrees with the network.

    Attributes:
        path: The file.
        format: Its format.
        bytes: On disk.
        difference: Greatest absolute difference of the logits.
        agreement: Share of the examples with the same prediction.
        num_examples: Examples that were compared.
    """

    path: Path
    format: Format
    bytes: int
    difference: float
    agreement: float
    num_examples: int


class BatchStatistics(nn.Module):
    """A batch norm without running statistics, in operations that every runtime knows.

    ONNX has no batch normalisation by the batch's own statistics outside training.

    Args:
        norm: The batch norm; scale and shift are shared with it.

    Example:
        >>> norm = nn.BatchNorm1d(1, affine=False, track_running_stats=False)
        >>> BatchStatistics(norm)(torch.tensor([[1.0], [3.0]])).round(decimals=4).tolist()
        [[-1.0], [1.0]]
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, ...]`` to the same shape."""
        variance, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0, keepdim=True)
        y = (x - mean) * torch.rsqrt(variance + self.eps)
        if self.weight is None:
            return y
        per_channel = [-1, *[1] * (x.ndim - 2)]
        return y * self.weight.reshape(per_channel) + self.bias.reshape(per_channel)


class Export(AfterTraining):
    """The command ``export``."""

    def run(
        self,
        tier: str,
        ckpt_path: str | None = "last",
        format: Format = "torch-export",
        output: str | None = None,
        name: str = "search",
    ) -> Exported:
        """Writes a tier's network as a file that runs without this package, and checks it.

        It is compared on a batch of the server's validation data, or a client's training data where it has none.

        Args:
            tier: The tier.
            ckpt_path: The checkpoint that was searched.
            format: ``torch-export`` (``.pt2``) or ``onnx``.
            output: The file; by default ``network.pt2`` or ``network.onnx`` in the tier's folder.
            name: The folder of the search or the fine-tuning in the run's folder.

        Returns:
            The file, and how well it agrees with the network.

        Raises:
            ConfigError: The tier has no network, a package is missing, or the file cannot be written.
        """
        if output is not None:
            check_output(output)
        self.trainer.load(self.model, self.datamodule, ckpt_path)
        files = TierFiles(self.folder / name)
        exported = export_tier(self.model.supernet.cpu(), files, tier, format, self._examples().cpu(), output)
        print(
            f"written: {exported.path} ({exported.bytes / 1e6:.2f} MB); on {exported.num_examples} examples "
            f"its logits differ by at most {exported.difference:.1e}, {exported.agreement:.1%} of the "
            f"predictions agree"
        )
        return exported

    def _examples(self) -> Tensor:
        batches = self.datamodule.val_dataloader()
        if isinstance(batches, EvalBatches):
            return next(iter(batches))[0]
        size, draws = self.datamodule.eval_batch_size, generator(0, "export")
        return next(self.datamodule.clients.batches(0, size, draws, shuffle=False, augment=False))[0]


def export_tier(
    supernet: Supernet,
    files: TierFiles,
    tier: str,
    format: Format,
    examples: Tensor,
    output: Path | str | None = None,
) -> Exported:
    """Returns the file that a tier's network was exported to (:func:`export_network`).

    Its weights must still be the supernet's, unless they were fine-tuned; new statistics of batch norms need not.

    Args:
        supernet: The one that was searched.
        files: The search's folder.
        tier: The tier's name.
        format: ``torch-export`` or ``onnx``.
        examples: As in :func:`export_network`.
        output: The file; ``network.pt2`` or ``network.onnx`` in the tier's folder if not given.

    Raises:
        CheckpointError: The supernet has other weights than the tier's network.
        ConfigError: As in :func:`export_network` and ``load_tier_network``.
    """
    arch, network = load_tier_network(supernet, files, tier)
    model = files.tier_model(tier)
    tensors: dict[str, Tensor] = {} if model.finetuned else dict(network.named_parameters())
    if not model.finetuned and not model.recalibrated:
        tensors |= dict(network.named_buffers())
    views = supernet.views(arch)
    for name, tensor in tensors.items():
        if not torch.equal(tensor, views[name].cpu()):
            raise CheckpointError(
                f"tier {tier!r}: its {name} is not the supernet's, so the checkpoint is not the one that was "
                f"searched; give that one, or search again"
            )
    path = files.tier_folder(tier) / f"network{SUFFIXES[format]}" if output is None else Path(output)
    return export_network(network, supernet.input_shape, path, format, examples)


def export_network(
    network: nn.Module, input_shape: Sequence[int], path: Path | str, format: Format, examples: Tensor
) -> Exported:
    """Returns the file that a network was written to, in evaluation mode; it takes batches of any size.

    None of the examples gets into the file. Batch norms that use the statistics of the batch that they are given,
    as SuperFed's do, still do so in the file; a warning says so.

    Args:
        network: The network; it is left as it is.
        input_shape: Of one example.
        path: The file; one that is there is replaced.
        format: ``torch-export`` or ``onnx``.
        examples: ``[n, *input_shape]``, at least 8, to compare on; they run as one batch.

    Raises:
        ConfigError: A package is missing, examples do not fit, or the logits differ by more than
            :data:`TOLERANCE`, which leaves no file.
    """
    if len(examples) < 8 or list(examples.shape[1:]) != list(input_shape):
        raise ConfigError(
            f"export.examples: {list(examples.shape)} cannot be compared; give 8 or more of shape {list(input_shape)}"
        )
    missing = [name for name in PACKAGES[format] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"export.format: {format} needs {', '.join(missing)}, not installed; pip install 'lit-fednas[export]'"
        )
    examples, path = examples.cpu(), Path(path)
    network = copy.deepcopy(network).cpu().eval()
    program, sizes = _program(network, examples)
    with TemporaryDirectory() as folder:
        written = Path(folder) / f"network{SUFFIXES[format]}"  # torch.export writes the name into the file
        run = _write_onnx(program, written) if format == "onnx" else _write_torch(program, written)
        difference, agreement = _compare(run, network, examples, sizes, format)
        with replacing(path) as file:
            file.write(written.read_bytes())
    return Exported(path, format, path.stat().st_size, difference, agreement, len(examples))


def _program(network: nn.Module, examples: Tensor) -> tuple[torch.export.ExportedProgram, Sequence[int]]:
    """Traces the network with zeros, which the file keeps; returns the sizes of the batches to compare as well."""
    traced = copy.deepcopy(network).requires_grad_(False)
    sizes: Sequence[int] = SIZES
    if _replace_norms(traced):
        sizes = SIZES_OF_BATCH_STATISTICS
        log.warning(
            "export: the norms use the statistics of the batch that they are given: a prediction depends on its "
            f"batch, which should have {min(sizes)} examples or more; search with "
            "model.evaluation.recalibrate_batches for networks whose predictions do not"
        )
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(traced, (torch.zeros_like(examples[:2]),), dynamic_shapes=shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program, sizes


def _replace_norms(network: nn.Module) -> bool:
    """Replaces batch norms without running statistics by :class:`BatchStatistics`; returns whether any was."""
    norms = {
        name: module
        for name, module in network.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm) and module.running_mean is None
    }
    for name, norm in norms.items():
        network.set_submodule(name, BatchStatistics(norm))
    return bool(norms)


def _write_torch(program: torch.export.ExportedProgram, path: Path) -> Callable[[Tensor], Tensor]:
    """Writes ``.pt2`` and reads it back."""
    torch.export.save(program, path)
    return torch.export.load(path).module()


def _write_onnx(program: torch.export.ExportedProgram, path: Path) -> Callable[[Tensor], Tensor]:
    """Writes ONNX with the weights inside, checks it, and reads it back into onnxruntime."""
    import onnx
    import onnxruntime

    torch.onnx.export(
        program,
        (),
        path,
        dynamo=True,
        external_data=False,
        verbose=False,
        input_names=["inputs"],
        output_names=["logits"],
        dynamic_shapes=({0: "batch"},),
    )
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # else it pins threads to CPUs
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(["logits"], {"inputs": inputs.numpy()})[0])


@torch.no_grad()
def _compare(
    run: Callable[[Tensor], Tensor], network: nn.Module, examples: Tensor, sizes: Sequence[int], format: Format
) -> tuple[float, float]:
    """Returns the greatest difference of the logits in any batch, and the agreement in that of all examples."""
    greatest, agreement = 0.0, 0.0
    for size in (*sizes, len(examples)):
        expected = network(examples[:size])
        logits = run(examples[:size])
        difference = float((logits - expected).abs().max())
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        if not difference <= allowed:  # NaN does not agree
            raise ConfigError(
                f"export.format: the logits of {format} differ by {difference:.3g} in a batch of {size}, at most "
                f"{allowed:.3g} is allowed; nothing was written; try the other format"
            )
        greatest = max(greatest, difference)
        agreement = float((logits.argmax(1) == expected.argmax(1)).float().mean())
    return greatest, agreement
