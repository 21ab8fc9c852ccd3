"""How policies generate."""
