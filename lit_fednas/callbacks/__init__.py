r"""Callbacks: what changes, is counted, written or shown over the rounds.

Every run has those of :func:`default_callbacks`, a :class:`CostLedger` and a :class:`RoundCheckpoint`. Others are
switched on by their key in YAML:

* ``beta_decay`` (:class:`BetaDecay`): the schedule of MaxNet's beta (SuperFed).
* ``weight_average`` (:class:`WeightAverage`): the running mean of the server's weights is what is evaluated and kept.
* ``privacy`` (:class:`Privacy`): user-level differential privacy (:mod:`lit_fednas.aggregation`).
* ``transform_on_convergence`` (:class:`TransformOnConvergence`) and ``soft_average`` (:class:`SoftAverage`): FedTrans.
* ``prune_by_budgets`` (:class:`PruneByBudgets`): FedNAS.
* ``deployed_accuracy`` (:class:`DeployedAccuracy`): every client's accuracy with the model that it would use.
* ``device_average`` (:class:`DeviceAverage`): besides the global weights, evaluates the mean of what every device
  trained last, as FedHeN reports it, without touching training (``val/devices/<subnet>/accuracy``).
* ``round_time`` (:class:`RoundTime`): the simulated time of rounds on slow and fast devices.
* ``rounds_to_target`` (:class:`RoundsToTarget`): when metrics reached their targets, as
  ``{targets: {val/complex/accuracy: [0.8, 0.9]}}``, in ``targets.csv`` with the MACs and bytes until then; with
  ``stop: true`` the run ends there.

Lightning's own callbacks (``ModelCheckpoint``, ``EarlyStopping``, ``LearningRateMonitor``) work as anywhere, as a round
is an epoch.

**Models that grow (FedTrans).** Training starts from one small model. When its loss flattens, a larger one is derived
from it that computes the same; each client trains, among the models that fit its device, one that suits it; and smaller
models lend their weights.

```yaml
model:
  supernet:                                                # the models so far, side by side; an architecture is a model
    class_path: lit_fednas.supernets.ModelSuite
    init_args: {family: {class_path: lit_fednas.supernets.GrowableCNN, init_args: {hidden: [8, 16, 32]}}}
  tiers: {source: {class_path: lit_fednas.tiers.Capacities}}         # the strongest affords 29 times the weakest's
  assignment: {class_path: lit_fednas.assignment.ByOwnUtility}       # Eq. 2 to 4, a client's models against each other
  aggregation: {class_path: lit_fednas.aggregation.OverlapAverage}   # each model over its clients
soft_average: {decay: 0.98}                                          # Eq. 5: models lend each other weights
transform_on_convergence: {threshold: 0.003, gamma: 10, delta: 20}   # Eq. 1: when; cells by their activeness
deployed_accuracy: {}                                      # every client with the model that it would use
round_time: {speeds: {latency_ms: 20}}                     # simulated; the slower a device, the smaller its models
```

```bash
lit-fednas fit --config configs/fedtrans/digits.yaml
lit-fednas report runs/fedtrans-digits/version_0                     # the models as a tree, the loss and when each came
lit-fednas finetune --config configs/fedtrans/digits.yaml --ckpt_path last \
  --finetune.models '["model: 2"]'                                   # one of them by federated averaging, all clients
O=configs/fedtrans/overlays; R=runs/fedtrans-digits/version_0        # others on what it grew, and on its devices
lit-fednas fit --config configs/fedtrans/digits.yaml --config $O/heterofl.yaml \
  --model.supernet.init_args.family.init_args.run $R --model.tiers.source.init_args.run $R
```

* **Initial models** are families of cells: ``GrowablePerceptron``, ``GrowableCNN``, ``GrowableResNet18``,
  ``GrowableNASBench201``, ``GrowableMobileNetV3Small``, ``GrowableViT``. A new kind of cell is one class
  (``lit_fednas/supernets/growing/cells.py``): it says how its module is built for any number of units, and where the
  units lie in its tensors is found from that.
* **Growing keeps the function**, in training and in evaluation, with batch norm and with group norm.
* **The models are part of every checkpoint**: a run that was stopped, also right after a transformation, goes on
  exactly. ``suite.json`` says which model came from which, when and why; ``lit-fednas report`` draws it.
* **New units are drawn, and nothing takes them in at first**, so that growing is exact and the new capacity is used;
  the paper's copies stay nearly alike. Where other rules do not work as they are printed they are settled likewise, and
  ``configs/fedtrans/overlays/as_printed.yaml`` has them to the letter; ``fedavg_first.yaml`` trains the first model
  alone.
* **A run's models, family and devices are in its** ``suite.json``: ``GrownModel`` is the family of one of its models,
  which ``FamilyNetwork`` trains by federated averaging and which can be cut in width; ``TiersOfRun`` are its devices.
  ``configs/fedtrans/overlays/`` has HeteroFL, SplitMix, FLuID and FedAvg on them, the ablations of Table 3, and the
  paper's stop rule; ``configs/sweeps/`` varies what its figures 8 and 10 to 13 vary.

**Models that shrink (FedNAS).** A trained network is made smaller, budget by budget. In every iteration each layer
offers a candidate, which has lost just as many of its filters as the budget asks for. Candidates are tried by groups of
clients side by side, the weak ones are dropped before they send anything, and the best goes on. The sequence is a front
of accuracy over cost.

```yaml
model:
  supernet:                                                # the sequence, and the candidates of the next step
    class_path: lit_fednas.supernets.PrunedSequence
    init_args: {family: {class_path: lit_fednas.supernets.SlicedMobileNet}}
  assignment: {class_path: lit_fednas.assignment.CandidateGroups}
  aggregation: {class_path: lit_fednas.aggregation.OverlapAverage}
  client: {epochs: 3, validate: trained}                   # clients test on data.client_val what they have trained
  cohort: {class_path: lit_fednas.federation.UniformCohort, init_args: {ratio: 1.0}}         # all that are available
prune_by_budgets:
  budget: 0.25                                             # of the initial model's MACs; also: resource: latency_ms
  first: 0.05                                              # less in the first iteration, decaying by 0.98
  rounds: {1: 5, 6: 10, 11: 15}                            # from which iteration on there are how many rounds
  drop: 0.33                                               # of the candidates, after each round's tests
  groups: 14                                               # balanced, and alike in their classes
  initial: pretrained.ckpt                                 # or initial_rounds: 200, to train it federatedly first
```

```bash
lit-fednas fit --config configs/fednas/digits.yaml
lit-fednas search --config configs/fednas/digits.yaml --search.tiers lit_fednas.tiers.CumulativeCostTiers  # its front
lit-fednas finetune --config configs/fednas/digits.yaml --config configs/fednas/finetune/digits.yaml   # FL-tune
```

* **Networks** are those that are cut in width: ``SlicedMobileNet`` (v1), ``SlicedConvNet``, ``SlicedResNet``,
  ``SlicedCNN`` and any ``NetworkFamily`` of yours. What follows a filter (batch norm, depthwise, residual, flatten) is
  found automatically; ``supernet.units`` says what loses filters together. What is left computes what the whole network
  computes with those filters at zero.
* **The loop over budgets is a callback**; its rounds are the engine's. A run that was stopped between two iterations or
  inside one goes on exactly. ``sequence.json`` says who tried what, and what it cost.
* **Which filters leave** says ``supernet.criterion``: ``L2Norm`` (the paper's), ``L1Norm``, ``NormScale``. With
  ``prune_by_budgets.schedule: round`` a candidate goes to any free group in every round.
* **NetAdapt, width multipliers**, and runs without groups, dropping or dynamic rounds are overlays
  (``configs/fednas/overlays/``).

**A rule of your own over the rounds** is one callback with one ``state_dict``: a subclass of
``lit_fednas.federation.FederatedCallback``. Its hooks are given the round (``lit_fednas.federation.ServerRound``): it
gives values of schedules (``on_round_start``: ``round.give``), rejects updates before they are merged (``on_results``:
``round.reject``), watches or mixes the averages (``on_results``: ``round.watch``, ``round.mix``), adds or removes
architectures (``on_server_step``: ``round.restructure``), and stops with ``trainer.should_stop``. One of the package
that users switch on has a line in :data:`OPTIONAL_CALLBACKS`, which makes it a key of the YAML.
"""

import re

from lightning import Callback

from lit_fednas.callbacks.beta_decay import BetaDecay
from lit_fednas.callbacks.checkpoint import RoundCheckpoint
from lit_fednas.callbacks.cost_ledger import CostLedger
from lit_fednas.callbacks.deployed_accuracy import DeployedAccuracy
from lit_fednas.callbacks.device_average import DeviceAverage
from lit_fednas.callbacks.partition_files import PartitionFiles
from lit_fednas.callbacks.privacy import AdaptiveNorm, Privacy
from lit_fednas.callbacks.progress import RoundProgress
from lit_fednas.callbacks.pruning import PruneByBudgets
from lit_fednas.callbacks.recorder import RunRecorder
from lit_fednas.callbacks.round_time import RoundTime
from lit_fednas.callbacks.rounds_to_target import RoundsToTarget
from lit_fednas.callbacks.soft_average import SoftAverage
from lit_fednas.callbacks.subnet_table import SubnetTable
from lit_fednas.callbacks.transform_on_convergence import TransformOnConvergence
from lit_fednas.callbacks.wandb_logging import WandbLogging
from lit_fednas.callbacks.weight_average import WeightAverage

__all__ = [
    "OPTIONAL_CALLBACKS",
    "AdaptiveNorm",
    "BetaDecay",
    "CostLedger",
    "DeployedAccuracy",
    "DeviceAverage",
    "PartitionFiles",
    "Privacy",
    "PruneByBudgets",
    "RoundCheckpoint",
    "RoundProgress",
    "RoundTime",
    "RoundsToTarget",
    "RunRecorder",
    "SoftAverage",
    "SubnetTable",
    "TransformOnConvergence",
    "WandbLogging",
    "WeightAverage",
    "default_callbacks",
]

#: What a run may have besides, by its key in YAML, in the order in which they are called: before the callbacks
#: that every run has, and those that log before those that read what is logged.
OPTIONAL_CALLBACKS: dict[str, type[Callback]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", callback.__name__).lower(): callback
    for callback in (
        PruneByBudgets,
        TransformOnConvergence,
        SoftAverage,
        WeightAverage,
        BetaDecay,
        Privacy,
        DeviceAverage,
        DeployedAccuracy,
        RoundTime,
        RoundsToTarget,
    )
}


def default_callbacks() -> list[Callback]:
    """Returns what the command line adds to every run; give them to a ``FederatedTrainer`` of your own likewise.

    (The command line adds a :class:`CostLedger` and a :class:`RoundCheckpoint` too, each with settings.)
    """
    return [RunRecorder(), PartitionFiles(), SubnetTable(), WandbLogging(), RoundProgress()]
