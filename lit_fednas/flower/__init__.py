"""Real devices: the same YAML over [Flower](https://flower.ai), with data that stay where they are.

``lit-fednas flower init FOLDER --config X.yaml`` writes an app folder whose ``README.md`` has every command; the guide
``scripts/documenting/guides/flower.md`` says what devices need, what leaves them, and what happens if they fail.
Messages are in :mod:`lit_fednas.flower.wire`, the server's side in :mod:`lit_fednas.flower.server`, a device's in
:mod:`lit_fednas.flower.device`.
"""
