"""Pictures are drawn, and say what they should; how they look is seen in the docs."""

import numpy as np
import pytest

from flightning.plots import (
    confusion_figure,
    partition_figure,
    partitions_figure,
    samples_figure,
    save_figure,
    sizes_figure,
)

RNG = np.random.default_rng(0)


def counts(clients=5, classes=3):
    return RNG.integers(0, 20, (clients, classes))


def test_one_bubble_for_each_client_and_class_that_is_held():
    table = np.array([[3, 0], [1, 2]])
    (axes,) = partition_figure(table, ["ant", "bee"], "title").axes
    bubbles = axes.collections[0]
    assert bubbles.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    areas = bubbles.get_sizes()
    assert areas[0] == pytest.approx(3 * areas[1])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ant", "bee"]
    assert axes.get_title() == "title"


def test_many_clients_become_a_map_of_all_of_them():
    table = counts(200, 4)
    axes = partition_figure(table).axes[0]
    (image,) = axes.images
    shares = np.asarray(image.get_array())
    assert shares.shape == (4, 200)
    assert np.sort(shares.sum(0)) == pytest.approx(np.ones(200))
    assert np.all(np.diff(shares.argmax(0)) >= 0)  # ordered by the most frequent class
    assert "200 clients" in axes.get_xlabel()


def test_the_largest_share_of_a_map_is_the_darkest():
    # 100 classes of which each client holds half: no share is larger than 1/50
    table = np.tile(np.arange(100) % 2, (80, 1))
    (image,) = partition_figure(table).axes[0].images
    assert image.get_clim() == pytest.approx((0, 1 / 50))


def test_empty_clients_and_classes_do_not_hurt(tmp_path):
    for clients in (3, 100):
        save_figure(partition_figure(np.zeros((clients, 2), dtype=np.int64)), tmp_path / "x.png")


def test_compared_bubbles_have_one_scale():
    small, large = partitions_figure({"a": np.array([[1, 1]]), "b": np.array([[10, 1]])}).axes
    assert small.collections[0].get_sizes()[0] == pytest.approx(large.collections[0].get_sizes()[1])


def test_histograms_count_every_client_on_one_scale():
    figure = sizes_figure({"a": np.array([10, 10, 20]), "b": np.array([1000])})
    for axes, number in zip(figure.axes, (3, 1), strict=True):
        assert sum(patch.get_height() for patch in axes.patches) == number
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()


def test_equal_sizes_make_one_bar():
    axes = sizes_figure({"a": np.full(50, 7)}).axes[0]
    assert [patch.get_height() for patch in axes.patches if patch.get_height()] == [50]


def test_changed_labels_are_marked():
    grey, colour = np.zeros((4, 4)), np.zeros((4, 4, 3))
    figure = samples_figure(
        {"client 0": [(grey, "ant", False), (colour, "bee", True)], "client 1": [(grey, "x", False)]}
    )
    colors = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
    assert colors["ant"] == "black"
    assert colors["bee"] != "black"


def test_pictures_of_a_strip_keep_their_proportions_in_a_cell_each():
    high, wide = np.zeros((8, 4)), np.zeros((4, 8, 3))
    (axes,) = samples_figure({"client 0": [(high, "a", False), (wide, "b", False)]}).axes
    first, second = (image.get_extent() for image in axes.images)
    assert (first[2] - first[3]) / (first[1] - first[0]) == pytest.approx(2)
    assert (second[2] - second[3]) / (second[1] - second[0]) == pytest.approx(1 / 2)
    assert 0 <= first[0] < first[1] < 1 <= second[0] < second[1] < 2


def test_confusion_shows_shares_of_the_true_class(tmp_path):
    figure = confusion_figure(np.array([[3.0, 1.0], [0.0, 0.0]]), None, "confusion")
    assert [text.get_text() for text in figure.axes[0].texts] == ["75", "25"]
    save_figure(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000
