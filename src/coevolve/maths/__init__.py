"""The formulas of advantages, losses and metrics: pure functions over tensors, without models or configuration."""
