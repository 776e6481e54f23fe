"""What each client sees and is tested on: skewed samples and local test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from flightning.datamodules.skews import FeatureSkew
from flightning.datamodules.sources import Source, TensorSource
from flightning.errors import ConfigurationError

__all__ = ["LocalTests", "make_local_tests", "skew_samples"]

Parts = list[NDArray[np.int64]]


@dataclass(frozen=True)
class LocalTests:
    """The local test sets of all clients.

    Args:
        source: The samples.
        parts: Samples of each client, by position in the source.
    """

    source: Source
    parts: Parts

    @property
    def owners(self) -> NDArray[np.int64]:
        """Client of each sample where the local test sets are written one after the other."""
        return np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])


def skew_samples(source: Source, parts: Parts, skew: FeatureSkew, seed: int) -> tuple[Source, Parts]:
    """Change the samples of each client by its skew.

    Args:
        source: The samples; they are left as they are.
        parts: Samples of each client.
        skew: The rule.
        seed: Seed of the skew.

    Returns:
        A source that holds what the clients see, and the position of each client's samples in it. Samples of nobody
        stay at their place unchanged; a sample of two clients is there twice.

    Example:
        >>> from flightning.datamodules.skews import RotationSkew
        >>> pictures = torch.arange(4.0).view(1, 1, 2, 2).repeat(2, 1, 1, 1)
        >>> source = TensorSource(pictures, torch.tensor([0, 1]))
        >>> skewed, parts = skew_samples(source, [np.array([0]), np.array([1])], RotationSkew(2), seed=0)
        >>> skewed.inputs.flatten(1).tolist()
        [[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]]
    """
    plain = _in_memory(source, skew)
    all_inputs, all_targets = plain.plain(np.arange(len(source)))  # a copy
    twice: list[tuple[torch.Tensor, torch.Tensor]] = []
    places, taken, end = [], np.zeros(len(source), dtype=bool), len(source)
    for client, part in enumerate(parts):
        x, y = skew.apply(*plain.plain(part), client, len(parts), seed)
        again = torch.from_numpy(taken[part])
        first = torch.from_numpy(part[~taken[part]])
        all_inputs[first], all_targets[first] = x[~again], y[~again]
        place, count = part.copy(), int(again.sum())
        if count:
            twice.append((x[again], y[again]))
            place[taken[part]] = np.arange(end, end + count)
            end += count
        taken[part] = True
        places.append(place)
    if twice:
        all_inputs, all_targets = (torch.cat(rows) for rows in zip((all_inputs, all_targets), *twice, strict=True))
    return plain.replaced(all_inputs, all_targets), places


def make_local_tests(
    source: Source, parts: Parts, test: Source, tests: Parts, skew: FeatureSkew | None, seed: int
) -> LocalTests:
    """Local test sets as the clients see them.

    Args:
        source: The training samples before the skew.
        parts: Training samples of each client.
        test: The samples that the test sets are made of; may be `source`.
        tests: Test samples of each client.
        skew: The skew of the clients.
        seed: Its seed.
    """
    return LocalTests(test, tests) if skew is None else _skewed_tests(source, parts, test, tests, skew, seed)


def _skewed_tests(
    source: Source, parts: Parts, test: Source, tests: Sequence[NDArray[np.int64]], skew: FeatureSkew, seed: int
) -> LocalTests:
    """Skew training and test samples of a client in one call: the same style, but no noise that was trained on."""
    train_plain, test_plain = _in_memory(source, skew), _in_memory(test, skew)
    inputs, targets = [], []
    for client, (part, own) in enumerate(zip(parts, tests, strict=True)):
        x, y = (torch.cat(pair) for pair in zip(train_plain.plain(part), test_plain.plain(own), strict=True))
        x, y = skew.apply(x, y, client, len(parts), seed)
        inputs.append(x[len(part) :])
        targets.append(y[len(part) :])
    bounds = np.cumsum([0, *(len(own) for own in tests)])
    places = [np.arange(a, b) for a, b in pairwise(bounds)]
    return LocalTests(test_plain.replaced(torch.cat(inputs), torch.cat(targets)), places)


def _in_memory(source: Source, skew: FeatureSkew) -> TensorSource:
    if not isinstance(source, TensorSource):
        raise ConfigurationError(
            f"`skew={skew!r}` changes samples that lie in memory as tensors, but these are loaded one by one "
            f"(`{type(source).__name__}`): pass `(inputs, targets)` tensors, or leave `skew` out."
        )
    return source
