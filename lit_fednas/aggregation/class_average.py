"""HeteroFL's average of the classifier's rows over the clients that send the row's class (Diao et al., 2021)."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.aggregation.overlap import OverlapAverage, Trim
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClassStatistics, ClientTask, ClientUpdate
from lit_fednas.supernets import Region, Supernet


class ClassAverage(OverlapAverage):
    """Overlap averaging in which a client counts only in the classifier's rows of its own classes (HeteroFL).

    Clients train with the other logits at zero (:class:`~lit_fednas.objectives.MaskedCrossEntropy`), so the other rows
    carry no information. Rows of classes that no client has keep their value. HeteroFL uses ``weighted=False``.

    Args:
        weighted: Whether clients are weighted by their number of examples n_k; if not, all have equal weight.
        classifier: Name of the module with one row of ``weight`` and ``bias`` per class.
        trim: The share of values that a mean leaves out at either end (:class:`OverlapAverage`).

    Raises:
        ConfigError: The networks have no such module, or the objective does not return the clients' classes.
    """

    needs = (ClassStatistics,)

    def __init__(self, weighted: bool = True, classifier: str = "classifier", trim: Trim = 0.0) -> None:
        super().__init__(weighted, trim)
        self.classifier = classifier

    @override
    def check_supernet(self, supernet: Supernet) -> None:
        super().check_supernet(supernet)
        for arch in (supernet.space.smallest, supernet.space.largest):
            modules = supernet.skeleton(arch).named_modules()
            candidates = [name for name, module in modules if _rows(module) == supernet.num_classes]
            if self.classifier not in candidates:
                remedy = (
                    f"choose from {', '.join(candidates)}"
                    if candidates
                    else "use OverlapAverage, no module has such rows"
                )
                raise ConfigError(
                    f"model.aggregation.classifier: {self.classifier!r} is not a module with a row for each of the "
                    f"{supernet.num_classes} classes in the network of {arch}; {remedy}"
                )

    @override
    def partially_covered(self, tasks: Sequence[ClientTask]) -> set[str]:
        classifier_tensors = {
            region.name
            for arch in {task.arch for task in tasks}
            for name, region in self._supernet.regions(arch).items()
            if self._has_rows(name)
        }
        return super().partially_covered(tasks) | classifier_tensors

    @override
    def contributions(self, update: ClientUpdate) -> Iterator[tuple[str, Region, Tensor]]:
        statistics = update.result.find(ClassStatistics)
        assert statistics is not None
        classes = sorted(set(statistics.classes))
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


def _rows(module: nn.Module) -> int | None:
    """Returns the first dimension of a module's ``weight``, or ``None`` if it has no such parameter."""
    weight = module._parameters.get("weight")
    return None if weight is None else weight.shape[0]


def _rows_of(region: Region, rows: Tensor, shape: Sequence[int]) -> Region:
    """Returns the given rows of a region."""
    index = region.index or ()
    full_index = [*index, *[slice(None)] * (len(shape) - len(index))]
    positions = [torch.arange(size, device="cpu")[part].flatten() for part, size in zip(full_index, shape, strict=True)]
    positions[0] = positions[0][rows]
    return Region(region.name, tuple(map(torch.from_numpy, np.ix_(*positions))))
