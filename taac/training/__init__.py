"""Training: rollout, learner, trainer, evaluation, checkpoint, summaries, and the gin glue."""
