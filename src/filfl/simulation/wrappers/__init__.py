"""Wrappers around an executor: clients that attack, spill weights to disk, or keep weights and send logits."""
