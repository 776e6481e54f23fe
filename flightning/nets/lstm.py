"""Recurrent networks for text: sentiment of a tweet, and the next character of a play."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flightning.errors import ConfigurationError
from flightning.nets.base import Net

__all__ = ["CharLSTM", "SentimentLSTM"]


class LastStep(nn.Module):
    """Embed token indices, run an LSTM and return its output at the last token of each sample.

    Args:
        embedding: Table of word or character vectors.
        hidden_size: Size of the LSTM's state.
        num_layers: Number of LSTM layers.
        padding_index: Token that fills short samples up on the right; ``None`` if there is none.
    """

    def __init__(self, embedding: nn.Embedding, hidden_size: int, num_layers: int, padding_index: int | None) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = nn.LSTM(embedding.embedding_dim, hidden_size, num_layers, batch_first=True)
        self.padding_index = padding_index

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) token indices to (batch, hidden_size)."""
        outputs: Tensor = self.lstm(self.embedding(tokens))[0]
        if self.padding_index is None:
            return outputs[:, -1]
        # Padding on the right cannot reach an earlier step, so that no packed sequence is needed.
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        last = torch.where(tokens != self.padding_index, positions, 0).amax(dim=1)
        return outputs[torch.arange(len(tokens), device=tokens.device), last]


class TextNet(Net):
    """A :class:`LastStep` encoder and a linear head.

    ``vocabulary`` and ``padding_index`` tell which tokens it reads, so that a run can compare them with the data.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        embedding: nn.Embedding,
        hidden_size: int,
        num_layers: int,
        padding_index: int | None,
    ) -> None:
        super().__init__(input_shape, num_classes)
        if len(self.input_shape) != 1:
            raise ConfigurationError(
                f"`{type(self).__name__}` reads token indices of shape (length,), got `input_shape` "
                f"{self.input_shape}. Use a net for images, such as `SmallCNN`."
            )
        self.vocabulary, self.padding_index = embedding.num_embeddings, padding_index
        self.encoder = LastStep(embedding, hidden_size, num_layers, padding_index)
        self.head = nn.Linear(hidden_size, num_classes)


class SentimentLSTM(TextNet):
    """Two-layer LSTM on frozen word vectors for Sent140, as in rFedAvg; 1 098 242 trainable parameters.

    Blocks: ``encoder`` (word vectors and LSTM, output at the last word), ``head``. The word vectors are
    ``encoder.embedding``.

    Args:
        input_shape: Shape of one sample, (length,). Batches may be shorter or longer.
        num_classes: Number of logits.
        vocabulary: Number of words, the padding included.
        embedding_size: Size of a word vector.
        hidden_size: Size of the LSTM's state, which is the size of the features.
        num_layers: Number of LSTM layers.
        padding_index: Token that fills short samples up on the right; ``null`` if there is none.
        embeddings: Word vectors of shape (vocabulary, embedding_size), or an ``.npy`` file that holds them. ``None``
            draws them from a normal distribution.
        freeze: Whether the word vectors keep their values.

    Raises:
        ConfigurationError: If the word vectors are missing or have another shape.

    Example:
        >>> net = SentimentLSTM((30,), 2)
        >>> sum(p.numel() for p in net.parameters() if p.requires_grad)
        1098242
        >>> [name for name, _ in net.blocks]
        ['encoder', 'head']
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        vocabulary: int = 3000,
        embedding_size: int = 300,
        hidden_size: int = 256,
        num_layers: int = 2,
        padding_index: int | None = 0,
        embeddings: str | Path | Tensor | None = None,
        freeze: bool = True,
    ) -> None:
        table = torch.randn(vocabulary, embedding_size) if embeddings is None else word_vectors(embeddings)
        if table.shape != (vocabulary, embedding_size):
            raise ConfigurationError(
                f"`embeddings` has shape {tuple(table.shape)}, but `vocabulary` and `embedding_size` say "
                f"{(vocabulary, embedding_size)}. Make them agree."
            )
        embedding = nn.Embedding(vocabulary, embedding_size, _weight=table)
        embedding.weight.requires_grad_(not freeze)
        super().__init__(input_shape, num_classes, embedding, hidden_size, num_layers, padding_index)


class CharLSTM(TextNet):
    """Two-layer LSTM that predicts the next character, for LEAF's Shakespeare; 819 920 parameters.

    Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
    Blocks: ``encoder`` (character vectors and LSTM, output at the last character), ``head``.

    Args:
        input_shape: Shape of one sample, (length,). Batches may be shorter or longer.
        num_classes: Number of logits, which is the number of characters.
        vocabulary: Number of characters that can be read; ``None`` for as many as there are classes.
        embedding_size: Size of a character vector.
        hidden_size: Size of the LSTM's state, which is the size of the features.
        num_layers: Number of LSTM layers.
        padding_index: Token that fills short samples up on the right; ``None`` if there is none.

    Example:
        >>> sum(p.numel() for p in CharLSTM((80,), 80).parameters())
        819920
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        vocabulary: int | None = None,
        embedding_size: int = 8,
        hidden_size: int = 256,
        num_layers: int = 2,
        padding_index: int | None = None,
    ) -> None:
        embedding = nn.Embedding(num_classes if vocabulary is None else vocabulary, embedding_size)
        super().__init__(input_shape, num_classes, embedding, hidden_size, num_layers, padding_index)


def word_vectors(source: str | Path | Tensor) -> Tensor:
    """Read a table of word vectors from an ``.npy`` file, or copy a given one."""
    if isinstance(source, Tensor):
        return source.detach().clone().float()
    if not Path(source).is_file():
        raise ConfigurationError(f"`embeddings` names no file: {source}. Give an `.npy` file or leave it out.")
    return torch.from_numpy(np.load(source)).float()
