"""Run directories: how they are written and read back."""
