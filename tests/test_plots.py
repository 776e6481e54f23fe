import numpy as np
import pytest

from flightning.plots import learning_curve_figure, partition_figure, save_figure


def circles(figure):
    (axes,) = figure.axes
    (points,) = axes.collections
    return points.get_offsets(), points.get_sizes()


def test_area_is_proportional_to_samples():
    places, sizes = circles(partition_figure(np.array([[10, 0], [5, 20]])))
    assert places.tolist() == [[0, 0], [1, 0], [1, 1]]
    assert (sizes / sizes.max()).tolist() == [0.5, 0.25, 1.0]


def test_names_of_classes_are_shown():
    figure = partition_figure(np.eye(3, dtype=int), ["cat", "dog", "owl"], "Pets")
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["cat", "dog", "owl"]
    assert figure.axes[0].get_title() == "Pets"


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (500, 100), (61, 26), (3, 300)])
def test_any_number_of_clients_and_classes_can_be_drawn(clients, classes, tmp_path):
    counts = np.random.default_rng(0).integers(0, 9, (clients, classes))
    figure = partition_figure(counts)
    save_figure(figure, tmp_path / "p.png")
    assert "client" in figure.axes[0].get_xlabel()
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_an_empty_partition_can_be_drawn(tmp_path):
    save_figure(partition_figure(np.zeros((2, 2), dtype=int)), tmp_path / "p.png")


def test_curves_of_accuracy_and_loss():
    rows = {1: {"val/accuracy": 0.5, "round/loss": 2.0}, 2: {"round/loss": 1.0}, 3: {"val/accuracy": 0.7}}
    figure = learning_curve_figure(rows, "FedAvg")
    (accuracy,) = figure.axes[0].lines
    (loss,) = figure.axes[1].lines
    assert accuracy.get_xydata().tolist() == [[1, 0.5], [3, 0.7]]
    assert loss.get_xydata().tolist() == [[1, 2.0], [2, 1.0]]


def test_the_spread_over_clients_is_a_band():
    rows = {r: {"val/accuracy": 0.5, "val/accuracy_std": 0.1} for r in (1, 2)}
    (band,) = learning_curve_figure(rows, "SOLO").axes[0].collections
    ys = band.get_paths()[0].vertices[:, 1]
    assert (ys.min(), ys.max()) == pytest.approx((0.4, 0.6))


def test_a_run_without_metrics_can_be_drawn(tmp_path):
    save_figure(learning_curve_figure({}, "nothing"), tmp_path / "l.png")


def test_rounds_that_hold_nan_can_be_drawn(tmp_path):
    rows = {1: {"round/loss": float("nan")}, 2: {"round/loss": 1.0}}
    save_figure(learning_curve_figure(rows, "bad"), tmp_path / "l.png")
