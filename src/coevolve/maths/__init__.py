"""Credit, advantages, losses and their parts: pure functions over tensors. No models, no configuration."""
