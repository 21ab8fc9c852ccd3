"""Run directories: what is written, and read back."""
