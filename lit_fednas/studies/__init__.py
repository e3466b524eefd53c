"""Many runs from one file: ``lit-fednas study FILE`` trains, resumes, compares, and judges claims.

A sweep file of Weights & Biases is a study, too. ``configs/studies/`` has examples, and the guide on studies describes
the file. Every arm and seed is a run in ``runs/NAME/ARM/seedN``.
"""

from lit_fednas.studies.findings import RESULT_COLUMNS, figure, judged, measured
from lit_fednas.studies.reading import read_study
from lit_fednas.studies.study import Arm, Claim, Step, Study

__all__ = ["RESULT_COLUMNS", "Arm", "Claim", "Step", "Study", "figure", "judged", "measured", "read_study"]
