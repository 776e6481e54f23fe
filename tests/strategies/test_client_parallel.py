import pytest
from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm

from flightning.errors import ConfigurationError
from flightning.strategies import ClientParallelStrategy


def test_statistics_cannot_be_synchronised_between_different_clients():
    strategy = ClientParallelStrategy()
    strategy._layer_sync = TorchSyncBatchNorm()  # as `Trainer(sync_batchnorm=True)` does
    with pytest.raises(ConfigurationError, match=r"`sync_batchnorm=True` would .*: remove it, or use `strategy: ddp`"):
        strategy.setup(None)
