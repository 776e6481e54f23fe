"""The handwritten digits that ship with scikit-learn: real data without a download."""

from __future__ import annotations

import torch
from torch import Tensor

from flightning.datamodules.base import FederatedDataModule
from flightning.functional.seeding import torch_generator

__all__ = ["Digits"]


class Digits(FederatedDataModule):
    """1797 handwritten digits of 8 x 8 pixels (UCI optical recognition), a fifth of them for testing.

    See `FederatedDataModule` for the arguments.
    """

    num_classes = 10
    input_shape = (1, 8, 8)
    class_names = tuple("0123456789")

    def load(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Scale the pixels to [0, 1]; which digits are for testing is the same for every seed."""
        from sklearn.datasets import load_digits

        pixels, digits = load_digits(return_X_y=True)
        inputs = torch.tensor(pixels, dtype=torch.float32).view(-1, *self.input_shape) / 16
        targets = torch.tensor(digits, dtype=torch.long)
        order = torch.randperm(len(targets), generator=torch_generator(0))
        test, train = order[:360], order[360:]
        return (inputs[train], targets[train]), (inputs[test], targets[test])
