"""Validations before training: the data fit the supernet and the metrics, and callbacks monitor logged metrics."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torchmetrics import Metric

from lit_fednas.data import Task
from lit_fednas.errors import ConfigError, FedNASError, did_you_mean, in_one_line
from lit_fednas.federation.evaluation import counted_batch, directions_of_metrics
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.families import tensors_of

_TWO = 2  # examples of a dry run
#: Whether higher is better for figures that are not named after a metric, by name or by its first word.
_DIRECTIONS = {"clients/used": True, "clients/failed": False, "clients/wild": False, "deployed/iqr": False}
_DIRECTIONS |= dict.fromkeys(("cost", "time", "privacy/epsilon"), False)
_PACKAGES = ("lit_fednas", "lightning", "pytorch_lightning")


def check_data(supernet: Supernet, data: Any, metrics: Mapping[str, Metric]) -> None:
    """Validates that networks read the data's examples and return outputs of the task's shape, and that metrics fit."""
    name = type(supernet).__name__
    for setting, required in (("input_shape", tuple(data.input_shape)), ("num_classes", data.num_classes)):
        if (value := getattr(supernet, setting)) != required:
            raise ConfigError(f"model.supernet.{setting}: {value} does not match the data's; give {required}")
    if data.input_dtype != supernet.input_dtype:
        raise ConfigError(
            f"model.supernet: {name} reads {supernet.input_dtype}, and the data are {data.input_dtype}; "
            f"choose another network"
        )
    try:
        shape = output_shape(supernet, supernet.space.smallest)
    except RuntimeError as error:
        raise _unreadable(supernet, supernet.space.smallest, error) from error
    required_shape = task_output_shape(data.task, supernet.input_shape)
    if shape != required_shape:
        raise ConfigError(
            f"model.supernet: {name} returns {list(shape)} of an example, and the data's task "
            f"{type(data.task).__name__} needs {list(required_shape)}; choose another network, or a setting such as "
            f"supernet.pooled"
        )
    for token in data.token_range() or ():
        _check_token(supernet, token)
    check_metrics(metrics, data.task, supernet.input_shape)


@torch.no_grad()
def check_architectures(supernet: Supernet, archs: Iterable[Any]) -> None:
    """Validates that each tensor of some architectures has a region of its shape and type, and computes their costs."""
    shared = supernet.shared_tensors()
    for arch in archs:
        field, part = f"model.supernet: {type(supernet).__name__}'s network {arch}", "build or index"
        try:
            built, regions = tensors_of(supernet.skeleton(arch)), supernet.regions(arch)
            for part in sorted(built.keys() | regions.keys()):
                pair = built[part], regions[part].of(shared[regions[part].name])
                in_build, in_index = (f"{list(tensor.shape)} ({tensor.dtype})" for tensor in pair)
                if in_build != in_index:
                    fault = f"{part} is {in_build} in build, and {in_index} in index"
                    raise ConfigError(f"{field}: {fault}; correct one of them")
            part = "cost"
            supernet.cost(arch)
        except Exception as error:
            if isinstance(error, FedNASError) and part == "cost":
                continue  # a part that needs the costs raises this error itself
            if isinstance(error, FedNASError | MemoryError) or "allocate" in str(error):
                raise
            if isinstance(error, RuntimeError) and part == "cost":
                raise _unreadable(supernet, arch, error) from error
            raise ConfigError(f"{field}: {part}: {in_one_line(error)}; correct build, index or cost") from error


def _unreadable(supernet: Supernet, arch: Any, error: RuntimeError) -> RuntimeError | ConfigError:
    """Returns the error of a network that cannot run an example; returns ``error`` itself if memory ran out."""
    name, shape = type(supernet).__name__, list(supernet.input_shape)
    reason = f"{name}'s network {arch} cannot read an example of {shape} ({error}); build it from self.input_shape"
    return error if "allocate" in str(error) else ConfigError(f"model.supernet: {reason}")


@torch.no_grad()
def _check_token(supernet: Supernet, token: int) -> None:
    """Validates that networks read a token; on the CPU, because a failure on a GPU would end the process."""
    network = supernet.subnet(supernet.space.smallest).cpu().eval()
    try:
        network(torch.full((_TWO, *supernet.input_shape), token, dtype=supernet.input_dtype))
    except (IndexError, RuntimeError) as error:
        raise ConfigError(
            f"data.source: the token {token} is not in the vocabulary of model.supernet {type(supernet).__name__}; "
            f"number tokens from 0 on, or give the task as many classes as there are tokens"
        ) from error


@torch.no_grad()
def output_shape(supernet: Supernet, arch: Any) -> tuple[int, ...]:
    """Returns the shape of an architecture's output for one example, from a dry run."""
    parameter = next(supernet.parameters())
    dtype = parameter.dtype if supernet.input_dtype.is_floating_point else supernet.input_dtype
    inputs = torch.zeros(_TWO, *supernet.input_shape, dtype=dtype, device=parameter.device)
    return tuple(supernet.run(arch, supernet.views(arch), inputs).shape[1:])


def task_output_shape(task: Task, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of one example's output that a task needs."""
    targets = task.example_targets(_TWO, input_shape, torch.device("meta")).shape[1:]
    return (*targets, task.num_outputs) if task.has_classes else tuple(targets)


def check_metrics(metrics: Mapping[str, Metric], task: Task, input_shape: tuple[int, ...]) -> None:
    """Validates by a dry run that metrics accept a task's outputs and targets."""
    outputs = torch.zeros(_TWO, *task_output_shape(task, input_shape))
    batch = counted_batch(task, outputs, task.example_targets(_TWO, input_shape, outputs.device))
    for name, metric in metrics.items():
        try:
            copy.deepcopy(metric).cpu().update(*batch)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            shapes = " and targets ".join(str(list(tensor.shape)) for tensor in batch)
            raise ConfigError(
                f"model.metrics.{name}: {type(metric).__name__} cannot be computed from outputs {shapes} ({reason}); "
                f"choose one for {type(task).__name__}, or change its settings"
            ) from error


def higher_is_better(name: str, task: Task, added: Mapping[str, Metric]) -> bool | None:
    """Returns whether a higher value of a logged metric is better; ``None`` if this is unknown."""
    directions = directions_of_metrics(task, added)
    if name == "deployed/worst":
        return directions[task.metric]
    keys = (key for key in (name, name.partition("/")[0]) if key in _DIRECTIONS)
    return next((_DIRECTIONS[key] for key in keys), directions.get(name.rpartition("/")[2]))


def logged_metrics(trainer: Any, module: Any) -> list[str]:
    """Returns the names of the metrics that a fit logs in every round or at every validation."""
    validates = trainer.limit_val_batches and len(trainer.datamodule.val_dataloader())
    names = list(module.validation_metrics) if validates else []
    for callback in trainer.callbacks:
        names += getattr(callback, "metric_names", ())
    names += [f"clients/{module.task.metric}"] if module.client.validate else []
    names += ["clients/wild"] if module.faults.norm_bound is not None else []
    return [*names, *(f"clients/{name}" for name in ("loss", "used", "failed", "lr"))]


def check_monitors(trainer: Any, module: Any) -> None:
    """Validates that each callback with a ``monitor`` follows a logged metric, with the metric's direction."""
    parts = (module, *trainer.callbacks)
    user_parts = [part for part in parts if type(part).__module__.partition(".")[0] not in _PACKAGES]
    # a user's part without metric names may log any metric, so that a missing name proves nothing
    all_announced = all(getattr(part, "metric_names", ()) for part in user_parts)
    for callback in trainer.callbacks:
        name, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if not isinstance(name, str):
            continue
        part_field, kind = getattr(callback, "field", None), type(callback).__name__
        field = f"trainer.callbacks: {kind}" if part_field is None else part_field
        if all_announced and name not in (names := logged_metrics(trainer, module)):
            hint = did_you_mean(name, names)
            raise ConfigError(f"{field}.monitor: {name!r} will not be logged{hint}; choose from {', '.join(names)}")
        higher = higher_is_better(name, module.task, module.metrics)
        if higher is None and getattr(callback, "_derives_mode", False):
            raise ConfigError(f"{field}.mode: null is undefined for {name!r}, which has no direction; set min or max")
        best_mode = "max" if higher else "min"
        if part_field is None and higher is not None and mode in ("min", "max") and mode != best_mode:
            raise ConfigError(
                f"{field}.mode: {mode} (min is Lightning's default) keeps the worst {name}; set mode to {best_mode}"
            )
