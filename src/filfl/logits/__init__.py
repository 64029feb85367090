"""The logits transport: clients keep their trained weights and send their logits on V (docs/logits.md)."""
