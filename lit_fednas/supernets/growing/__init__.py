"""Models that grow while they are trained (FedTrans): cells, structure, growth, and the suite of all models."""
