"""Tests over Flower, which read its settings when they are imported and report nothing to its makers."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
