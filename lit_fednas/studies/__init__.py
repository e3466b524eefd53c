"""Many runs from one file: ``lit-fednas study FILE`` trains, goes on where it stopped, compares, and judges claims.

A study is a YAML file, which ``configs/studies/`` has examples of::

    name: digits                  # of the folder; the file's own name if not given
    protocol: how settings were chosen
    seeds: [0, 1]
    tiers:                        # budgets of a network; as the searches found them if not given
      small: {macs: 0.8e+6}
      large: {macs: 2.5e+6}
    configs: [common.yaml]        # what all arms share: over an arm's own configurations,
    options: {data.num_clients: 20}     # and under its own options
    then: [test]                  # what follows training: test, validate, search, finetune, export
    arms:
      SuperFed:
        configs: [superfed/digits.yaml]
        options: {trainer.max_rounds: 40}
        then:                     # in place of what all have
          - search: {evaluations: 100}
          - finetune: {rounds: 20, initial: random, name: from scratch}
      HeteroFL: {configs: [width/digits.yaml]}
    compare: {macs: equal, targets: [0.9]}    # of lit-fednas compare: metric, macs, bytes, rounds, targets
    measures:                     # figures of a run, as lit_fednas.studies.figure reads them
      largest: {metric: val/largest/accuracy}
    claims:                       # an effect between two arms, paired by seed, and the bounds that confirm it
      - {paper: SuperFed, where: Fig. 7, claim: it is better, result: [SuperFed, largest],
         baseline: [HeteroFL, largest], above: 0}

``method: grid`` and ``parameters``, as in a sweep file of Weights & Biases, make an arm of every combination;
``method: random`` draws ``--count`` of them. A sweep file itself is a study, too. In configurations and options,
``${seed}`` is the seed, and ``${SuperFed}`` the folder of this arm's run with the same seed, which then comes first.

Every arm and seed is a run in ``runs/NAME/ARM/seedN``; ``study.json`` says how each stands. With ``compare``, arms are
compared at the tiers, each fine-tuning as a method of its own; measures are kept in ``results.csv``; a claim is seen
where the 95 % interval of its effect over the seeds (Student's t) is within its bounds. Without either, ``study.csv``
and ``study.png`` show the arms beside each other.
"""

from lit_fednas.studies.findings import RESULT_COLUMNS, effects_figure, figure, judged, measured
from lit_fednas.studies.reading import read_study
from lit_fednas.studies.study import Arm, Claim, Step, Study

__all__ = [
    "RESULT_COLUMNS",
    "Arm",
    "Claim",
    "Step",
    "Study",
    "effects_figure",
    "figure",
    "judged",
    "measured",
    "read_study",
]
