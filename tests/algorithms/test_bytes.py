"""What each method sends besides the model, counted by the engine in a round in which everything has begun."""

import pytest

import flightning.algorithms
from tests.classification import BatchNormNet, make_data, make_module, run

N, C, D, M = 3, 3, 5, 3  # clients, classes, features of the net, prototypes of a class
OWNED = 2  # classes of each client
NOTHING = lambda p: (0, 0)  # noqa: E731

#: Method, arguments, and extra numbers up and down per client for a model of P parameters.
EXTRAS = [
    *[(name, {}, NOTHING) for name in ("FedAvg", "FedProx", "FedRL", "MOON", "FedAvgM", "FedOpt", "FedDyn", "IDA")],
    *[(name, {}, NOTHING) for name in ("FedAdagrad", "FedAdam", "FedYogi", "FedPD", "FedAtt", "FedIR")],
    *[(name, {}, NOTHING) for name in ("CDFDM", "DataSharing", "VHL")],
    ("FedDF", {"steps": 2}, NOTHING),
    ("SCAFFOLD", {}, lambda p: (p, p)),
    ("FedDC", {}, lambda p: (0, p)),
    ("FedCurv", {}, lambda p: (2 * p, 2 * p)),
    ("FedNova", {}, lambda p: (1, 0)),
    ("QFedAvg", {}, lambda p: (1, 0)),
    ("IDA", {"intrac": True}, lambda p: (1, 0)),
    ("RFedAvg", {}, lambda p: (D, N * D)),
    ("RFedAvgPlus", {}, lambda p: (D, D)),
    ("FedMA", {}, lambda p: (C, 0)),
]
#: Methods on the features of a projection head, which they add where there is none.
ON_HEADS = [
    ("FedProc", lambda d: (C * d + C, C * d)),
    ("FedCD", lambda d: (C * M * d + C * M, C * M * d + C * M)),
]
#: Numbers up and down per client in place of the model.
IN_PLACE = [
    ("FedProto", {}, (OWNED * D, C * D)),
    ("FD", {}, (C * C, C * C)),
    ("DSFL", {"open_size": 6}, (6 * C, 6 * C)),
    ("SOLO", {}, (0, 0)),
]


def second_round(name, net=None, **arguments):
    """Module, and numbers that were sent in the second of three rounds."""
    options = {"net": net} if net else {}
    # 24 samples of a client, so that those at the server are enough for the methods that want some
    data = make_data(per_class=12, shared_fraction=0.25 if name in ("DSFL", "FedDF", "CDFDM", "DataSharing") else 0.0)
    module, rounds = run(getattr(flightning.algorithms, name), 3, data, **options, **arguments)
    counted = ("bytes_up", "bytes_down", "extra_bytes_up", "extra_bytes_down")
    return module, {key: rounds[1][f"round/{key}"] / 4 / N for key in counted}


@pytest.mark.parametrize(("name", "arguments", "extras"), EXTRAS)
def test_extras_besides_the_model(name, arguments, extras):
    module, sent = second_round(name, **arguments)
    size = sum(p.numel() for p in module.parameters())
    up, down = extras(size)
    assert (sent["extra_bytes_up"], sent["extra_bytes_down"]) == (up, down)
    assert (sent["bytes_up"], sent["bytes_down"]) == (size + up, size + down)


@pytest.mark.parametrize(("name", "extras"), ON_HEADS)
def test_extras_of_prototypes(name, extras):
    module, sent = second_round(name)
    assert (sent["extra_bytes_up"], sent["extra_bytes_down"]) == extras(next(module.net.head.parameters()).shape[-1])


@pytest.mark.parametrize(("name", "arguments", "numbers"), IN_PLACE)
def test_what_is_sent_in_place_of_the_model(name, arguments, numbers):
    _, sent = second_round(name, **arguments)
    assert (sent["bytes_up"], sent["bytes_down"]) == numbers


@pytest.mark.parametrize(("name", "kept"), [("FedBN", 4 * D), ("SiloBN", 2 * D)])
def test_batch_norm_that_stays_is_not_sent(name, kept):
    # weight, bias, running mean and running variance of D channels; the batch counter is an integer of 8 bytes
    size = sum(p.numel() for p in make_module(flightning.algorithms.FedAvg, net=BatchNormNet).parameters()) + 2 * D
    _, sent = second_round(name, net=BatchNormNet)
    assert (sent["bytes_up"], sent["bytes_down"]) == (size - kept, size - kept)
    assert second_round("FedAvg", net=BatchNormNet)[1]["bytes_up"] >= size
