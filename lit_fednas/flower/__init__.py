"""Runs on real devices: the same YAML over [Flower](https://flower.ai); data never leave their devices.

``lit-fednas flower init FOLDER --config X.yaml`` writes an app folder; its ``README.md`` has every command.
"""
