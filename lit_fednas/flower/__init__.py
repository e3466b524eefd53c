"""Real devices: the same YAML over Flower."""
