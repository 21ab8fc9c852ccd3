"""What computes: forwards, caches, attention, log-probabilities."""
