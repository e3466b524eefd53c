"""Short runs of every published method through the command line, and what they left behind in figures and digests.

Figures (losses and accuracies per round) are about the same on all machines and are kept in ``golden.json``;
``test_golden`` says how far they may be off. Digests hold every bit and are the same on one machine alone: they
tell whether a change that should change nothing did.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import torch

from lit_fednas.cli import main
from lit_fednas.records import read_rounds

CONFIGS = Path(__file__).parents[2] / "configs"
OVERLAYS = Path(__file__).parent
GOLDEN = OVERLAYS / "golden.json"

#: Of each run the configuration, an overlay that is beside this file (if there is one), and the commands.
RUNS: dict[str, tuple[str, list[list[str]]]] = {
    "superfed": (
        "superfed/digits.yaml",
        [["fit"], ["search", "@search/digits.yaml", "--search.evaluations=12"], ["test", "--ckpt_path=last"]],
    ),
    "fedoras": (
        "fedoras/digits.yaml",
        [
            ["fit"],
            ["search", "--search.evaluations=12"],
            ["finetune", "@fedoras/finetune/digits.yaml", "--finetune.rounds=2"],
        ],
    ),
    "fedhen": ("fedhen/digits.yaml", [["fit"]]),
    "heterofl": ("width/digits.yaml", [["fit"]]),
    "fjord": ("width/digits.yaml", [["fit"]]),
    "fedrolex": ("width/digits.yaml", [["fit"]]),
    "splitmix": ("width/digits.yaml", [["fit"]]),
    "fluid": ("width/digits.yaml", [["fit"]]),
    "separate": ("width/digits.yaml", [["fit"]]),
    "fedtrans": ("fedtrans/digits.yaml", [["fit"], ["test", "--ckpt_path=last"]]),
    "fednas": ("fednas/digits.yaml", [["fit"], ["search", "@search/digits.yaml", "--search.evaluations=4"]]),
}


def run(name: str, folder: Path) -> Path:
    """Trains a run in a folder and returns the run's own."""
    config, commands = RUNS[name]
    files = ["--config", str(CONFIGS / config)]
    if (OVERLAYS / f"{name}.yaml").exists():
        files += ["--config", str(OVERLAYS / f"{name}.yaml")]
    with chdir(folder), one_thread():
        for command, *rest in commands:
            words = [word for part in rest for word in _words(part)]
            assert main([command, *files, *words]) == 0, (name, command)
    (found,) = folder.glob("runs/*/version_0")
    return found


def _words(part: str) -> list[str]:
    return ["--config", str(CONFIGS / part[1:])] if part.startswith("@") else part.split("=", 1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of several threads are in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def figures(folder: Path) -> dict[str, Any]:
    """Losses and accuracies per round, architectures, costs, and what search and fine-tuning found."""
    found: dict[str, Any] = {"rounds": []}
    for record in read_rounds(folder):
        metrics = {
            name: round(value, 4)
            for name, value in record["metrics"].items()
            if name.endswith(("loss", "accuracy")) and value is not None
        }
        clients = [f"{one['client']}: {one['arch']} {one['status']} {one['macs']}" for one in record["clients"]]
        found["rounds"].append({"metrics": metrics, "clients": _digest("\n".join(clients).encode())})
    found["total"] = json.loads((folder / "ledger.json").read_text())["total"]
    for kind in ("search", "finetune"):
        if (folder / kind / "tiers.csv").exists():
            with open(folder / kind / "tiers.csv", newline="") as file:
                found[kind] = [
                    {key: value for key, value in row.items() if "accuracy" in key and value}
                    for row in csv.DictReader(file)
                ]
    return found


def digests(folder: Path) -> dict[str, str]:
    """Of the weights and of every record, without what a clock says."""
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")["state_dict"]
    tensors = sorted(_digest(t.contiguous().flatten().view(torch.uint8).numpy().tobytes()) for t in state.values())
    found = {"weights": _digest("".join(tensors).encode())}
    records = list(read_rounds(folder))
    for record in records:
        for client in record["clients"]:
            del client["seconds"]
    found["rounds.jsonl"] = _digest(json.dumps(records, sort_keys=True).encode())
    others = ["ledger.json", "suite.json", "sequence.json", "clients.csv", "subnets-val.csv"]
    others += [f"search/{name}.csv" for name in ("evaluations", "front", "history", "tiers", "clients")]
    others += ["finetune/tiers.csv", "finetune/candidates.csv", "subnets-test.csv"]
    for name in others:
        if (folder / name).exists():
            found[name] = _digest(_without_seconds(folder / name))
    for weights in sorted(folder.glob("*/tiers/*/weights.pt")):
        state = torch.load(weights, weights_only=True)
        parts = [_digest(t.contiguous().flatten().view(torch.uint8).numpy().tobytes()) for t in state.values()]
        found[str(weights.relative_to(folder))] = _digest("".join(sorted(parts)).encode())
    return found


def _without_seconds(path: Path) -> bytes:
    if path.suffix != ".csv":
        return path.read_bytes()
    with open(path, newline="") as file:
        rows = [{name: cell for name, cell in row.items() if name != "seconds"} for row in csv.DictReader(file)]
    return json.dumps(rows).encode()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
