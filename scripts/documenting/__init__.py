"""What ``scripts/docs`` builds: pages of notebooks, an index, and the API reference."""
