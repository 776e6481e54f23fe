import pytest
import torch

from flightning.algorithms import FedAvg, FedDC, FedDyn, FedPD
from flightning.callbacks import Federation
from tests.classification import BatchNormNet, make_data, run


@pytest.mark.parametrize(
    ("cls", "neutral"), [(FedDyn, {"alpha": 1e-30}), (FedDC, {"alpha": 0}), (FedPD, {"eta": 1e30})]
)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_buffers_are_averaged_as_in_fedavg(cls, neutral, weighting):
    # with a term that is lost in rounding the clients of the first round train as in FedAvg
    ours, theirs = (
        run(c, 1, make_data(per_class=[3, 6, 12]), Federation(weighting=weighting), net=BatchNormNet, **options)[0]
        for c, options in ((cls, neutral), (FedAvg, {}))
    )
    for (name, buffer), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        assert torch.equal(buffer, other), name


def test_batch_norm_statistics_are_no_extra_bytes():
    (_, ours), (_, theirs) = (run(cls, 1, net=BatchNormNet) for cls in (FedDyn, FedAvg))
    for what in ("bytes_up", "extra_bytes_up", "bytes_down", "extra_bytes_down"):
        assert ours[0][f"round/{what}"] == theirs[0][f"round/{what}"]
