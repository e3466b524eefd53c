"""The metrics that a fit logs, whether higher is better, and callbacks that follow one of them."""

from collections.abc import Mapping
from typing import Any

from torchmetrics import Metric

from lit_fednas.data import Task
from lit_fednas.errors import ConfigError, did_you_mean
from lit_fednas.federation.evaluation import directions_of_metrics

#: Whether higher is better, by name or by its first word, of what is not named after a metric.
_DIRECTIONS = {"clients/used": True, "clients/failed": False, "clients/wild": False, "deployed/iqr": False}
_DIRECTIONS |= dict.fromkeys(("cost", "time", "privacy/epsilon"), False)
_PACKAGES = ("lit_fednas", "lightning", "pytorch_lightning")


def higher_is_better(name: str, task: Task, added: Mapping[str, Metric]) -> bool | None:
    """Returns whether higher is better of a logged metric; ``None`` where that is not known."""
    directions = directions_of_metrics(task, added)
    if name == "deployed/worst":
        return directions[task.metric]
    known = (key for key in (name, name.partition("/")[0]) if key in _DIRECTIONS)
    return next((_DIRECTIONS[key] for key in known), directions.get(name.rpartition("/")[2]))


def logged_metrics(trainer: Any, module: Any) -> list[str]:
    """Returns the names of what a fit logs at every validation, or in every round."""
    validates = trainer.limit_val_batches and len(trainer.datamodule.val_dataloader())
    names = list(module.validation_metrics) if validates else []
    for callback in trainer.callbacks:
        names += getattr(callback, "metric_names", ())
    names += [f"clients/{module.task.metric}"] if module.client.validate else []
    names += ["clients/wild"] if module.faults.norm_bound is not None else []
    return [*names, *(f"clients/{name}" for name in ("loss", "used", "failed", "lr"))]


def check_monitors(trainer: Any, module: Any) -> None:
    """Validates of Lightning's callbacks that follow a metric that it is logged, and that they keep the best."""
    parts = (module, *trainer.callbacks)
    others = [part for part in parts if type(part).__module__.partition(".")[0] not in _PACKAGES]
    announced = all(getattr(part, "metric_names", ()) for part in others)  # a user's may log what they do not announce
    for callback in trainer.callbacks:
        name, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if not isinstance(name, str):
            continue
        own, kind = getattr(callback, "field", None), type(callback).__name__
        field = f"trainer.callbacks: {kind}" if own is None else own
        if announced and name not in (names := logged_metrics(trainer, module)):
            near = did_you_mean(name, names)
            raise ConfigError(f"{field}.monitor: {name!r} will not be logged{near}; choose from {', '.join(names)}")
        higher = higher_is_better(name, module.task, module.metrics)
        if higher is None and getattr(callback, "finds_mode", False):
            raise ConfigError(f"{field}.mode: is null, and {name!r} does not say what is better; set it to min or max")
        if own is None and higher is not None and mode in ("min", "max") and mode != ("max" if higher else "min"):
            raise ConfigError(
                f"{field}.mode: {mode} (min is Lightning's default) takes the worst {name} for the best; set mode to "
                f"{'max' if higher else 'min'}"
            )
