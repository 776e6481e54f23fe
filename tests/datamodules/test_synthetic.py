"""Made-up data: the numbers of the papers and of the formulas."""

import numpy as np
import pytest
import torch

from flightning.datamodules import FCube, Quadratic, Synthetic
from flightning.errors import ConfigurationError


def set_up(data):
    data.setup("fit")
    return data


def test_quadratic_optimum():
    assert Quadratic().optimum == pytest.approx((1 * -1 + 3 * 0.5 + 10 * 2) / (1 + 3 + 10))


def test_synthetic_sizes_and_shapes_of_the_paper():
    data = set_up(Synthetic(seed=3))
    assert (data.num_clients, data.num_classes, data.input_shape) == (30, 10, (60,))
    assert data.sizes.min() >= 45  # nine tenths of at least 50
    shares = [len(own) / (len(own) + size) for own, size in zip(data.local_tests.parts, data.sizes, strict=True)]
    assert np.allclose(shares, 0.1, atol=0.02)


def test_synthetic_clients_are_those_the_samples_were_made_for():
    data = set_up(Synthetic(num_clients=5, seed=0))
    assert [set(data.train_source.ids[part]) for part in data.parts] == [{0}, {1}, {2}, {3}, {4}]


def test_synthetic_inputs_have_the_variances_of_the_paper():
    data = set_up(Synthetic(0.0, 0.0, iid=True, seed=0))
    x = data.train_source.inputs
    assert torch.allclose(x.var(0)[:5], torch.arange(1.0, 6) ** -1.2, rtol=0.1)
    assert x.mean(0).abs().max() < 0.05


def test_synthetic_labels_come_from_one_linear_model_where_data_is_iid():
    """A linear classifier of some clients fits the others where data is IID, and does not where it is not."""
    scores = []
    for iid in (True, False):
        data = set_up(Synthetic(1.0, 1.0, iid=iid, seed=0, num_clients=40))
        first, others = np.concatenate(data.parts[:30]), np.concatenate(data.parts[30:])
        x, y = data.train_source.inputs[first], data.train_source.targets[first]
        torch.manual_seed(0)
        linear = torch.nn.Linear(60, 10)
        optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=60, line_search_fn="strong_wolfe")

        def closure(linear=linear, optimizer=optimizer, x=x, y=y):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(linear(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        hits = linear(data.train_source.inputs[others]).argmax(1) == data.train_source.targets[others]
        scores.append(float(hits.float().mean()))
    assert scores[0] > 0.85
    assert scores[1] < 0.5


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (2.0, 2.0)])
def test_beta_moves_the_inputs_of_the_clients_apart(alpha, beta):
    data = set_up(Synthetic(alpha, beta, seed=0, num_clients=100))
    means = [data.train_source.inputs[part].mean() for part in data.parts]
    # the mean of a client's inputs is B_k, up to the 60 entries around it
    assert np.std(means) == pytest.approx(max(beta, 60**-0.5), rel=0.3)


def test_the_seed_decides():
    a, b, c = (set_up(Synthetic(seed=seed, num_clients=3)).train_source.inputs for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert a.shape != c.shape or not torch.equal(a, c)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_synthetic_is_checked(name):
    with pytest.raises(ConfigurationError, match=f"`{name}` must be >= 0, got -1"):
        Synthetic(**{name: -1.0})


def test_fcube_differs_in_features_alone():
    data = set_up(FCube(seed=0))
    assert data.num_clients == 4
    assert data.heterogeneity().emd < 0.1
    for client, part in enumerate(data.parts):
        x, y = data.train_source.inputs[part], data.train_source.targets[part]
        signs = {tuple(s) for s in (x > 0).int().tolist()}
        assert len(signs) == 2, client
        assert torch.equal(y, (x[:, 0] > 0).long())


def test_alpha_changes_no_sample():
    # W_k = u_k + N(0, 1) in every entry: u_k (sum(x) + 1) is added to the logits of all classes
    one, other = (set_up(Synthetic(alpha, 1.0, num_clients=5, seed=0)).train_source for alpha in (0.0, 10.0))
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.targets, other.targets)
