"""Small models trained from scratch, for runs that must not wait for a download."""
