"""Says what training would do, without training: memory, mistakes, the first update."""
