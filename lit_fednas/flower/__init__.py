"""Real devices: the same YAML over [Flower](https://flower.ai), with data that stay where they are.

``lit-fednas flower init FOLDER --config X.yaml`` writes an app folder whose ``README.md`` has every command.
"""
