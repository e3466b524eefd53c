"""Small runs for tests: a dozen clients, a network of a few thousand weights, fractions of a second."""

from __future__ import annotations

import atexit
import inspect
import multiprocessing
import os
import pkgutil
import re
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_fednas.aggregation import Aggregation, OverlapAverage
from lit_fednas.assignment import Assignment, FixedArchitecture
from lit_fednas.data import IID, ArraySource, Classification, Digits, FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.federation import (
    ClientSettings,
    CohortSampler,
    EvaluationSettings,
    FederatedCallback,
    FederatedLightningModule,
    FederatedTrainer,
    UniformCohort,
)
from lit_fednas.supernets import ElasticResNet, PlainNetwork, Supernet
from lit_fednas.testing.networks import tiny_examples

#: What objectives that read no data need of the clients' data.
NO_DATA: Any = SimpleNamespace(task=Classification(4))

#: Where runs without a folder of their own write what callbacks write.
_ANYWHERE = TemporaryDirectory(prefix="lit-fednas-tests-")

#: What makes any configuration small.
SMALL = {
    "trainer": {
        "max_rounds": 2,
        "check_val_every_n_rounds": 1,
        "accelerator": "cpu",
        "logger": {"class_path": "lit_fednas.loggers.RunLogger", "init_args": {"save_dir": "runs", "name": "digits"}},
    },
    "model": {
        "supernet": {
            "class_path": "lit_fednas.supernets.ElasticResNet",
            "init_args": {"stem_width": 4, "stage_widths": [8, 8, 8, 8], "divisor": 2},
        },
        "cohort": {"class_path": "lit_fednas.federation.UniformCohort", "init_args": {"ratio": 0.2}},
    },
}


def tiny_data(num_clients: int = 6, **settings: Any) -> FederatedDataModule:
    source = ArraySource(tiny_examples(), val=tiny_examples(40, 1), test=tiny_examples(40, 2))
    settings = {"partitioner": IID(), "seed": 0, **settings}
    return FederatedDataModule(source, num_clients=num_clients, **settings)


def seeded(make: Callable[..., Any], *arguments: Any, seed: int = 0, **settings: Any) -> Any:
    """What is made with random weights, always the same; the global generator stays where it is."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(*arguments, **settings)


def tiny_supernet(seed: int = 0, **settings: Any) -> ElasticResNet:
    sizes = {"stem_width": 4, "stage_widths": [8, 16], "depths": [0, 1], "ratios": [0.25, 0.5], "divisor": 2}
    return seeded(ElasticResNet, (1, 8, 8), 4, seed=seed, **{**sizes, **settings})


def linear_net(seed: int = 0) -> PlainNetwork:
    return seeded(lambda: PlainNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), (1, 8, 8), 4), seed=seed)


def concrete_classes(base: type, package: ModuleType) -> set[type]:
    """The classes of lit_fednas that can be instantiated, with those of a package imported."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    found: set[type] = set()
    todo = [base]
    while todo:
        for kind in todo.pop().__subclasses__():
            todo.append(kind)
            if kind.__module__.startswith("lit_fednas.") and not inspect.isabstract(kind):
                found.add(kind)
    return found


def without_instance(base: type, package: ModuleType, makes: Iterable[Callable[[], Any]]) -> list[str]:
    """The names of the concrete classes of which a contract has no instance."""
    return sorted(kind.__name__ for kind in concrete_classes(base, package) - {type(make()) for make in makes})


def one_of_many(items: Iterable[Any], *quick: str) -> list[Any]:
    """Names or files as a test's parameters: a slow test, but for the given names or stems."""
    return [
        item if getattr(item, "stem", item) in quick else pytest.param(item, marks=pytest.mark.slow) for item in items
    ]


def refusals(*cases: Any, call: Callable[..., Any] = lambda make: make(), error: Any = ConfigError) -> Any:
    """A test of what is called with each case but its last, and refused in a line that this is in, or a pattern of."""

    @pytest.mark.parametrize("case", cases, ids=[f"{case[-1]:.40}" for case in cases])
    def test(case: Any) -> None:
        *given, words = case
        with pytest.raises(error) as raised:
            call(*given)
        said = str(raised.value)
        assert words in said or re.search(words, said), said
        assert "\n" not in said

    return test


def sgd(lr: float, **settings: Any) -> Any:
    return lambda params: torch.optim.SGD(params, lr=lr, **settings)


def make_module(
    supernet: Supernet | None = None,
    assignment: Assignment | None = None,
    aggregation: Aggregation | None = None,
    cohort: CohortSampler | None = None,
    client: ClientSettings | None = None,
    **settings: Any,
) -> FederatedLightningModule:
    return FederatedLightningModule(
        supernet or tiny_supernet(),
        assignment or FixedArchitecture(),
        aggregation or OverlapAverage(),
        client or ClientSettings(sgd(0.1), batch_size=8),
        cohort=cohort or UniformCohort(count=3),
        evaluation=settings.pop("evaluation", EvaluationSettings(["largest"])),
        **settings,
    )


def make_trainer(max_rounds: int = 3, **settings: Any) -> FederatedTrainer:
    settings = {
        "accelerator": "cpu",
        "default_root_dir": _ANYWHERE.name,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **settings,
    }
    return FederatedTrainer(max_rounds=max_rounds, **settings)


def fit(module: Any, data: Any, max_rounds: int = 3, ckpt_path: Any = None, **settings: Any) -> Any:
    trainer = make_trainer(max_rounds, **settings)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return trainer


class Noted(FederatedCallback):
    """Keeps what is said at a hook each time, of what the hook is given."""

    def __init__(self, hook: str, say: Callable[..., Any]) -> None:
        self.hook, self.all = hook, list[Any]()
        setattr(self, hook, lambda *given: self.all.append(say(*given)))

    @property
    def state_key(self) -> str:
        """Differs, so that there may be several."""
        return f"Noted, {self.hook}"


def weights(module: FederatedLightningModule) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.supernet.shared_tensors().items()}


def accuracy_and_loss(network: Any, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Counted and added up by hand."""
    with torch.no_grad():
        logits = network(inputs)
    right = sum(int(row.argmax()) == int(target) for row, target in zip(logits, targets, strict=True))
    likelihoods = logits.double().softmax(1)[torch.arange(len(targets)), targets]
    return right / len(targets), float(-likelihoods.log().mean())


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor], **tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in left:
        if tolerance:
            torch.testing.assert_close(left[name], right[name], **tolerance)
        else:
            assert torch.equal(left[name], right[name]), name


def forked(work: Callable[..., Any], *arguments: Any, **environment: str) -> BaseProcess:
    """Starts a call in a process of its own, with one thread, that has imported what this one has."""

    def child() -> None:
        atexit._clear()  # what this process has to do at its end
        os.environ.update(environment)
        torch.set_num_threads(1)
        torch.cuda._is_in_bad_fork = lambda: False  # no test uses CUDA, whose devices this process may have counted
        try:
            work(*arguments)
        finally:
            atexit._run_exitfuncs()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    return process


def ended(process: BaseProcess, seconds: float = 120) -> int | None:
    """Waits for a process; returns its exit status, or ``None`` of one that had to be killed because it hung."""
    process.join(seconds)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    return status


def waited(find: Callable[[], Any]) -> Any:
    """Asks until what is found counts as true; returns it."""
    deadline = time.monotonic() + 60
    while not (found := find()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def right_in_onnxruntime(path: Path) -> tuple[int, dict[str, str]]:
    """How many of the digits' test images, raw and one by one, a file of ONNX gets right; and its metadata."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    test = Digits().load("test")
    found = [session.run(None, {"inputs": image.numpy()})[0].argmax() for image in test.inputs.split(1)]
    return sum(found == test.targets.numpy()), session.get_modelmeta().custom_metadata_map
