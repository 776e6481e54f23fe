"""The networks of the papers, each with its blocks in order and its head."""

from flightning.nets.base import Net
from flightning.nets.cnn import FedDynCNN, McMahanCNN, SimpleCNN, SmallCNN
from flightning.nets.lstm import CharLSTM, SentimentLSTM
from flightning.nets.mlp import MLP, LogisticRegression
from flightning.nets.resnet import ResNet50

__all__ = [
    "MLP",
    "CharLSTM",
    "FedDynCNN",
    "LogisticRegression",
    "McMahanCNN",
    "Net",
    "ResNet50",
    "SentimentLSTM",
    "SimpleCNN",
    "SmallCNN",
]
