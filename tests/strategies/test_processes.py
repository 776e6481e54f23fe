"""One pair of processes runs every case; each test looks at one of them."""

import pytest

from tests.algorithms_on_digits import READY_MADE
from tests.classification import assert_equal_nested
from tests.strategies.processes import distance, run_jobs
from tests.strategies.worker import result

PAIR = {"strategy": "client_parallel", "devices": 2}
DDP = {"strategy": "ddp", "devices": 2}
#: Their terms couple the samples of a batch, and see only the part of a process.
COUPLED = ("FedCD", "FedIR", "FedRL", "RFedAvg", "RFedAvgPlus", "VHL")
SAME_UNDER_DDP = [name for name in READY_MADE if name not in COUPLED]
REPEATED = READY_MADE
#: Seven batches of the test set.
EVALUATION = {"eval_batch_size": 60}

CASES = {
    **{f"parallel/{name}": {"name": name, "data": EVALUATION, **PAIR} for name in READY_MADE},
    **{f"ddp/{name}": {"name": name, "net": "PlainNet", **DDP} for name in SAME_UNDER_DDP},
    **{f"ddp coupled/{name}": {"name": name, "net": "PlainNet", **DDP} for name in COUPLED},
    **{f"again/{name}": {"name": name, "data": EVALUATION, **PAIR} for name in REPEATED},
    "fused": {"name": "SCAFFOLD", "federation": {"local_loop": "fused"}, **PAIR},
    "idle": {"name": "FedProx", "federation": {"participation": 1}, "saves": True, "rounds": 3, **PAIR},
    "idle fused": {
        "name": "FedProx",
        "federation": {"participation": 1, "local_loop": "fused"},
        "saves": True,
        **PAIR,
    },
    "logs": {"name": "Talkative", **PAIR},
    "logs idle": {"name": "Talkative", "federation": {"participation": 1}, **PAIR},
    "logs fused": {"name": "Talkative", "federation": {"local_loop": "fused"}, **PAIR},
    "coarse evaluation": {"name": "SOLO", "data": {"eval_batch_size": 512}, **PAIR},
    "growing": {"name": "FedMA", "arguments": {"growing": True, "sigma": 0.05}, "data": EVALUATION, **PAIR},
    "CCVR": {"name": "FedAvg", "callbacks": ["CCVR"], "data": EVALUATION, **PAIR},
    "own evaluation": {"name": "Counting", "callbacks": ["Seen"], **PAIR},
    "own evaluation ddp": {"name": "Counting", "net": "PlainNet", "callbacks": ["Seen"], **DDP},
    "one test sample": {"name": "FedAvg", "callbacks": ["Seen"], "data": {"tests": 1}, **PAIR},
    "stop": {"name": "FedAvg", "callbacks": ["Stop"], "rounds": 3, **PAIR},
    "stop ddp": {"name": "FedAvg", "net": "PlainNet", "callbacks": ["Stop"], "rounds": 3, **DDP},
    "bf16": {"name": "SCAFFOLD", "precision": "bf16-mixed", **PAIR},
    "ddp fused": {"name": "FedProx", "net": "PlainNet", "federation": {"local_loop": "fused"}, **DDP},
    # 32 samples in batches of 5: six full ones (3 + 2 samples) and one of 2; 31 samples end with a single one
    "ddp remainder": {"name": "FedAvg", "net": "PlainNet", "data": {"batch_size": 5}, **DDP},
    "ddp augmented": {"name": "FedAvg", "net": "PlainNet", "data": {"augmented": True}, **DDP},
    "ddp batch norm": {"name": "FedAvg", "net": "BatchNormNet", **DDP},
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    jobs = [{"key": key, **case} for key, case in CASES.items()]
    return run_jobs(tmp_path_factory.mktemp("pair"), jobs)


def single(case):
    """The same run in one process."""
    return result(**{k: v for k, v in case.items() if k not in ("strategy", "devices")})


def assert_agrees(ours, expected, tolerance=1e-6):
    for part in ("weights", "server", "clients"):
        assert distance(expected[part], ours[part]) < tolerance, part
    # deviations are small differences of large numbers
    metrics = {k: v for k, v in expected["metrics"].items() if "_std" not in k}
    assert distance(metrics, {k: ours["metrics"][k] for k in metrics}) < 10 * tolerance
    assert expected["metrics"].keys() == ours["metrics"].keys()


@pytest.mark.parametrize("key", CASES)
def test_processes_end_with_the_same_state(ranks, key):
    first, second = ({k: v for k, v in rank[key].items() if k != "clients"} for rank in ranks)
    assert_equal_nested(first, second)


@pytest.mark.parametrize("key", CASES)
def test_the_first_process_knows_the_state_of_every_client_and_others_the_same_of_some(ranks, key):
    everybody, some = (rank[key]["clients"] for rank in ranks)
    assert_equal_nested({client: everybody[client] for client in some}, some)


def test_states_are_spread_unless_they_are_weights_that_all_processes_evaluate(ranks):
    for name in ("SCAFFOLD", "MOON", "FedDyn"):
        trained, own = (set(rank[f"parallel/{name}"]["clients"]) for rank in ranks)
        assert own == {client for client in trained if client % 2 == 1}
        assert 0 < len(own) < len(trained)
    assert ranks[1]["parallel/SOLO"]["clients"].keys() == ranks[0]["parallel/SOLO"]["clients"].keys()


@pytest.mark.parametrize("name", READY_MADE)
def test_client_parallel_agrees_with_one_process(ranks, name):
    assert_agrees(ranks[0][f"parallel/{name}"], single(CASES[f"parallel/{name}"]))


@pytest.mark.parametrize("name", SAME_UNDER_DDP)
def test_ddp_agrees_with_one_process(ranks, name):
    assert_agrees(ranks[0][f"ddp/{name}"], single(CASES[f"ddp/{name}"]), tolerance=1e-5)


@pytest.mark.parametrize("name", REPEATED)
def test_two_runs_of_the_same_layout_are_bit_identical(ranks, name):
    assert_equal_nested(ranks[0][f"again/{name}"], ranks[0][f"parallel/{name}"])


@pytest.mark.parametrize("key", ["fused", "idle", "idle fused", "coarse evaluation", "growing"])
def test_other_settings_agree_with_one_process(ranks, key):
    assert_agrees(ranks[0][key], single(CASES[key]))


@pytest.mark.parametrize(
    ("fused", "lightning"), [("fused", "parallel/SCAFFOLD"), ("ddp fused", "ddp/FedProx")], ids=["parallel", "ddp"]
)
def test_loops_agree_to_the_last_bit_in_the_same_layout(ranks, fused, lightning):
    for part in ("weights", "server", "clients", "global_step"):
        assert_equal_nested(ranks[0][fused][part], ranks[0][lightning][part])


@pytest.mark.parametrize("key", ["own evaluation", "own evaluation ddp"])
def test_samples_are_counted_once_where_every_process_evaluates_all(ranks, key):
    metrics = ranks[0][key]["metrics"]
    assert metrics["val/samples"] == metrics["val/seen"] == 360
    assert_agrees(ranks[0][key], single(CASES[key]), tolerance=1e-5)


def test_a_test_set_smaller_than_the_number_of_processes_is_counted_once(ranks):
    assert ranks[0]["one test sample"]["metrics"]["val/seen"] == 1
    assert_agrees(ranks[0]["one test sample"], single(CASES["one test sample"]))


@pytest.mark.parametrize("key", ["stop", "stop ddp"])
def test_all_processes_stop_where_one_was_asked_to(ranks, key):
    assert [rank[key]["metrics"]["round"] for rank in ranks] == [1, 1]


@pytest.mark.parametrize("key", ["logs", "logs idle", "logs fused"])
def test_what_local_steps_log_is_that_of_all_clients(ranks, key):
    expected = single(CASES[key])
    assert {"train/accuracy", "train/loss", "train/loss_epoch", "train/largest"} <= expected["metrics"].keys()
    assert_agrees(ranks[0][key], expected)


@pytest.mark.parametrize("key", ["parallel/FedAvg", "idle", "idle fused", "fused"])
def test_lightning_counts_the_steps_of_all_processes(ranks, key):
    assert ranks[1][key]["global_step"] == ranks[0][key]["global_step"] == single(CASES[key])["global_step"]


def test_accuracy_after_ccvr_agrees_with_one_process(ranks):
    ours, expected = ranks[0]["CCVR"], single(CASES["CCVR"])
    assert "ccvr/accuracy" in expected["metrics"]
    assert_agrees(ours, expected)


def test_mixed_precision_agrees_with_one_process(ranks):
    # the first round is the same to the last bit; afterwards a difference of 1e-16 may round a bfloat16 the other way
    assert_agrees(ranks[0]["bf16"], single(CASES["bf16"]), tolerance=1e-3)


@pytest.mark.parametrize("key", ["ddp fused", "ddp remainder", "ddp augmented"])
def test_ddp_with_other_settings_agrees_with_one_process(ranks, key):
    assert_agrees(ranks[0][key], single(CASES[key]), tolerance=1e-5)
