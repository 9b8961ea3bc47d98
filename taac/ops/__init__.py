"""The mathematics, as pure functions of tensors."""
