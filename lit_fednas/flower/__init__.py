"""Real devices: the same YAML over [Flower](https://flower.ai), with data that stay where they are.

``pip install 'lit-fednas[flower]'`` on the server and on every device, then, at the server:

```bash
lit-fednas flower init run --config superfed/digits.yaml sites.yaml --clients 2 --tls --address 192.0.2.1:18000
```

``run/README.md`` then holds every command: what starts the server, registers the devices' keys, starts a device and
starts the run. The rounds, callbacks, checkpoints and records are those of ``lit-fednas fit``, and so are the weights:
with the same clients, a run over devices equals the simulated one to the bit, where all machines round alike.

**Data.** The server reads what it validates and tests on; each device puts a file or folder of its own in the place of
``train``, by ``--node-config``. What a configuration may not leave to the data is what every device would then find out
for itself: the number of classes, and how inputs are normalised (``mean`` and ``std`` of image folders; not
``standardize`` and ``categorical`` of tables). The run ends before its first round if classes, task, shapes,
augmentation or normalisation differ, but for the columns that ``categorical`` makes; later, such a device fails in each
of its rounds.

```yaml
# sites.yaml, for arrays; a device is started with
# --node-config 'data.source.init_args.files="{train: /path/of/its.npz}"'
data:
  source:
    class_path: lit_fednas.data.ArrayFiles
    init_args:
      files: {train: server.npz, val: server.npz, test: test.npz}   # the server's, which it does not train on
      task: {class_path: lit_fednas.data.Classification, init_args: {num_classes: 10}}
  partitioner:
    class_path: lit_fednas.data.IID       # is not asked
  client_val: 0.2
```

In a simulation of the same run, ``files.train`` holds the examples of all devices, in their order, with a column that
says whose they are, and ``ByColumn`` is the partitioner. If every machine has the whole data set, ``partition-id=N``
in ``--node-config`` takes the share of client N of the partition.

**Settings.** The server resolves the command with its options (``command="fit --model.client.epochs 2"``), and sends
the sections that devices read (``model``, ``data``, ``seed_everything`` and ``trainer.threads``) where they differ from
the app's, so that devices train with what the server records. A device's ``--node-config`` may change where its data
are and how they are read (``data.source``, ``data.eval_batch_size``, ``data.in_memory``, ``data.num_workers``). Any
other difference ends the run before its first round, with the field's name and both values.

**Methods.** All that works in a simulation works here, to the bit: ``tests/flower`` trains with every assignment,
aggregation and objective. After the training,
``--run-config 'command="search --config search/digits.yaml --search.federated.rounds 4"'`` and ``command="finetune"``
run a search that the devices score, and a fine-tuning. ``lit_fednas.tiers.MeasuredTiers`` divides devices into tiers by
the speed that each measures with the run's own network; a resumed run keeps them. ``model.transport`` sends fewer bits.
Norms are recalibrated on the server's training examples in place of clients'. Refused, in one line, is what evaluates
on clients' examples at the server: ``deployed_accuracy``. Networks after a search or a fine-tuning are not tested on
clients' test splits. Devices compute on their CPUs; ``trainer.accelerator`` is the server's.

**Bytes.** ``wire/bytes_down`` and ``wire/bytes_up`` in ``metrics.csv`` are those of each round's messages, beside the
ledger's ``cost/...``: for ``superfed/digits.yaml`` 0.2 % more (4,001,031 bytes for 3,994,528), the tasks and results as
text. Flower's own headers, TLS and polling come on top.

**What is shown**, of a run whose second device was killed in round 2 and started again:

```text
$ flwr run app server --stream
round 1/6  loss 0.9269  val accuracy 0.435  failed 0  55.52 s/round
round 1, client 1: dropped (Error: Node Unavailable — The destination node failed to report a heartbeat ...)
round 2/6  loss 0.6021  val accuracy 0.7613  failed 1  53.32 s/round
round 2, client 1: dropped (the device is not connected)
round 3/6  loss 0.2122  val accuracy 0.785  failed 1  50.70 s/round
round 4/6  loss 0.1757  val accuracy 0.8413  failed 0  49.96 s/round
```

A run that was stopped by ``flwr stop`` in round 3, and goes on in its own folder:

```text
$ flwr run app server --stream --run-config 'resume="last"'
round 3/4  loss 0.2605  val accuracy 0.7675  failed 0  43.08 s/round
round 4/4  loss 0.2284  val accuracy 0.8375  failed 0  41.49 s/round
```

A device whose key is not registered, and the server that it asked:

```text
Exit Code: 305
Failed to initialize the connection to the SuperLink.
[code: 2004] Failed to activate SuperNode.

[/v1/fleet/activate-node][ApiError:2004] Attempted to register SuperNode with public key: ..., exception: No SuperNode
found with the given public key.
```

A device that cannot take part ends the run before its first round, in one line; then Flower lists it as failed:

```text
lit-fednas: data.source.files: /data/site-1.npz is missing; correct the path (node 9555140945379173223)
lit-fednas: version: the device has lit-fednas 0.1.9, the server 0.2.0; install that (node 9555140945379173223)
lit-fednas: supernet.stem_width: -16 must be at least 1
```

**Failures** are those of simulated clients, with the same ``faults``, records and statuses, and the round goes on
without the device:

| what happens | status | after |
|---|---|---|
| the device's app raises an exception, or its data cannot be read | ``error``, with its text | at once |
| the app's process dies, for want of memory for instance | ``error`` | 1 to 1.5 minutes |
| the device is switched off or loses its network | ``dropped`` | 1 minute; at once if it said goodbye |
| the device is away when the round begins | ``dropped`` | at once |
| no answer in ``timeout`` (``--run-config 'timeout=600.0'``; an hour) | ``timeout`` | as set |
| a number that is not finite | ``non-finite`` | at once |
| tensors or numbers that such a task has not: more steps, examples or seconds, a negative loss | ``error`` | at once |

The minute is Flower's, which waits for two heartbeats, and cannot be set. For as long a device that was killed is
turned away when it comes back, so let a supervisor start it again and again. An answer to a round that is over is not
used. A device whose key is registered is the client in the key's name; one without a key comes back as another node,
and says by ``client=N`` which client it is. It joins between rounds, as does a device that was away, and no round waits
for it.

**Stopping and resuming.** The run's folder is at the server, ``runs/`` in the folder where it was started, and its
checkpoint is that of the last round that has ended, also after Ctrl-C at the server (which then takes Flower up to a
minute). Flower cannot resume a run that was stopped or whose server was ended: ``--run-config 'resume="last"'`` starts
a new one that goes on from the checkpoint, exactly.

**What leaves a device**: its numbers of examples of each class in each split, the shape of inputs, the task's and the
augmentation's settings, hashes of the names of classes and of the normalisation, its memory (for the log), its speed in
MACs per second (five batches of zeros through the largest architecture), and the name that its key was registered with.
In each round: the weights that it trained, how many steps and examples that took, the loss, the seconds, what the
objective reports, and accuracies on its validation split if ``model.client.validate`` is set. In a federated search:
the figures of the architectures that it scored on that split. If something fails, the error's text, in which a path may
stand. **No example leaves it**, nor a gradient of a single one. Weights and counts do tell something about the data;
there is no encryption between devices and server but TLS.

**Differential privacy.** With ``privacy``, devices know the configuration and the run's seed, but not the server's
secret that noise and sampled cohorts are drawn from (a ``privacy.noise_seed`` that is given they do know). It is new at
every start, also of a run that goes on with ``resume="last"``: devices that see a round again see other noise, and both
count. Whoever sees which devices are sent tasks, as the SuperLink does, knows who takes part, and for them cohorts are
not sampled.

**Security.** Without ``--tls``, anyone on the network can read weights, and join as a device. With it, the server shows
a certificate, and devices a key that was registered before; keep ``keys/`` and ``certificates/server.key`` secret, and
give each device its own key alone. Messages are JSON and arrays of numbers, never pickles. But a device runs what the
server sends it: Flower installs the app folder, and its configuration, of which whoever starts a run can replace any
part, names classes that are imported and called. Start devices for servers that you trust, with an account that can do
little else. **Whoever reaches the server's port can start a run**, and so code on all devices, since Flower asks
devices for keys and not those who start runs: let a firewall or a VPN admit the devices and yourself alone.

**Speed.** Flower starts a process for every message, which imports torch and Lightning before it trains; and it asks
for messages every three seconds. On two cores that also ran other things, a round of 2 devices took 25 to 55 s, of
which 2.5 s was training. Real devices are for rounds that train for minutes; for experiments, simulate.
``FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1`` saves up to a second per message. In Flower's own simulation engine, which a
folder without ``--tls`` has commands for, a round of ``superfed/digits.yaml`` took 3.4 s beside 1.8 s of
``lit-fednas fit``, of ``fedoras`` 18 s beside 6.6 s, of ``fednas`` 5.6 s beside 1.4 s, and of ``fedtrans`` 12 s beside
0.4 s. The weights were equal for the first three, and for ``fedtrans`` to 1e-7: its file trains 25 clients in one fit
(``model.client.clients_per_fit``), which devices cannot. With 1 in its place its weights are equal, too.
"""
