"""A program of two ranks: runs methods and writes what each rank has come to. ``test_ranks`` reads it.

The second rank is forked from the first, so that what both need is imported once; both go through the same runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lit_fednas.federation import FaultPolicy, FederatedCallback
from lit_fednas.federation.fast import fastest
from lit_fednas.objectives import CrossEntropy
from tests.federation import methods
from tests.federation.runs import LAST, run
from tests.support import make_module, make_trainer, weights

TWO = {"strategy": "ddp", "devices": 2, "threads": 1}


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


def errors() -> list[str]:
    """What this rank raises if a client of the other fails, if its callback does, and if measuring fails there."""
    found = []
    for objective, callbacks, fast in (
        (Broken(), [], None),
        (CrossEntropy(), [BrokenCallback()], None),
        (Broken(), [], "auto"),
    ):
        module = make_module(objective=objective, faults=FaultPolicy(on_client_error="raise"))
        module.client = module.client.but(fast=fast)
        try:
            make_trainer(1, callbacks=callbacks, **TWO).fit(module, datamodule=methods.image_data())
        except RuntimeError as error:
            found.append(f"{type(error).__name__}: {error}")
        except ArithmeticError as error:
            found.append(f"own: {error}")
    return found


def chosen() -> Any:
    """What this rank trains with, where both have measured."""
    module = make_module()
    module.client = module.client.but(fast="auto")
    trainer = make_trainer(1, **TWO)
    trainer.fit(module, datamodule=methods.image_data())
    return trainer.fit_loop.fastest, weights(module)


def main(output: Path, *names: str) -> None:
    found: dict[str, Any] = {name: run(name, output / name, **TWO) for name in names}
    name = names[0]
    run(name, output / "stopped", rounds=1, **TWO)
    found["resumed"] = run(name, output / "stopped", ckpt_path=output / "stopped" / LAST, **TWO)
    found["errors"] = errors()
    found["chosen"] = chosen()
    torch.save(found, output / f"rank{distributed.get_rank()}.pt")
    distributed.barrier()


if __name__ == "__main__":
    fastest._TURN, fastest._TURNS = 0.01, (1, 1)
    child = os.fork()
    os.environ["LOCAL_RANK"] = "0" if child else "1"
    main(Path(sys.argv[1]), *sys.argv[2:])
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
