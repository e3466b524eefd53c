"""HeteroFL's aggregation of the classifier: row by row, by the classes that clients have (Diao et al., 2021).

Clients train with the logits of the classes that they have no examples of set to zero
(:class:`~lit_fednas.objectives.MaskedCrossEntropy`), so those rows of their classifiers say nothing. The server
leaves them out: a class's row becomes the mean over the clients that have the class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.aggregation.overlap import OverlapAverage, Trim
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClassesReport, ClientTask, ClientUpdate, RoundValues
from lit_fednas.supernets import Region, Supernet


class ClassAverage(OverlapAverage):
    """Overlap averaging in which a client counts in the classifier's rows of its own classes alone.

    All other tensors are averaged as by :class:`OverlapAverage`. Rows of classes that no client of the round has
    keep their old value. HeteroFL counts all clients alike, which is ``weighted=False``.

    Args:
        weighted: Whether a client counts by its examples n_k, or all count alike.
        classifier: The module of the clients' networks whose ``weight`` and ``bias`` have one row per class.
        trim: The share of an element's values that its mean leaves out at either end, as for
            :class:`OverlapAverage`.

    Raises:
        ConfigError: The networks have no such module, or the objective does not report the clients' classes
            (reported before training).
    """

    needs = (ClassesReport,)
    reads = ()

    def __init__(self, weighted: bool = True, classifier: str = "classifier", trim: Trim = 0.0) -> None:
        super().__init__(weighted, trim)
        self.classifier = classifier

    @override
    def check_supernet(self, supernet: Supernet) -> None:
        super().check_supernet(supernet)
        for arch in (supernet.space.smallest, supernet.space.largest):
            self._check(supernet, arch)

    @override
    def start(
        self, tasks: Sequence[ClientTask], values: RoundValues | None = None, by_architecture: bool = False
    ) -> None:
        for arch in {task.arch for task in tasks}:
            self._check(self._supernet, arch)
        super().start(tasks, values, by_architecture)

    @override
    def partially_covered(self, tasks: Sequence[ClientTask]) -> set[str]:
        classifier = {
            region.name
            for arch in {task.arch for task in tasks}
            for name, region in self._supernet.regions(arch).items()
            if self._has_rows(name)
        }
        return super().partially_covered(tasks) | classifier

    @override
    def contributions(self, update: ClientUpdate) -> Iterator[tuple[str, Region, Tensor]]:
        report = update.result.report(ClassesReport)
        assert report is not None
        classes = sorted(set(report.classes))
        if len(classes) == self._supernet.num_classes:
            yield from super().contributions(update)
            return
        rows = torch.tensor(classes, dtype=torch.int64, device="cpu")
        shared = self._supernet.shared_tensors()
        for name, region, value in super().contributions(update):
            if self._has_rows(name):
                yield name, _rows_of(region, rows, shared[region.name].shape), value[rows]
            else:
                yield name, region, value

    def _has_rows(self, name: str) -> bool:
        module, _, kind = name.rpartition(".")
        return module == self.classifier and kind in ("weight", "bias")

    def _check(self, supernet: Supernet, arch: Any) -> None:
        with_rows = [
            name for name, module in supernet.skeleton(arch).named_modules() if _rows(module) == supernet.num_classes
        ]
        if self.classifier not in with_rows:
            raise ConfigError(
                f"model.aggregation.classifier: {self.classifier!r} is not a module with a row for each of the "
                f"{supernet.num_classes} classes in the network of {arch}; "
                + (f"choose from {', '.join(with_rows)}" if with_rows else "it has none, use OverlapAverage")
            )


def _rows(module: nn.Module) -> int | None:
    """Returns the first dimension of a module's own weight."""
    weight = module._parameters.get("weight")
    return None if weight is None else weight.shape[0]


def _rows_of(region: Region, rows: Tensor, shape: Sequence[int]) -> Region:
    """Returns some rows of a region."""
    given = region.index or ()
    parts = [*given, *[slice(None)] * (len(shape) - len(given))]
    indices = [
        torch.arange(size, device="cpu")[part] if isinstance(part, slice) else part.flatten()
        for size, part in zip(shape, parts, strict=True)
    ]
    indices[0] = indices[0][rows]
    crossed = (index.view(-1, *[1] * (len(shape) - 1 - axis)) for axis, index in enumerate(indices))
    return Region(region.name, tuple(crossed))
