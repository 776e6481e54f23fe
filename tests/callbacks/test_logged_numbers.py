"""Numbers of a round reach the loggers as if Lightning had been asked each time."""

import lightning.pytorch as pl
import pytest
import torch

from flightning.callbacks.logged_numbers import log_numbers


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Teller(pl.Callback):
    def __init__(self, tell):
        self.tell, self.seen = tell, []

    def on_train_epoch_end(self, trainer, pl_module):
        self.tell(pl_module, trainer.current_epoch)
        self.seen.append({k: v.item() for k, v in trainer.callback_metrics.items()})


def logged(tell, tmp_path):
    teller = Teller(tell)
    logger = pl.loggers.CSVLogger(tmp_path)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(6)), 2)
    options = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    pl.Trainer(max_epochs=3, callbacks=[teller], logger=logger, accelerator="cpu", **options).fit(Module(), loader)
    logger.save()
    return teller.seen, (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()


def test_every_round_has_its_own_numbers(tmp_path):
    seen, _ = logged(lambda m, epoch: log_numbers(m, {"bytes": 2.0**40 + epoch, "step": epoch + 1.0}), tmp_path)
    assert [row["bytes"] for row in seen] == [2.0**40, 2.0**40 + 1, 2.0**40 + 2]


def test_log_is_that_of_lightning(tmp_path):
    def usual(module, epoch):
        numbers = {"loss": 1.0 / (epoch + 3), "step": epoch + 1.0}
        module.log_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()})

    ours = logged(lambda m, e: log_numbers(m, {"loss": 1.0 / (e + 3), "step": e + 1.0}), tmp_path / "ours")
    assert ours == logged(usual, tmp_path / "usual")


def test_number_that_comes_later_is_logged(tmp_path):
    seen, _ = logged(lambda m, e: log_numbers(m, {"a": 1.0} if e == 0 else {"a": 1.0, "late": float(e)}), tmp_path)
    assert "late" not in seen[0]
    assert [row["late"] for row in seen[1:]] == pytest.approx([1.0, 2.0])


def test_what_others_log_before_and_after_in_the_same_hook_stays(tmp_path):
    def tell(module, epoch):
        module.log("before", float(epoch))
        log_numbers(module, {"number": float(epoch)})
        module.log("after", float(epoch))

    seen, _ = logged(tell, tmp_path)
    assert [{k: row[k] for k in ("before", "number", "after")} for row in seen] == [
        {"before": e, "number": e, "after": e} for e in (0.0, 1.0, 2.0)
    ]


def test_what_others_log_after_the_numbers_stays(tmp_path):
    def tell(module, epoch):
        log_numbers(module, {"number": float(epoch)})
        module.log("after", float(epoch))

    seen, _ = logged(tell, tmp_path)
    assert [(row["number"], row["after"]) for row in seen] == [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)]
