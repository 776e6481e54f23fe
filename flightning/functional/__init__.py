"""The mathematics: pure functions of tensors, arrays and an explicit generator."""
