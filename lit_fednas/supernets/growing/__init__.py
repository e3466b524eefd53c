"""Models that grow during training (FedTrans): cells, structure, growth and the suite of all models."""
