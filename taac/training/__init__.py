"""Training: builds an experiment, runs the training loop, and reports and saves its progress."""
