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

#: The clients' data for objectives that read only their task.
NO_DATA: Any = SimpleNamespace(task=Classification(4))

#: The folder for callbacks' files of runs without their own folder.
_ANYWHERE = TemporaryDirectory(prefix="lit-fednas-tests-")

#: Settings that make any configuration small.
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
    """Returns a seeded object with random weights; the global generator does not move."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(*arguments, **settings)


def tiny_supernet(seed: int = 0, **settings: Any) -> ElasticResNet:
    sizes = {"stem_width": 4, "stage_widths": [8, 16], "depths": [0, 1], "ratios": [0.25, 0.5], "divisor": 2}
    return seeded(ElasticResNet, (1, 8, 8), 4, seed=seed, **{**sizes, **settings})


def linear_net(seed: int = 0) -> PlainNetwork:
    return seeded(lambda: PlainNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), (1, 8, 8), 4), seed=seed)


def concrete_classes(base: type, package: ModuleType) -> set[type]:
    """Returns the instantiable classes of lit_fednas, after importing a package."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    classes: set[type] = set()
    todo = [base]
    while todo:
        for kind in todo.pop().__subclasses__():
            todo.append(kind)
            if kind.__module__.startswith("lit_fednas.") and not inspect.isabstract(kind):
                classes.add(kind)
    return classes


def without_instance(base: type, package: ModuleType, makes: Iterable[Callable[[], Any]]) -> list[str]:
    """Returns the names of concrete classes without an instance in a contract."""
    return sorted(kind.__name__ for kind in concrete_classes(base, package) - {type(make()) for make in makes})


def one_of_many(items: Iterable[Any], *quick: str) -> list[Any]:
    """Returns names or files as a test's parameters; all except those in ``quick`` are slow tests."""
    return [
        item if getattr(item, "stem", item) in quick else pytest.param(item, marks=pytest.mark.slow) for item in items
    ]


def refusals(*cases: Any, call: Callable[..., Any] = lambda make: make(), error: Any = ConfigError) -> Any:
    """Returns a test of errors: a case has the call's arguments and, last, a part or a pattern of the error."""

    @pytest.mark.parametrize("case", cases, ids=[f"{case[-1]:.40}" for case in cases])
    def test(case: Any) -> None:
        *arguments, words = case
        with pytest.raises(error) as raised:
            call(*arguments)
        message = str(raised.value)
        assert words in message or re.search(words, message), message
        assert "\n" not in message

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
    """Records the values of ``say`` at each call of a hook, with the hook's arguments."""

    def __init__(self, hook: str, say: Callable[..., Any]) -> None:
        self.hook, self.all = hook, list[Any]()
        setattr(self, hook, lambda *args: self.all.append(say(*args)))

    @property
    def state_key(self) -> str:
        """A key per hook, so that a trainer can have several."""
        return f"Noted, {self.hook}"


def weights(module: FederatedLightningModule) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.supernet.shared_tensors().items()}


def accuracy_and_loss(network: Any, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Returns both, counted by hand."""
    with torch.no_grad():
        logits = network(inputs)
    right = sum(int(row.argmax()) == int(target) for row, target in zip(logits, targets, strict=True))
    likelihoods = logits.double().softmax(1)[torch.arange(len(targets)), targets]
    return right / len(targets), float(-likelihoods.log().mean())


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name in actual:
        if tolerance:
            torch.testing.assert_close(actual[name], expected[name], **tolerance)
        else:
            assert torch.equal(actual[name], expected[name]), name


def forked(work: Callable[..., Any], *arguments: Any, **environment: str) -> BaseProcess:
    """Starts a call in a forked process with one thread."""

    def child() -> None:
        atexit._clear()  # the exit functions are those of this process
        os.environ.update(environment)
        torch.set_num_threads(1)
        torch.cuda._is_in_bad_fork = lambda: False  # no test uses CUDA; this process may have counted devices
        try:
            work(*arguments)
        finally:
            atexit._run_exitfuncs()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    return process


def ended(process: BaseProcess, seconds: float = 120) -> int | None:
    """Waits for a process; returns its exit status, or kills it and returns ``None``."""
    process.join(seconds)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    return status


def waited(find: Callable[[], Any]) -> Any:
    """Calls a function until its result counts as true; returns the result."""
    deadline = time.monotonic() + 60
    while not (result := find()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result


def right_in_onnxruntime(path: Path) -> tuple[int, dict[str, str]]:
    """Returns the number of the digits' test images that an ONNX file classifies correctly, and its metadata."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    test = Digits().load("test")
    predictions = [session.run(None, {"inputs": image.numpy()})[0].argmax() for image in test.inputs.split(1)]
    return sum(predictions == test.targets.numpy()), session.get_modelmeta().custom_metadata_map
