"""The backend of compiled loops for CPUs."""
