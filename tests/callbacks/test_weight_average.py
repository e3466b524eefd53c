from threading import Lock

import pytest
import torch

from lit_fednas.callbacks import DeployedAccuracy, RoundCheckpoint, WeightAverage
from lit_fednas.federation import FederatedCallback
from lit_fednas.supernets import GrowablePerceptron, ModelSuite
from tests.support import Noted, assert_same, fit, make_module, make_trainer, seeded, tiny_data, weights


class Observed(FederatedCallback):
    """Records the server's weights after every step, and the validated weights."""

    def __init__(self):
        self.after_steps, self.validated = [], []

    def on_server_step(self, trainer, module, round):
        self.after_steps.append(weights(module))

    def on_validation_batch_end(self, trainer, module, *_):
        self.validated.append(weights(module))


DECAY = 0.22


def mean(history, start=0):
    """Returns the mean of the weights by hand, starting in a round."""
    result = history[0]
    decays = (2 / 11, DECAY, DECAY)[start:]  # 3 / 12 after two rounds is above the decay
    for decay, newest in zip(decays, history[1:], strict=False):
        result = {name: decay * result[name] + (1 - decay) * newest[name] for name in result}
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    module, observed = make_module(), Observed()
    module.lock = Lock()  # attributes of a module may not be copyable
    callbacks = [observed, WeightAverage(DECAY), RoundCheckpoint(dirpath=str(folder))]
    fit(module, tiny_data(), 4, callbacks=callbacks, enable_checkpointing=True)
    return module, observed, folder / "last.ckpt"


def test_the_mean_is_validated_and_kept_without_an_effect_on_training(run):
    module, observed, _ = run
    plain = Observed()
    fit(make_module(), tiny_data(), 4, callbacks=[plain])
    for number, (with_mean, without_mean) in enumerate(zip(observed.after_steps, plain.after_steps, strict=True)):
        assert_same(with_mean, without_mean)
        assert_same(observed.validated[number], mean(observed.after_steps[: number + 1]), rtol=1e-5, atol=1e-7)
    assert_same(weights(module), mean(observed.after_steps), rtol=1e-5, atol=1e-7)


def test_a_checkpoint_has_the_mean_as_weights(run):
    module, _, path = run
    saved = torch.load(path, weights_only=True)
    saved_weights = {name.removeprefix("supernet."): tensor for name, tensor in saved["state_dict"].items()}
    assert_same({name: saved_weights[name] for name in weights(module)}, weights(module))

    tested = make_module()
    make_trainer(callbacks=[WeightAverage(DECAY)]).test(tested, tiny_data(), ckpt_path=str(path))
    assert_same(weights(tested), weights(module))


@pytest.mark.parametrize("every_n_rounds", [None, 3])
def test_deployed_accuracies_are_those_of_the_mean(every_n_rounds):
    class Recorded(DeployedAccuracy):
        def _evaluate(self, trainer, module):
            self.evaluated = weights(module)
            super()._evaluate(trainer, module)

    deployed, observed = Recorded(every_n_rounds=every_n_rounds), Observed()
    fit(make_module(), tiny_data(client_test=0.3), 3, callbacks=[observed, WeightAverage(DECAY), deployed])
    assert_same(deployed.evaluated, mean(observed.after_steps), rtol=1e-5, atol=1e-7)


def test_an_added_model_starts_a_new_mean_and_the_others_keep_theirs(tmp_path):
    def grow(trainer, module, round):
        if round.number == 1:
            round.restructure(lambda: module.supernet.add(0, [], seed=0))

    def run(rounds, observed, ckpt_path=None):
        module = make_module(supernet=seeded(ModelSuite, (1, 8, 8), 4, GrowablePerceptron([8])))
        callbacks = [
            Noted("on_server_step", grow),
            observed,
            WeightAverage(DECAY),
            RoundCheckpoint(dirpath=str(tmp_path / str(rounds))),
        ]
        fit(module, tiny_data(), rounds, ckpt_path, callbacks=callbacks, enable_checkpointing=True)
        return weights(module)

    observed = Observed()
    straight = run(4, observed)
    first, rest = observed.after_steps[0], observed.after_steps[1:]
    newer = {name: tensor for name, tensor in mean(rest, start=1).items() if name not in first}
    older = mean([first, *({name: step[name] for name in first} for step in rest)])
    assert len(newer) == len(older) == 4
    assert_same(straight, {**older, **newer}, rtol=1e-5, atol=1e-7)

    run(3, Observed())
    assert_same(run(4, Observed(), str(tmp_path / "3" / "last.ckpt")), straight)
