"""Text as numbers: tokens, vocabularies, and sources that pad each batch or cut windows."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flightning.datamodules.settings import Settings, require
from flightning.datamodules.sources import GatheredSource, Indices, Source
from flightning.errors import ConfigurationError

__all__ = ["PretrainedTokenizer", "TextSource", "Tokenizer", "WindowSource", "Words"]

PADDING, UNKNOWN = "<pad>", "<unk>"


class Tokenizer(Settings):
    """How texts become numbers.

    Args:
        max_length: Tokens of a text that are kept, the first ones.
    """

    #: Number that fills short texts up on the right.
    padding_index: int = 0

    def __init__(self, max_length: int = 64) -> None:
        require(max_length >= 1, "max_length", max_length, "must be >= 1", "use 64 for short texts such as tweets")
        self.max_length = max_length

    @property
    def identity(self) -> str:
        """All that decides about the numbers: samples are converted anew where it changes."""
        return repr(self)

    @abstractmethod
    def learn(self, texts: Iterable[str]) -> list[str]:
        """The vocabulary, made from the training texts; the number of a token is its place in it."""

    @abstractmethod
    def encode(self, texts: Iterable[str], vocabulary: Sequence[str]) -> Iterator[list[int]]:
        """The numbers of each text, at most `max_length`."""


class Words(Tokenizer):
    """Words and punctuation marks in lower case; the most frequent ones are known.

    Args:
        vocabulary_size: Size of the vocabulary with the entries for padding (0) and unknown words (1).
        max_length: Words of a text that are kept, the first ones.

    Example:
        >>> words = Words(vocabulary_size=4)
        >>> vocabulary = words.learn(["Good day, good sir", "a good day"])
        >>> vocabulary
        ['<pad>', '<unk>', 'good', 'day']
        >>> list(words.encode(["A good day!"], vocabulary))
        [[1, 2, 3, 1]]
    """

    shown = ("vocabulary_size", "max_length")

    def __init__(self, vocabulary_size: int = 3000, max_length: int = 64) -> None:
        super().__init__(max_length)
        require(vocabulary_size >= 3, "vocabulary_size", vocabulary_size, "must be >= 3", "use 3000 as in rFedAvg")
        self.vocabulary_size = vocabulary_size

    def learn(self, texts: Iterable[str]) -> list[str]:
        """The most frequent words, the alphabet decides between equals."""
        counts = Counter(word for text in texts for word in _split(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return [PADDING, UNKNOWN, *ranked[: self.vocabulary_size - 2]]

    def encode(self, texts: Iterable[str], vocabulary: Sequence[str]) -> Iterator[list[int]]:
        """Numbers of the words, 1 for an unknown one."""
        number = {word: place for place, word in enumerate(vocabulary)}
        for text in texts:
            yield [number.get(word, 1) for word in _split(text)[: self.max_length]]


def _split(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


class PretrainedTokenizer(Tokenizer):
    """A tokenizer of the package `transformers`, by name or folder.

    Args:
        name: Such as ``bert-base-uncased``, or the folder of a saved one.
        max_length: Tokens of a text that are kept, the first ones.

    Example:
        >>> PretrainedTokenizer("bert-base-uncased")
        PretrainedTokenizer(name='bert-base-uncased', max_length=64)
    """

    shown = ("name", "max_length")

    def __init__(self, name: str, max_length: int = 64) -> None:
        super().__init__(max_length)
        self.name = name
        self._loaded: Any = None

    @property
    def identity(self) -> str:
        """Its settings, for a folder also sizes and times of its files."""
        files = sorted(f for f in Path(self.name).rglob("*") if f.is_file()) if Path(self.name).is_dir() else []
        stats = [(f.relative_to(self.name).as_posix(), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
        return f"{self!r} {stats}" if stats else repr(self)

    @property
    def _tokenizer(self) -> Any:
        if self._loaded is None:
            try:
                from transformers import AutoTokenizer
            except ImportError as error:
                raise ConfigurationError(
                    f"`{self!r}` needs the package `transformers`, which cannot be imported ({error}): run `pip "
                    "install transformers`, or use `Words`."
                ) from error
            self._loaded = AutoTokenizer.from_pretrained(self.name)
        return self._loaded

    def learn(self, texts: Iterable[str]) -> list[str]:
        """The vocabulary of the tokenizer; nothing is learned."""
        tokens: list[str] = self._tokenizer.convert_ids_to_tokens(list(range(len(self._tokenizer))))
        return tokens

    @property
    def padding_index(self) -> int:  # type: ignore[override]
        """The tokenizer's own padding, 0 where it has none."""
        return int(self._tokenizer.pad_token_id or 0)

    def encode(self, texts: Iterable[str], vocabulary: Sequence[str]) -> Iterator[list[int]]:
        """Numbers of the tokens with the tokenizer's special ones."""
        for text in texts:
            yield self._tokenizer(text, truncation=True, max_length=self.max_length)["input_ids"]


class TextSource(Source):
    """Texts of different lengths, written one after the other; each batch is padded to its longest.

    Args:
        tokens: Numbers of all texts.
        bounds: Where each text begins in them, and the end of the last.
        targets: One label per text.
        padding_index: Number that fills short texts up on the right.
        ids: Natural client of each text.

    Example:
        >>> source = TextSource(np.array([5, 6, 7, 8]), np.array([0, 1, 4]), np.array([0, 1]))
        >>> next(source.batches([np.array([0, 1])]))[0]
        tensor([[5, 0, 0],
                [6, 7, 8]])
    """

    def __init__(
        self,
        tokens: NDArray[Any],
        bounds: NDArray[np.int64],
        targets: NDArray[np.int64],
        padding_index: int = 0,
        ids: NDArray[Any] | None = None,
    ) -> None:
        self.tokens, self.bounds, self.labels, self.ids = tokens, bounds, targets, ids
        self.padding_index = padding_index

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batches: Sequence[Indices]) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches, each as wide as its longest text."""
        for batch in batches:
            yield self._padded(batch), torch.from_numpy(self.labels[batch])

    def stored_input(self, index: int) -> Tensor | None:
        """The tokens of one text."""
        return torch.from_numpy(self.tokens[self.bounds[index] : self.bounds[index + 1]].astype(np.int64))

    def _padded(self, batch: Indices) -> Tensor:
        starts = self.bounds[batch]
        lengths = self.bounds[batch + 1] - starts
        places = np.arange(max(1, int(lengths.max(initial=0))))
        inside = places < lengths[:, None]
        padded = np.full(inside.shape, self.padding_index, dtype=np.int64)
        padded[inside] = self.tokens[(starts[:, None] + places)[inside]]
        return torch.from_numpy(padded)


class WindowSource(GatheredSource):
    """Windows of one long text; the target is the token after the window.

    Args:
        tokens: Numbers of the text.
        starts: Where each window begins.
        length: Tokens of a window.
        ids: Natural client of each window.

    Example:
        >>> source = WindowSource(np.array([3, 1, 4, 1, 5]), starts=np.array([0, 2]), length=2)
        >>> next(source.batches([np.array([0, 1])]))
        (tensor([[3, 1],
                [4, 1]]), tensor([4, 5]))
    """

    def __init__(
        self, tokens: NDArray[Any], starts: NDArray[np.int64], length: int, ids: NDArray[Any] | None = None
    ) -> None:
        self.tokens, self.starts, self.length, self.ids = tokens, starts, length, ids
        self.labels = tokens[starts + length].astype(np.int64)

    def __len__(self) -> int:
        return len(self.starts)

    def gather(self, order: Indices) -> tuple[Tensor, Tensor]:
        """Cut the windows."""
        windows = self.tokens[self.starts[order][:, None] + np.arange(self.length)]
        return torch.from_numpy(windows.astype(np.int64)), torch.from_numpy(self.labels[order])
