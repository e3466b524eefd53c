"""A program of two ranks: runs every method and writes what each has come to. ``test_ranks`` reads it.

Lightning starts the second rank by running the same command again, so both go through the same runs in step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lit_fednas.callbacks import DeviceAverage, RoundCheckpoint
from lit_fednas.federation import FaultPolicy, FederatedCallback
from lit_fednas.objectives import CrossEntropy
from tests.federation import methods
from tests.support import make_trainer, weights


class Witness(FederatedCallback):
    """Notes, round by round, what the ranks must agree on, and of whom the callbacks were told."""

    def __init__(self) -> None:
        self.rounds: list[list[tuple[Any, ...]]] = []
        self.live: list[int] = []

    def on_client_end(self, trainer, module, result, update):
        self.live.append(result.task.client)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rounds.append([(r.task.client, str(r.task.arch), r.status, r.num_seen, r.loss) for r in batch.results])


def run(name: str, rounds: int = methods.ROUNDS, folder: Path | None = None, **settings: Any) -> dict[str, Any]:
    """One method's run: weights, results, validation; what each rank has of it."""
    module, witness = methods.METHODS[name](), Witness()
    callbacks: list[Any] = [witness, DeviceAverage()]
    callbacks += methods.callbacks(name)
    if folder is not None:
        callbacks.append(RoundCheckpoint(dirpath=str(folder)))
    ckpt_path = settings.pop("ckpt_path", None)
    evaluated = []
    update = module.val_metrics.update
    module.val_metrics.update = lambda place, *rest: evaluated.append(place) or update(place, *rest)
    trainer = make_trainer(rounds, callbacks=callbacks, enable_checkpointing=folder is not None, **settings)
    trainer.fit(module, datamodule=methods.data(name), ckpt_path=ckpt_path)
    return {
        "weights": weights(module),
        "rounds": witness.rounds,
        "told": sorted(witness.live),
        "evaluated": len(evaluated),
        "metrics": {key: float(value) for key, value in trainer.callback_metrics.items()},
        "assignment": module.assignment.state_dict(),
    }


class Broken(CrossEntropy):
    """Fails on the second rank alone."""

    def loss(self, network, inputs, targets):
        if distributed.get_rank() == 1:
            raise ArithmeticError("seven apples")
        return super().loss(network, inputs, targets)


class BrokenCallback(FederatedCallback):
    """Fails on the second rank alone, in its share of the cohort."""

    def on_client_end(self, trainer, module, result, update):
        if trainer.global_rank == 1:
            raise ArithmeticError("eight apples")


def errors(**settings: Any) -> list[str]:
    """What this rank raises if a client of the other fails, if its callback does, and if measuring fails there."""
    found = []
    faults = FaultPolicy(on_client_error="raise")
    for objective, callbacks, fast in (
        (Broken(), [], None),
        (CrossEntropy(), [BrokenCallback()], None),
        (Broken(), [], "auto"),
    ):
        module = methods.METHODS["aggregation overlap"]()
        module.objective, module.faults = objective, faults
        module.client = module.client.but(fast=fast)
        try:
            make_trainer(2, callbacks=callbacks, **settings).fit(module, datamodule=methods.data())
        except RuntimeError as error:
            found.append(f"{type(error).__name__}: {error}")
        except ArithmeticError as error:
            found.append(f"own: {error}")
    return found


def chosen(**settings: Any) -> Any:
    """What this rank trains with, where both have measured."""
    module = methods.METHODS["aggregation overlap"]()
    module.client = module.client.but(fast="auto")
    trainer = make_trainer(2, **settings)
    trainer.fit(module, datamodule=methods.data())
    return trainer.fit_loop.fastest, weights(module)


def main(output: Path, *names: str) -> None:
    two = {"strategy": "ddp", "devices": 2, "threads": 1}
    found = {name: run(name, **two) for name in names}
    name = names[0]
    run(name, rounds=1, folder=output / "stopped", **two)
    found["resumed"] = run(name, ckpt_path=str(output / "stopped" / "last.ckpt"), **two)
    found["errors"] = errors(**two)
    found["chosen"] = chosen(**two)
    torch.save(found, output / f"rank{distributed.get_rank()}.pt")
    distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
