"""Initial models."""
