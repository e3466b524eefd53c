"""The engine: module, trainer, round loop, client training.

:class:`FederatedLightningModule` is composed of the four parts of a method, and :class:`FederatedTrainer` is
Lightning's Trainer with rounds for epochs. A round is an epoch of Lightning's, and the server's step is
``training_step``. So ``ModelCheckpoint``, ``EarlyStopping``, loggers, ``--ckpt_path last`` and your own callbacks
work as they do anywhere.

``FederatedLightningModule.load_from_checkpoint("runs/digits/version_0/checkpoints/last.ckpt")`` makes the module of a
run, and ``FederatedTrainer().predict(module, datamodule=data)`` returns the logits of its subnet
``evaluation.predicted`` for the test set, in order. ``clients/lr`` is the clients' learning rate;
``LearningRateMonitor`` shows the server's.

Cohorts: :class:`UniformCohort`, :class:`SizeWeightedCohort`, :class:`PoissonCohort`, :class:`OnlyClients`. Local
training: :class:`ClientSettings`. Learning rates of clients: :class:`ConstantRate`, :class:`CosineRate`,
:class:`MilestoneRate`, :class:`StepRate`. Server optimizers: any of torch's, :class:`FedAdam`, :class:`FedYogi`,
:class:`FedAdagrad`. What is evaluated: :class:`EvaluationSettings`. What happens if clients fail: :class:`FaultPolicy`.
Your own rules over the rounds: :class:`FederatedCallback` and :class:`ServerRound`.

**What you can rely on**

* **Resuming is exact.** Ctrl-C and SIGTERM save the last finished round; a SIGKILL loses at most the round that was
  running. Going on gives bit-identical weights, metrics and ledger. A setting that training depends on and that differs
  from the checkpoint's is refused, unless ``--changed '[its.name]'`` allows it.
* **One seed, one result.** All draws belong to (seed, purpose, round, client); no global generator is read.
* **Client failures are isolated.** An exception, weights that are not finite, a time limit, a client that goes away:
  its update is skipped, named and counted. ``--model.faults.on_client_error raise`` stops at once instead. A run in
  which every client fails for five rounds ends with the reason (``--model.faults.max_failed_rounds``).
* **Nonsense can be kept out.** ``--model.faults.norm_bound 3`` rejects updates (or scales them, with
  ``--model.faults.on_wild_update scale``) whose norm is more than three times the cohort's median for the tensors that
  they hold, under every method; ``--model.aggregation.init_args.trim 0.2`` leaves the lowest and the highest fifth of
  each element's values out of its mean, 0.5 takes the median. Both keep a round's updates in memory, and are off by
  default.
* **Batch norm has a stated policy.** ``--model.supernet.norm`` is ``GroupNorm``, ``BatchNorm`` (statistics averaged as
  buffers), ``BatchNorm`` without running statistics (the default) or ``NoNorm`` (as SuperFed's published code).
  Where norms keep no statistics, these are gathered on 20 batches of the clients' training data before a subnet is
  evaluated, on a copy (``--model.evaluation.recalibrate_batches``): an accuracy is that of the deployed network, one
  example at a time. ``--model.client.drop_last true`` leaves a small last batch out of training.
* **Subnets are really smaller.** What a client gets has its own small tensors, and its bytes are what is counted; they
  may travel in fewer bits, ``--model.transport.up Int8 --model.transport.down Float16`` (``lit_fednas.transport``).

**Faster.** A round costs what its clients' training costs: one sub-Trainer and a few networks are reused for all
clients, and updates are added into memory that is there already. Beyond that:

```bash
lit-fednas fit --config X.yaml --trainer.devices 2 --trainer.strategy ddp   # ranks: CPU cores, GPUs; num_nodes: nodes
lit-fednas fit --config X.yaml --model.client.fast auto   # measures what is fastest on this machine
lit-fednas fit --config X.yaml --model.client.precision bf16-mixed   # also with fast: auto
lit-fednas fit --config X.yaml --model.client.clients_per_fit 10   # ten clients of one architecture in one fit
```

* **Measured.** What is fast depends on network, clients and processor. With ``client.fast: auto`` some seconds of the
  first round's own training decide on ``channels_last``, ``clients_per_fit``, ``compile`` (in runs that are long enough
  to pay for it) and threads: whatever saves a tenth and has the same first step up to the order of float sums. The log
  says what was tried; a resumed run keeps the choice, on any machine. Precision changes results, so it is yours to set:
  bf16 pays on processors with units for it (avx512_bf16).
* **Ranks.** Every rank plans the same round and trains its share of the cohort, the longest training first by examples
  times MACs; the sums are added over the ranks once per round, and validation is shared out by batch and subnet. A run
  over several ranks equals one on a single rank up to the order of float sums. Only rank 0 writes. Ranks of one machine
  map one copy of the training and validation examples. ``torchrun`` and Slurm start ranks as for Lightning; in a
  notebook use ``ddp_notebook``. A rank that dies ends the run, and the command says which and how.
* **Threads.** Each rank computes with its share of the cores, and a small network with one thread, which is faster; the
  run says so, and ``--trainer.threads`` or ``OMP_NUM_THREADS`` decide otherwise. ``OMP_WAIT_POLICY`` is ``passive``
  unless you set it, so that a busy neighbour does not cost a multiple. Under glibc, freed memory is kept for the next
  step unless ``MALLOC_...`` or ``GLIBC_TUNABLES`` are set.
* **Together.** For networks so small that starting an operation takes longer than doing it, clients of the same
  architecture are trained in one fit with stacked weights (``torch.func``); each is trained as if it were alone.
"""

from lit_fednas.federation.cohort import (
    AlwaysAvailable,
    Availability,
    CohortSampler,
    OnlyClients,
    PoissonCohort,
    RandomAvailability,
    SizeWeightedCohort,
    UniformCohort,
)
from lit_fednas.federation.evaluation import EvaluationSettings
from lit_fednas.federation.hooks import FederatedCallback
from lit_fednas.federation.lightning_private import RankStrategy
from lit_fednas.federation.module import FederatedLightningModule
from lit_fednas.federation.round import ServerRound
from lit_fednas.federation.schedules import ConstantRate, CosineRate, MilestoneRate, RateSchedule, StepRate
from lit_fednas.federation.server_optimizers import FedAdagrad, FedAdam, FedYogi
from lit_fednas.federation.settings import ClientSettings, FaultPolicy
from lit_fednas.federation.trainer import FederatedTrainer

__all__ = [
    "AlwaysAvailable",
    "Availability",
    "ClientSettings",
    "CohortSampler",
    "ConstantRate",
    "CosineRate",
    "EvaluationSettings",
    "FaultPolicy",
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "FederatedCallback",
    "FederatedLightningModule",
    "FederatedTrainer",
    "MilestoneRate",
    "OnlyClients",
    "PoissonCohort",
    "RandomAvailability",
    "RankStrategy",
    "RateSchedule",
    "ServerRound",
    "SizeWeightedCohort",
    "StepRate",
    "UniformCohort",
]
