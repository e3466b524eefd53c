"""What the benchmark scripts are made of: tasks, the hand-written loop, clocks, child processes, pictures."""

import os

# before torch is imported: threads that wait by spinning are several times slower beside a busy neighbour
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
