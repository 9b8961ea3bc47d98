"""Collects in other processes or on other machines, while the learner learns."""
