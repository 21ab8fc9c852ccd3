"""Computation: forwards, KV caches, attention, log-probabilities."""
