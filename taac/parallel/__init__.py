"""One run over several processes: collectors beside the learner, and ranks that learn together."""
