"""What users see of a run: progress, curves, dialogues, trackers. Listeners are called with each step's metrics."""
