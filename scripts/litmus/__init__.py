"""What `scripts/litmus.py` consists of."""
