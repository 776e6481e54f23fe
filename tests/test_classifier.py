import pytest
import torch
from torch import nn

from flightning.classifier import Classifier
from tests.classification import make_data, small_net
from tests.problems import make_trainer


def make(**kwargs):
    torch.manual_seed(0)
    return Classifier(net=small_net, input_shape=(4,), num_classes=3, **kwargs)


def test_loss_is_the_mean_cross_entropy():
    module, inputs, targets = make(), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    expected = nn.functional.cross_entropy(module(inputs), targets)
    assert torch.equal(module.training_step((inputs, targets), 0), expected)


def test_evaluation_weights_batches_by_their_size():
    data = make_data(eval_batch_size=5)  # 12 test samples: batches of 5, 5, 2
    data.setup("fit")
    module = make()
    from flightning.algorithms import FedAvg

    federated = FedAvg(net=small_net, input_shape=(4,), num_classes=3)
    federated.load_state_dict(module.state_dict())
    (found,) = make_trainer(1).validate(federated, datamodule=data, verbose=False)
    inputs, targets = data.test_source.inputs, data.test_source.targets
    logits = module(inputs)
    assert found["val/accuracy"] == pytest.approx((logits.argmax(1) == targets).float().mean().item())
    assert found["val/loss"] == pytest.approx(nn.functional.cross_entropy(logits, targets).item(), rel=1e-5)


@pytest.mark.parametrize("as_pair", [True, False])
def test_predictions_are_probabilities(as_pair):
    inputs = torch.randn(5, 4)
    batch = (inputs, torch.zeros(5)) if as_pair else inputs
    probabilities = make().predict_step(batch, 0)
    assert torch.allclose(probabilities.sum(1), torch.ones(5))


def test_default_optimizer():
    (group,) = make().configure_optimizers().param_groups
    assert (group["lr"], group["momentum"]) == (0.01, 0.9)


def test_the_default_net_fits_any_shape():
    assert Classifier(input_shape=(3, 5, 5), num_classes=4)(torch.zeros(2, 3, 5, 5)).shape == (2, 4)
