"""How policies learn."""
