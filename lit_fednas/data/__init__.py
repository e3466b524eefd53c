"""Data: where examples come from, what their targets mean, and which client has which.

A :class:`DataSource` reads examples, a :class:`Partitioner` deals the training examples out to clients, and
:class:`FederatedDataModule` serves both to the engine. Classes and input shape reach the supernet by themselves.

* :class:`ArraySource`: tensors that are in memory.
* :class:`ArrayFiles`: ``.npz`` and ``.npy`` arrays, ``.csv`` and ``.parquet`` tables (``lit-fednas[tables]``).
* :class:`ImageFolder`: ``train/<class>/*.jpg``, ``test`` and, if you like, ``val``, as torchvision knows them; decoded
  once into a cached array. :class:`LazyImageFolder` with ``data.in_memory: false`` decodes on access.
* :class:`ImageTable`: a table of image files, labels and clients.
* :class:`CIFAR10`, :class:`CIFAR100`, :class:`MNIST`, :class:`FashionMNIST`: torchvision's data sets.
* :class:`CelebA`: torchvision's folder, with a person as a client.
* :class:`Leaf`, :class:`LeafImages`, :class:`LeafText`: the JSON files of LEAF.
* :class:`TextFiles`: text, cut into windows of characters or words, by file, role or block.
* :class:`ShakespeareRoles`: the federated Shakespeare of TensorFlow Federated (``lit-fednas[text]``).
* :class:`SpeechFolder`: WAV files by word and speaker (Speech Commands, the Free Spoken Digit Dataset), as MFCC or
  log-mel features.
* :class:`Digits`, :class:`DistortedDigits`: scikit-learn's handwritten digits, without a download.

**Partitions.** :class:`IID` makes clients alike; :class:`Dirichlet` and :class:`BalancedDirichlet` give each a class
mix of its own, :class:`Shards` few classes. If examples have natural owners, :class:`ByColumn` makes each a client:
for images, write ``metadata.csv`` beside ``train`` with the columns ``file`` and, say, ``writer``.
``lit-fednas partition --config X.yaml --output shown`` shows which client has which data, as a table and a picture;
of more than 200 clients it shows some, and the quantiles and histograms of all. A million clients are set up in
seconds: their rows are flat arrays, and each client's hold-outs are drawn when it is asked for
(:class:`BalancedDirichlet` takes longer, as it draws client after client).

```yaml
data:
  source:
    class_path: lit_fednas.data.ImageFolder
    init_args: {root: path/to/images, image_size: 32}
  partitioner: {class_path: lit_fednas.data.Dirichlet, init_args: {alpha: 0.5}}
  num_clients: 20
  server_val: 0.1      # what the server validates on, if there is no folder val
```

**Held-out data.** The server keeps ``data.server_val`` of the training examples unless the source has a validation
split. ``data.client_val`` and ``data.client_test`` split each client's own data; ``client_test: official`` deals the
test split out by the clients' own class proportions. ``model.client.class_balanced`` lets clients train on
their classes equally often.

**Tasks.** What is lost and what is measured is the :class:`Task` of the data, and every table of a run has a column for
each metric:

* :class:`Classification`: one class per example; ``accuracy``, ``loss``.
* :class:`NextToken`: a token at every position; ``perplexity``, ``accuracy`` and ``loss`` are means over tokens, and
  padding is not counted.
* :class:`MultiLabel`: any number of labels; ``accuracy`` of single labels, ``loss``.
* :class:`Regression`: numbers; ``rmse``, ``mae``, ``loss``.

``model.metrics`` adds metrics of torchmetrics by name; ``search.metric`` and ``finetune.metric`` name the one that
networks are chosen by, if it is not the first. ``configs/tasks/`` has the next character of Shakespeare with FedorAS'
recurrent networks, plain text with SuperFed's temporal convolutional network, spoken words with FedorAS' CNN-S, and a
table with an elastic perceptron:

```bash
lit-fednas fit --config configs/tasks/text.yaml --data.source.init_args.files shakespeare.txt
```

To add a partitioner, subclass :class:`Partitioner` and implement ``split``, which returns the client of each example;
to add a source, subclass :class:`DataSource` and implement ``load``.
"""

from lit_fednas.data.clients import ClientData
from lit_fednas.data.datamodule import FederatedDataModule
from lit_fednas.data.examples import Examples
from lit_fednas.data.partitioners import (
    IID,
    BalancedDirichlet,
    ByColumn,
    Dirichlet,
    Partition,
    Partitioner,
    Shards,
)
from lit_fednas.data.rand_augment import RandAugment
from lit_fednas.data.readers import LoaderReader, TensorReader
from lit_fednas.data.sources.array_files import ArrayFiles
from lit_fednas.data.sources.arrays import ArraySource, Digits, DistortedDigits
from lit_fednas.data.sources.base import DataSource
from lit_fednas.data.sources.celeba import CelebA
from lit_fednas.data.sources.image_source import ImageFolder, LazyImageFolder
from lit_fednas.data.sources.image_table import ImageTable
from lit_fednas.data.sources.leaf import Leaf, LeafImages, LeafText
from lit_fednas.data.sources.shakespeare import ShakespeareRoles
from lit_fednas.data.sources.speech import SpeechFolder
from lit_fednas.data.sources.speech_features import SpeechFeatures
from lit_fednas.data.sources.text import TextFiles
from lit_fednas.data.sources.torchvision_sets import CIFAR10, CIFAR100, MNIST, FashionMNIST
from lit_fednas.data.speech_augmentation import AddNoise, TimeShift
from lit_fednas.data.tasks import Classification, MultiLabel, NextToken, Regression, Task
from lit_fednas.data.transforms import Augmentation, Cutout, Normalize, RandomCrop, RandomFlip

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "AddNoise",
    "ArrayFiles",
    "ArraySource",
    "Augmentation",
    "BalancedDirichlet",
    "ByColumn",
    "CelebA",
    "Classification",
    "ClientData",
    "Cutout",
    "DataSource",
    "Digits",
    "Dirichlet",
    "DistortedDigits",
    "Examples",
    "FashionMNIST",
    "FederatedDataModule",
    "ImageFolder",
    "ImageTable",
    "LazyImageFolder",
    "Leaf",
    "LeafImages",
    "LeafText",
    "LoaderReader",
    "MultiLabel",
    "NextToken",
    "Normalize",
    "Partition",
    "Partitioner",
    "RandAugment",
    "RandomCrop",
    "RandomFlip",
    "Regression",
    "ShakespeareRoles",
    "Shards",
    "SpeechFeatures",
    "SpeechFolder",
    "Task",
    "TensorReader",
    "TextFiles",
    "TimeShift",
]
