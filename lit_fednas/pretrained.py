"""A trained supernet as one folder, from which searches, tests and trainings start: ``lit-fednas export --supernet``.

``weights.ckpt`` has the shared weights alone (``torch.load(..., weights_only=True)["state_dict"]``), without what only
the run itself needs; ``config.yaml`` is the run's; ``supernet.json`` has the space, its costs, what inputs and outputs
are, and the networks of the tiers and of the front if the run was searched; ``README.md`` says the same as a card.
"""

from dataclasses import asdict
from pathlib import Path

import lightning
import yaml
from jinja2 import Template

from lit_fednas import __version__
from lit_fednas.config_files import read_yaml
from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.federation.checkpoints import copied
from lit_fednas.formatting import metric_text, short
from lit_fednas.records import ALL_TIERS, SearchFiles
from lit_fednas.records.files import read_json, replace_json, replace_saved, replace_text
from lit_fednas.records.run import CARD_FILE, LEDGER_FILE, SUPERNET_FILE, WEIGHTS_FILE


def write_pretrained(
    model: FederatedLightningModule, datamodule: FederatedDataModule, run: Path, search: SearchFiles, folder: Path
) -> None:
    """Writes a supernet with its weights, and what is needed to use them; shows the networks of a search of them."""
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
    supernet, space, ledger = model.supernet, model.supernet.space, read_json(run / LEDGER_FILE)
    ends = (("smallest", space.smallest), ("largest", space.largest))
    described = {
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
    replace_text(folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
    replace_json(folder / SUPERNET_FILE, described)
    replace_text(folder / CARD_FILE, card.render(run=run.resolve(), short=short, metric_text=metric_text, **described))
