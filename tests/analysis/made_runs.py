"""Runs written by hand, for tables whose values can be worked out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.tables import validations
from lit_fednas.records import append_round
from lit_fednas.records.measures import reaches


def made_run(
    folder: Path,
    accuracies: Mapping[str, Sequence[float | None]],
    macs: int | None = 100,
    seed: int | None = None,
    subnets: Mapping[str, int] | None = None,
) -> Run:
    """A run whose two clients spend ``macs`` in each round, and 10 bytes down and 4 up for every one of these.

    Args:
        folder: Where.
        accuracies: Each metric's value in each round; ``None`` where it was not validated.
        macs: Of both clients, in each round; ``None`` if the run counts nothing.
        seed: In its configuration.
        subnets: The MACs of the evaluated subnets.
    """
    folder.mkdir(parents=True)
    for number in range(len(next(iter(accuracies.values())))):
        metrics = {name: values[number] for name, values in accuracies.items() if values[number] is not None}
        costs = {} if macs is None else {"macs": macs // 2, "bytes_down": 5 * macs, "bytes_up": 2 * macs}
        clients = [{"client": client, "status": "ok", **costs} for client in (0, 1)]
        append_round(folder, {"round": number, "metrics": {"clients/loss": 1.0, **metrics}, "clients": clients})
    if seed is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump({"seed_everything": seed}))
    if subnets is not None:
        rows = [f"{name},{name},val,0.5,1.0,{cost},1,4" for name, cost in subnets.items()]
        lines = ["subnet,arch,split,accuracy,loss,macs,parameters,bytes", *rows]
        (folder / "subnets-val.csv").write_text("\n".join(lines) + "\n")
    return Run(folder)


def rounds_to_target(run: Run, metric: str, target: float) -> int | None:
    """After how many rounds a run's records first have a metric at a target; none where they never do."""
    table = validations(run, [metric])
    reached = table["rounds"][[reaches(value, target) for value in table[metric]]]
    return None if reached.empty else int(reached.iloc[0])
