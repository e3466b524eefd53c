"""Networks that lose filters step by step (FedNAS, section 4.1)."""
