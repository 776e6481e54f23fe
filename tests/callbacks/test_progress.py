import io
import sys
import time

from flightning.algorithms import SOLO, FedAvg
from flightning.callbacks import RoundProgress
from tests.classification import make_data, make_module
from tests.problems import fit


class Terminal(io.StringIO):
    def isatty(self):
        return True


def train(cls=FedAvg, rounds=2, **kwargs):
    fit(make_module(cls), make_data(), rounds, callbacks=[RoundProgress()], enable_progress_bar=True, **kwargs)


def test_one_line_per_round_without_a_terminal(capsys):
    train()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round")]
    assert len(lines) == 2
    assert lines[1].startswith("round 2/2  loss ")
    assert all(word in lines[0] for word in ("val loss", "accuracy", " s"))


def test_personal_methods_show_the_spread(capsys):
    train(SOLO)
    assert "±" in capsys.readouterr().out


def test_rounds_without_validation_still_have_a_line(capsys):
    train(limit_val_batches=0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round")]
    assert len(lines) == 2
    assert "accuracy" not in lines[0]


def test_a_bar_in_a_terminal_shows_round_client_and_loss(monkeypatch):
    class Slow(FedAvg):
        def on_client_end(self):
            time.sleep(0.11)  # the bar is drawn at most every tenth of a second
            return super().on_client_end()

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    train(Slow)
    shown = terminal.getvalue()
    assert "Round 1/2" in shown
    assert "Round 2/2" in shown
    assert "of 3, loss" in shown
    assert "last round: " in shown


def test_a_silenced_bar_prints_nothing(capsys):
    progress = RoundProgress()
    progress.disable()
    fit(make_module(FedAvg), make_data(), 1, callbacks=[progress], enable_progress_bar=True)
    assert "round 1" not in capsys.readouterr().out
