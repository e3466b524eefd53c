"""A summary of the data as a run reads them, as an object and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lit_fednas.data.examples import sample_of
from lit_fednas.data.sources.base import SPLITS, Split
from lit_fednas.formatting import listing, text_table

if TYPE_CHECKING:
    from lit_fednas.data.datamodule import FederatedDataModule

#: Number of names that a list shows, and of classes that a table shows of more than ``SHOWN_CLASSES``.
FIRST, SHOWN_CLASSES = 20, 100


@dataclass(frozen=True)
class Overview:
    """A summary of the data as a run reads them; its ``str`` has a line per part, and a table of the classes.

    Attributes:
        parts: Texts by name: kinds of columns, inputs, task, splits with their omissions, clients, owners, copies.
        class_counts: The number of examples per class, int64 [classes], by split; without classes, all are counted.
        class_names: The names of the classes.
    """

    parts: Mapping[str, str]
    class_counts: Mapping[Split, np.ndarray]
    class_names: Sequence[str]

    @classmethod
    def of(cls, data: FederatedDataModule) -> Overview:
        """Reads all splits, deals out the training examples, and returns the summary."""
        data.prepare_data()
        data.setup("fit")
        data._reader("test")
        readers, source = data._readers, data.source
        parts = {"source": type(source).__name__}
        parts.update({kind: _shortened(names) for kind, names in source.kinds.items() if names})
        columns = {name: np.asarray(column) for name, column in readers["train"].dataset.columns.items()}
        groups = [f"{name} ({len(np.unique(column)):,} values)" for name, column in columns.items()]
        parts["groups"] = ", ".join(groups) or "none"
        raw, normalized = sample_of(readers["train"].dataset), ", normalized" * (source.normalization is not None)
        kind = f"{str(raw.dtype).removeprefix('torch.')} {list(data.input_shape)}"
        parts["inputs"] = f"{kind}, from {raw.min():g} to {raw.max():g}{normalized}"
        parts["task"] = f"{type(data.task).__name__}, {data.task.num_outputs:,} outputs"
        parts.update({split: source.read_text(split, len(readers[split])) for split in SPLITS if split in readers})
        if num_held_out := len(readers["train"]) - len(data.targets):
            parts["val"] = f"{num_held_out:,} of train, held by the server"
        sizes = data.partition.sizes
        smallest, median, largest = np.quantile(sizes, [0, 0.5, 1])
        parts["clients"] = f"{len(sizes):,}, of {smallest:,.0f} to {largest:,.0f} examples, median {median:,g}"
        if owners := data.owners:
            parts["owners"] = _shortened(owners)
        parts["copies"] = "not counted" if data.copies is None else data.copies or "none"
        strata = {split: data.task.strata(reader.targets).cpu().numpy() for split, reader in readers.items()}
        counts = {split: np.bincount(strata[split], minlength=len(data.strata)) for split in SPLITS if split in strata}
        return cls(parts, counts, data.strata)

    def __str__(self) -> str:
        totals = self.class_counts["train"]
        order = np.argsort(-totals, kind="stable")[: FIRST if len(totals) > SHOWN_CLASSES else None]
        rows = [
            [self.class_names[k], *(f"{counts[k]:,}" for counts in self.class_counts.values())] for k in sorted(order)
        ]
        rows += [["...", *[""] * len(self.class_counts)]] * (len(order) < len(totals))
        return f"{listing(self.parts)}\n\n{text_table(['class', *self.class_counts], rows)}"


def _shortened(names: Sequence[str]) -> str:
    rest = f", ... ({len(names):,} in all)" if len(names) > FIRST else ""
    return ", ".join(map(str, names[:FIRST])) + rest
