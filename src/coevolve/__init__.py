"""Coevolve: fine-tune several language models together by reinforcement learning."""
