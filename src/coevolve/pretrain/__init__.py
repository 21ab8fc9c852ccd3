"""Small models trained from scratch, for runs without a download."""
