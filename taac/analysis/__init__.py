"""Reading finished run folders. Nothing here imports algorithms or training."""
