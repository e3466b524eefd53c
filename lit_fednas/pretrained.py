"""A trained supernet as one folder, from which searches, tests and trainings start: ``lit-fednas export --supernet``.

``weights.ckpt`` has the shared weights alone (``torch.load(..., weights_only=True)["state_dict"]``), without what only
the run itself needs; ``config.yaml`` is the run's; ``supernet.json`` has the space, its costs, what inputs and outputs
are, and the networks of the tiers and of the front if the run was searched; ``README.md`` says the same as a card.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning
import yaml

from lit_fednas import __version__
from lit_fednas.config_files import read_yaml
from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.federation.checkpoints import copied
from lit_fednas.formatting import cost_text, metric_text, scale_of, short, text_table
from lit_fednas.records import ALL_TIERS, SearchFiles
from lit_fednas.records.files import check_output, read_json, replace_json, replace_saved, replace_text
from lit_fednas.records.run import CARD_FILE, LEDGER_FILE, PRETRAINED_FILES, SUPERNET_FILE, WEIGHTS_FILE

_COSTS = ("macs", "parameters", "bytes")
_MOST_CLASSES = 20  # named in a card
_CARD = """\
---
library_name: lit-fednas
tags: [federated-learning, neural-architecture-search, weight-sharing, pytorch-lightning]
---

# {name}

The weights of one `{supernet}` that {size:,} networks share, trained federatedly with lit_fednas {version}.

{facts}
{tables}
## Use

```
lit-fednas search --config FOLDER/config.yaml --config TIERS.yaml --ckpt_path FOLDER   # the best network of each tier
lit-fednas export --config FOLDER/config.yaml --ckpt_path FOLDER --tier TIER           # as a file of its own
lit-fednas fit --config FOLDER/config.yaml --model.initial FOLDER                      # train on from these weights
```

FOLDER is this folder. `config.yaml` names the classes that are imported and the data that are read: look at it before
you use it, and give data of your own (of the same shape and number of classes) with a further `--config`.
"""


def write_pretrained(
    model: FederatedLightningModule,
    datamodule: FederatedDataModule,
    run: Path,
    search: SearchFiles,
    folder: Path,
    overwrite: bool = False,
) -> Path:
    """Writes a supernet with its weights, and all that is needed to use them.

    Args:
        model: The module, with the weights of a checkpoint.
        datamodule: The data, set up.
        run: The run's folder, for its configuration and what training has cost.
        search: A search of these weights, whose networks the card shows, if it exists.
        folder: Where to write.
        overwrite: Whether to replace files that this package has not written.

    Returns:
        The folder.

    Raises:
        ConfigError: The run has no configuration, or the folder cannot be written.
    """
    check_output(*(folder / name for name in PRETRAINED_FILES), overwrite=overwrite)
    if not (run / "config.yaml").exists():
        raise ConfigError(f"export.supernet: {run}/config.yaml does not exist; export a run of lit-fednas fit")
    settings = read_yaml(run / "config.yaml")
    settings["model"]["initial"] = None  # the file may not exist elsewhere
    if privacy := settings.get("privacy"):
        privacy.get("init_args", privacy)["noise_seed"] = None  # by which the noise could be subtracted
    content = {
        "pytorch-lightning_version": lightning.__version__,
        "state_dict": copied(model.state_dict()),
        "federation": {**model.weights_record(), "assignment": {}},  # the states of parts may be of clients
    }
    described = _described(model, datamodule, run, search)
    replace_saved(folder / WEIGHTS_FILE, content)
    replace_text(folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
    replace_json(folder / SUPERNET_FILE, described)
    name = "/".join(run.resolve().parts[-2:])
    replace_text(
        folder / CARD_FILE, _card(name, described, type(datamodule.source).__name__, datamodule.clients.num_clients)
    )
    return folder


def _described(
    model: FederatedLightningModule, datamodule: FederatedDataModule, run: Path, search: SearchFiles
) -> dict[str, Any]:
    """Returns the content of ``supernet.json``."""
    supernet, space = model.supernet, model.supernet.space
    ledger, settings = read_json(run / LEDGER_FILE), search.settings()
    ends = {name: getattr(space, name) for name in ("smallest", "largest")}
    columns = {"tier", "arch", *_COSTS}
    tables = {
        table: [
            {name: value for name, value in row.items() if name in columns or name.startswith(("val_", "test_"))}
            | ({f"val_{settings['metric']}": row[settings["metric"]]} if table == "front" else {})
            for row in search.rows(table)
            if table == "tiers" or row["tier"] == ALL_TIERS
        ]
        for table in (("tiers", "front") if settings else ())
    }
    return {
        "lit_fednas_version": __version__,
        "supernet": type(supernet).__name__,
        **datamodule.inputs_record(),
        "space": {"size": space.size, "choices": [[str(value) for value in values] for values in space.choices]},
        "costs": {name: {"arch": str(arch), **asdict(supernet.cost(arch))} for name, arch in ends.items()},
        "training": {"rounds": ledger.get("rounds"), **(ledger.get("total") or {})},
        "metric": settings.get("metric"),
        **tables,
    }


def _card(name: str, described: Mapping[str, Any], source: str, num_clients: int) -> str:
    """Returns the text of the card."""
    names, training, mean = described["class_names"], described["training"], described["mean"]
    scaled = f", normalised by the means {mean} and deviations {described['std']}" if mean else ""
    facts = {
        "data": f"`{source}` of {num_clients:,} clients",
        "inputs": f"{described['input_type']} of {described['input_shape']}{scaled}",
        "task": f"{described['task']}: {', '.join(names[:_MOST_CLASSES])}{', ...' if names[_MOST_CLASSES:] else ''}",
    }
    if training["rounds"] is not None:
        sent = short(training["bytes_down"] + training["bytes_up"], "B")
        facts["training"] = f"{training['rounds']:,} rounds, {short(training['macs'])} MACs, {sent} sent"
    for end, costs in described["costs"].items():
        texts = f"{cost_text('macs', costs['macs'])} MACs, {cost_text('parameters', costs['parameters'])} parameters"
        facts[f"{end} network"] = f"{texts}, {cost_text('bytes', costs['bytes'])}"
    tables = ""
    for title, table, splits in (("Device tiers", "tiers", ("val", "test")), ("Front", "front", ("val",))):
        if rows := described.get(table):
            columns = ["tier", "arch"] if table == "tiers" else ["arch"]
            tables += f"\n## {title}\n\n{_table(rows, columns, splits, described['metric'])}\n"
    version, size = described["lit_fednas_version"], described["space"]["size"]
    table = text_table(["", ""], list(facts.items()), 2, markdown=True)
    supernet = described["supernet"]
    return _CARD.format(name=name, supernet=supernet, size=size, version=version, facts=table, tables=tables)


def _table(rows: Sequence[Mapping[str, Any]], columns: list[str], splits: Sequence[str], metric: str) -> str:
    head = [*columns, "MACs", "parameters", "bytes", *(f"{split} {metric}{scale_of(metric)[1]}" for split in splits)]
    body = [
        [
            *(str(row[name]) for name in columns),
            *(cost_text(name, row[name]) for name in _COSTS),
            *(metric_text(metric, row.get(f"{split}_{metric}")) for split in splits),
        ]
        for row in rows
    ]
    return text_table(head, body, len(columns), markdown=True)
