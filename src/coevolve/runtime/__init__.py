"""Where work runs: devices and processes."""
