"""The command ``export``: a tier's network as one file that runs without this package, or the whole supernet.

A supernet is a folder that searches, tests and trainings can start from. ``weights.ckpt`` has the shared weights alone
(``torch.load(..., weights_only=True)["state_dict"]``); ``config.yaml`` is the run's; ``supernet.json`` has the space,
its costs, its inputs and outputs, and the networks of the tiers and of the front after a search; ``README.md`` is a
card of the same data.

The file of a network is a program of torch.export, or ONNX. Its inputs are the data source's, such as images in uint8
from 0 to 255, since the data's normalisation is part of the file. Norms without running statistics get some first. The
file is read back and compared with the network in batches of several sizes before it gets its name.

Its metadata (``metadata.json`` of a ``.pt2``, ``metadata_props`` of ONNX, with JSON for values that are not text) has
``class_names`` in the order of the logits, ``input_shape`` of an example, ``input_type``, ``input_range``; the
``preprocessing`` of a file's content, such as size and interpolation of images; the ``mean`` and ``std`` that the
network applies to inputs scaled to [0, 1]; ``tier``, ``arch``, ``macs`` (of one example), ``parameters``, the metrics
on ``test_examples``, such as ``test_accuracy`` (null without a test split), and ``lit_fednas_version``.
"""

import copy
import io
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
import yaml
from jinja2 import Template
from torch import Tensor, nn

from lit_fednas import __version__
from lit_fednas.config_files import modules_line, read_yaml
from lit_fednas.data import FederatedDataModule, Normalize
from lit_fednas.data.transforms import as_float
from lit_fednas.errors import CheckpointError, ConfigError, DataError
from lit_fednas.federation import EvaluationSettings, FederatedLightningModule
from lit_fednas.federation.checkpoints import copied
from lit_fednas.federation.evaluation import RECALIBRATION_BATCHES, normalises_over_batches, recalibrated
from lit_fednas.formatting import metric_text, short
from lit_fednas.records import ALL_TIERS, SearchFiles, TierFiles
from lit_fednas.records.files import check_output, read_json, replace_json, replace_saved, replace_text, replacing
from lit_fednas.records.run import CARD_FILE, LEDGER_FILE, PRETRAINED_FILES, SUPERNET_FILE, WEIGHTS_FILE
from lit_fednas.search.command import AfterTraining
from lit_fednas.search.evaluator import Evaluator
from lit_fednas.search.tier_models import load_tier_network
from lit_fednas.supernets import Supernet

log = logging.getLogger(__name__)

Format = Literal["torch-export", "onnx"]

SUFFIXES: dict[Format, str] = {"torch-export": ".pt2", "onnx": ".onnx"}
PACKAGES: dict[Format, list[str]] = {"torch-export": [], "onnx": ["onnx", "onnxscript", "onnxruntime"]}

#: The greatest difference of logits, as a share of the batch's greatest logit (at least 1).
TOLERANCE = 1e-4
#: Sizes of the compared batches, beside that of all examples.
SIZES = (1, 2)
#: The number of compared examples.
COMPARED = 256


@dataclass(frozen=True)
class Exported:
    """An exported file, and its agreement with the network."""

    path: Path
    format: Format
    bytes: int  # the size on disk
    difference: float  # the greatest absolute difference of the logits
    agreement: float  # the share of examples with the same prediction, if outputs are classes
    num_examples: int  # the number of compared examples
    metadata: Mapping[str, Any] = field(default_factory=dict)  # the metadata of the file


class FromRaw(nn.Module):
    """A network behind the normalisation of its data, for inputs of the type of ``raw``."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, normalize: Normalize, raw: Tensor) -> None:
        super().__init__()
        self.network = network
        scale, shift = normalize.scale_and_shift(raw)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the network's logits of raw inputs."""
        return self.network(inputs.to(torch.float32) * self.scale + self.shift)


class Export(AfterTraining):
    """The command ``export``."""

    def run(
        self,
        tier: str | None = None,
        ckpt_path: str | None = "last",
        supernet: bool = False,
        format: Format | None = None,
        output: str | None = None,
        name: str = "search",
        overwrite: bool = False,
    ) -> Exported | Path:
        """Writes a tier's network as a file that runs without this package, and checks it; or the supernet.

        Args:
            tier: Name of the tier.
            ckpt_path: Checkpoint that was searched.
            supernet: Whether to write the supernet, a folder that searches and trainings can start from.
            format: ``torch-export`` (``.pt2``) or ``onnx``; by default that of the output's suffix, or torch-export.
            output: File or folder to write; by default in the tier's folder, or ``supernet`` in the run's.
            name: Folder of the search or the fine-tuning in the run's folder.
            overwrite: Whether to replace an output that this command has not written.

        Returns:
            The file with its agreement with the network, or the supernet's folder.

        Raises:
            ConfigError: The tier has no network, a package is missing, or the file cannot be written.
        """
        if (tier is None) is not supernet:
            raise ConfigError("export: needs one of --tier TIER, a tier of a search, and --supernet; give it")
        if tier is None:
            return self._write_supernet(ckpt_path, Path(output or self.folder / "supernet"), name, overwrite)
        files, suffix = TierFiles(self.folder / name), Path(output or "").suffix.lower()
        expected = next((kind for kind, ending in SUFFIXES.items() if ending == suffix), format or "torch-export")
        if (format := format or expected) != expected:
            raise ConfigError(f"export.output: {output} is of {expected}, and export.format {format}; change one")
        path = files.tier_folder(tier) / f"network{SUFFIXES[format]}" if output is None else Path(output)
        check_output(path, overwrite=overwrite or output is None)
        _check_installed(format)
        self.trainer.load(self.model, self.datamodule, ckpt_path)
        with self.trainer.computing(self.model):
            exported = export_tier(self.model, self.datamodule, files, tier, format, path)
        metadata, task = exported.metadata, self.datamodule.task
        value = metadata[f"test_{task.metric}"]
        tested = "no test data" if value is None else f"test {task.metric} {metric_text(task.metric, value, '%')}"
        agree = f", {exported.agreement:.1%} of the predictions agree" if task.has_classes else ""
        print(
            f"written: {exported.path} ({exported.bytes / 1e6:.2f} MB); it takes {metadata['input_type']} of "
            f"{metadata['input_shape']}, {tested}; on {exported.num_examples} examples its outputs differ by at most "
            f"{exported.difference:.1e}{agree}"
        )
        if steps := [f"{name}: {text}" for name, text in metadata["preprocessing"].items() if isinstance(text, str)]:
            print("inputs of files:", ", ".join(steps))
        return exported

    def _write_supernet(self, ckpt_path: str | None, folder: Path, name: str, overwrite: bool) -> Path:
        """Writes the supernet's folder, with the results of a search of the same weights."""
        check_output(*(folder / name for name in PRETRAINED_FILES), overwrite=overwrite)
        self.trainer.load(self.model, self.datamodule, ckpt_path)
        files, supernet = SearchFiles(self.folder / name), self.model.supernet
        for tier in files.tier_names:
            _check_searched(supernet, files, tier, *load_tier_network(supernet, files, tier))
        write_pretrained(self.model, self.datamodule, self.folder, files, folder)
        print(f"written: {folder}; give it as --model.initial, or as --ckpt_path of a search")
        return folder


def write_pretrained(
    model: FederatedLightningModule, datamodule: FederatedDataModule, run: Path, search: SearchFiles, folder: Path
) -> None:
    """Writes a supernet's weights with all files to use them, and with the networks of their search."""
    if not (run / "config.yaml").exists():
        raise ConfigError(f"export.supernet: {run}/config.yaml does not exist; export a run of lit-fednas fit")
    settings = read_yaml(run / "config.yaml")
    settings["model"]["initial"] = None  # the file may not exist elsewhere
    if privacy := settings.get("privacy"):
        privacy.get("init_args", privacy)["noise_seed"] = None  # the seed would reveal the noise
    content = {
        "pytorch-lightning_version": lightning.__version__,
        "state_dict": copied(model.state_dict()),
        "federation": {**model.weights_record(), "assignment": {}},  # the states of parts may be of clients
    }
    supernet, space, ledger = model.supernet, model.supernet.space, read_json(run / LEDGER_FILE)
    ends = (("smallest", space.smallest), ("largest", space.largest))
    description = {
        "lit_fednas_version": __version__,
        "supernet": type(supernet).__name__,
        "source": type(datamodule.source).__name__,
        "clients": datamodule.clients.num_clients,
        **datamodule.inputs_record(),
        "space": {"size": space.size, "choices": [[str(value) for value in values] for values in space.choices]},
        "costs": {name: {"arch": str(arch), **asdict(supernet.cost(arch))} for name, arch in ends},
        "training": {"rounds": ledger.get("rounds"), **ledger.get("total", {})},
        "metric": search.settings().get("metric"),
        "tiers": search.rows("tiers"),
        "front": [row for row in search.rows("front") if row["tier"] == ALL_TIERS],
    }
    card = Template(Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8"), keep_trailing_newline=True)
    replace_saved(folder / WEIGHTS_FILE, content)
    replace_text(folder / "config.yaml", modules_line() + yaml.safe_dump(settings, sort_keys=False))
    replace_json(folder / SUPERNET_FILE, description)
    replace_text(
        folder / CARD_FILE, card.render(run=run.resolve(), short=short, metric_text=metric_text, **description)
    )


def export_tier(
    model: FederatedLightningModule,
    datamodule: FederatedDataModule,
    files: TierFiles,
    tier: str,
    format: Format,
    path: Path | str,
) -> Exported:
    """Exports a tier's network and returns the file; the data must be set up on the supernet's device."""
    supernet, source = model.supernet, datamodule.source
    arch, network = load_tier_network(supernet, files, tier)
    _check_searched(supernet, files, tier, arch, network)
    network = network.to(next(supernet.parameters()).device)
    if normalises_over_batches(network):
        batches = model.recalibration_batches(datamodule.clients, RECALIBRATION_BATCHES)
        network = recalibrated(network, batches)
        log.info(
            "export: the norms used the statistics of each batch; in the file they have those of %d batches of the "
            "clients' training data, which model.evaluation.recalibrate_batches: %d tests",
            *(len(batches), RECALIBRATION_BATCHES),
        )
    cost = supernet.cost(arch)
    metadata = {
        **datamodule.inputs_record(),
        "class_names": list(datamodule.class_names),
        "tier": tier,
        "arch": str(arch),
        "macs": cost.macs,
        "parameters": cost.parameters,
        **_tested(network, model, datamodule),
        "lit_fednas_version": __version__,
    }
    raw = datamodule.raw_inputs(COMPARED, reload=True)
    if not torch.equal(raw, datamodule.raw_inputs(COMPARED)):
        raise DataError("data.source: inputs are not those of the files; restore these, or remove .lit_fednas_cache")
    return export_network(network, path, format, raw, source.normalization, metadata)


def _check_searched(supernet: Supernet, files: TierFiles, tier: str, arch: Any, network: nn.Module) -> None:
    """Validates that a tier's weights are the supernet's, except fine-tuned weights and recalibrated statistics."""
    model = files.tier_model(tier)
    tensors: dict[str, Tensor] = {} if model.finetuned else dict(network.named_parameters())
    if not model.finetuned and not model.recalibrated:
        tensors |= dict(network.named_buffers())
    views = supernet.views(arch)
    for name, tensor in tensors.items():
        if not torch.equal(tensor, views[name].cpu()):
            fault = f"{files.folder} was of other weights than the checkpoint's ({name} of {tier!r} differs)"
            remedy = f"search these with --search.name {files.free_name}, then add --name {files.free_name}"
            raise CheckpointError(f"name: {fault}; {remedy}")


def _tested(network: nn.Module, model: FederatedLightningModule, datamodule: FederatedDataModule) -> dict[str, Any]:
    """Returns the task's metrics on the test split, in float32."""
    if (batches := datamodule.server_batches("test")) is None:
        return {**{f"test_{name}": None for name in datamodule.task.metrics}, "test_examples": 0}
    evaluator = Evaluator(model.supernet, batches, EvaluationSettings(), task=datamodule.task)
    metrics = evaluator.metrics(network)
    return {**{f"test_{name}": value for name, value in metrics.items()}, "test_examples": evaluator.num_examples}


def export_network(
    network: nn.Module,
    path: Path | str,
    format: Format,
    examples: Tensor,
    normalize: Normalize | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Exported:
    """Exports a network in evaluation mode; returns the file if its outputs on the examples are equal."""
    _check_installed(format)
    raw, path, metadata = examples.cpu(), Path(path), dict(metadata or {})
    network = copy.deepcopy(network).cpu().eval()
    traced: nn.Module = copy.deepcopy(network).requires_grad_(False)
    if normalize is not None or raw.dtype == torch.uint8:
        traced = FromRaw(traced, normalize or Normalize([0.0], [1.0]), raw).eval()
    content, run = (_onnx if format == "onnx" else _torch)(_program(traced, raw), metadata)
    prepared = normalize or as_float
    difference, agreement = _compare(run, lambda inputs: network(prepared(inputs)), raw, format)
    with replacing(path) as file:
        file.write(content)
    return Exported(path, format, len(content), difference, agreement, len(raw), metadata)


def _check_installed(format: Format) -> None:
    missing = [name for name in PACKAGES[format] if find_spec(name) is None]
    if missing:
        raise ConfigError(f"export.format: {format} needs {', '.join(missing)}; pip install 'lit-fednas[export]'")


def _program(network: nn.Module, raw: Tensor) -> torch.export.ExportedProgram:
    """Traces the network with zeros, because the file keeps these inputs."""
    zeros = raw.new_zeros(2, *raw.shape[1:])
    program = torch.export.export(network, (zeros,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # the traces have paths of this machine
    return program


def _torch(
    program: torch.export.ExportedProgram, metadata: Mapping[str, Any]
) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    """Returns the content of a ``.pt2``, and a function that runs this content."""
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={"metadata.json": json.dumps(metadata)})
    return file.getvalue(), torch.export.load(file).module()


def _onnx(
    program: torch.export.ExportedProgram, metadata: Mapping[str, Any]
) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    """Returns validated ONNX with the weights inside, and a function that runs it in onnxruntime."""
    import onnx
    import onnxruntime

    names: dict[str, Any] = {"input_names": ["inputs"], "output_names": ["logits"]}
    program_file = torch.onnx.export(program, (), dynamo=True, verbose=False, dynamic_shapes=({0: "batch"},), **names)
    assert program_file is not None
    proto = program_file.model_proto
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    onnx.helper.set_model_props(proto, texts)
    onnx.checker.check_model(proto, full_check=True)
    content = proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # otherwise it pins threads to CPUs
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return content, lambda inputs: torch.from_numpy(session.run(["logits"], {"inputs": inputs.numpy()})[0])


@torch.no_grad()
def _compare(
    run: Callable[[Tensor], Tensor], network: Callable[[Tensor], Tensor], examples: Tensor, format: Format
) -> tuple[float, float]:
    """Returns the greatest difference of logits in any batch, and the agreement over all examples."""
    greatest, agreement = 0.0, 0.0
    for size in (*SIZES, len(examples)):
        expected = network(examples[:size])
        logits = run(examples[:size])
        difference = float((logits - expected).abs().max())
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        if not difference <= allowed:  # NaN does not agree
            fault = f"logits of {format} differ by {difference:.3g} in a batch of {size}, more than {allowed:.3g}"
            raise ConfigError(f"export.format: {fault}; nothing was written; try the other format")
        greatest = max(greatest, difference)
        agreement = float((logits.argmax(-1) == expected.argmax(-1)).float().mean())
    return greatest, agreement
