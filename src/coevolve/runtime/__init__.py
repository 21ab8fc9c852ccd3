"""Devices, threads, worker processes and ranks."""
