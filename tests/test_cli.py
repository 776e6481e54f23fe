"""The command line, in this process; `tests/test_packaging.py` starts it as a program."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from flightning.cli import main
from flightning.refusals import explain

#: The smallest run of the quickstart: one local pass with large batches.
QUICK = ["fit", "--config", "quickstart", "--federation.local_epochs", "1", "--data.batch_size", "256"]
ONE = [*QUICK, "--trainer.max_epochs", "1"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["flightning"])


def run_of(name="digits-fedavg", version=0):
    return Path("runs") / name / f"version_{version}"


def rounds_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


def refused(capsys, *arguments):
    """The message with which the command line refuses these arguments."""
    capsys.readouterr()
    try:
        code = main([*arguments])
    except SystemExit as left:
        code = left.code
    shown = capsys.readouterr().err
    assert code == 2
    lines = [line for line in shown.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, shown
    assert "Traceback" not in shown
    return lines[0].removeprefix("error: ")


# --- a run ----------------------------------------------------------------------------------------------------------


def test_a_run_leaves_its_folder(capsys):
    assert main([*QUICK, "--trainer.max_epochs", "2"]) == 0
    folder = run_of()
    names = {"config.yaml", "metrics.csv", "summary.json", "partition.png", "learning_curve.png", "checkpoints"}
    assert {p.name for p in folder.iterdir()} == names
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["last.ckpt"]
    assert rounds_of(folder) == [1, 2]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["model"], summary["data"], summary["rounds"], summary["finished"]) == ("FedAvg", "Digits", 2, True)
    shown = capsys.readouterr().out
    assert re.search(r"round 2/2  loss \d+\.\d+  val loss \d+\.\d+  accuracy 0\.\d+", shown)
    assert "best accuracy" in shown
    assert f"The run lies in {folder}" in shown


def test_the_resolved_configuration_runs_again(capsys):
    assert main([*ONE, "--model", "FedProx", "--model.mu", "0.3"]) == 0
    config = yaml.safe_load((run_of("digits-fedprox") / "config.yaml").read_text())
    assert config["model"]["init_args"]["mu"] == 0.3
    assert config["federation"]["local_epochs"] == 1
    assert config["optimizer"]["init_args"]["momentum"] == 0.9
    assert main(["fit", "--config", str(run_of("digits-fedprox") / "config.yaml")]) == 0
    first, second = (torch.load(run_of("digits-fedprox", v) / "checkpoints" / "last.ckpt") for v in (0, 1))
    for name, weight in first["state_dict"].items():
        assert torch.equal(weight, second["state_dict"][name])


def test_short_names_and_nested_options():
    arguments = [
        "fit", "--model", "FedProx", "--model.mu", "0.1", "--model.net", "MLP", "--model.net.hidden", "[8]",
        "--data", "Digits", "--data.num_clients", "4", "--data.partition", "Dirichlet", "--data.partition.alpha", "0.1",
        "--data.partition.min_size", "2", "--federation.local_epochs", "1", "--trainer.max_epochs", "1",
        "--optimizer", "Adam", "--optimizer.lr", "0.01", "--lr_scheduler", "MultiStepLR",
        "--lr_scheduler.milestones", "[1]", "--trainer.precision", "bf16-mixed", "--trainer.accelerator", "cpu",
    ]  # fmt: skip
    assert main(arguments) == 0
    config = yaml.safe_load((run_of("digits-fedprox") / "config.yaml").read_text())
    assert config["data"]["init_args"]["partition"]["init_args"]["alpha"] == 0.1
    saved = torch.load(run_of("digits-fedprox") / "checkpoints" / "last.ckpt")
    assert saved["state_dict"]["net.fc1.1.weight"].shape == (8, 64)  # the shape of the digits came from the data


@pytest.mark.parametrize("net", ["Small", "make_small"])
def test_a_net_of_your_own_is_a_subclass_of_net_or_a_function(net, monkeypatch):
    Path("my_nets.py").write_text(
        "from torch import nn\n"
        "from flightning.nets import Net\n"
        "class Small(Net):\n"
        "    def __init__(self, input_shape, num_classes):\n"
        "        super().__init__(input_shape, num_classes)\n"
        "        self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU())\n"
        "        self.head = nn.Linear(5, num_classes)\n"
        "def make_small(input_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, num_classes))\n"
    )
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    assert main([*ONE, "--model.net", f"my_nets.{net}"]) == 0
    weights = torch.load(run_of() / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert sum(w.numel() for w in weights.values()) == 64 * 5 + 5 + 5 * 10 + 10
    sys.modules.pop("my_nets")


def test_runs_are_numbered_and_can_be_put_elsewhere():
    assert main([*ONE, "--trainer.default_root_dir", "elsewhere"]) == 0
    assert main([*ONE, "--trainer.default_root_dir", "elsewhere"]) == 0
    assert sorted(p.name for p in Path("elsewhere/digits-fedavg").iterdir()) == ["version_0", "version_1"]


def test_a_refused_run_leaves_no_folder_that_the_next_would_go_on_from(capsys):
    assert main(ONE) == 0
    refused(capsys, *ONE, "--federation.participation", "99")
    assert [p.name for p in run_of().parent.iterdir()] == ["version_0"]


def test_a_run_is_given_a_folder_that_no_other_has(monkeypatch):
    run_of().mkdir(parents=True)  # by a run that was started in the same moment and has written nothing yet
    assert main(ONE) == 0
    assert (run_of(version=1) / "summary.json").exists()


def test_centralized_and_solo_run_from_the_same_configuration():
    for name in ("Centralized", "SOLO"):
        assert main([*ONE, "--model", name]) == 0
        assert rounds_of(run_of(f"digits-{name.lower()}")) == [1]


def test_callbacks_and_loggers_of_lightning():
    pytest.importorskip("tensorboard")
    assert main([
        *ONE, "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor=val/accuracy",
        "--trainer.callbacks.mode=max", "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss",
        "--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "tb",
    ]) == 0  # fmt: skip
    assert sorted(p.suffix for p in (run_of() / "checkpoints").iterdir()) == [".ckpt", ".ckpt"]
    assert list(Path("tb").rglob("events.out.tfevents*"))
    assert rounds_of(run_of()) == [1]


def test_a_callback_may_be_given_by_its_name_alone():
    assert main([*ONE, "--trainer.callbacks", "ClientEvaluation"]) == 0
    assert "clients/accuracy_mean" in (run_of() / "metrics.csv").read_text().splitlines()[0]


def test_fast_dev_run_leaves_nothing():
    assert main([*QUICK, "--trainer.fast_dev_run", "true", "--trainer.max_epochs", "5"]) == 0
    assert not Path("runs").exists()


def test_without_logger_and_checkpoints():
    assert main([*ONE, "--trainer.logger", "false", "--trainer.enable_checkpointing", "false"]) == 0
    assert not Path("runs").exists()


# --- the other verbs ------------------------------------------------------------------------------------------------


def test_validate_test_and_predict_the_last_run(capsys):
    assert main([*QUICK, "--trainer.max_epochs", "3", "--federation.local_epochs", "5"]) == 0
    trained = json.loads((run_of() / "summary.json").read_text())["final_accuracy"]
    capsys.readouterr()
    for verb in ("validate", "test"):
        assert main([verb, "--config", "quickstart", "--ckpt_path", "last"]) == 0
        found = float(re.search(r"accuracy\D+(0\.\d+)", capsys.readouterr().out)[1])
        assert found == pytest.approx(trained, abs=1e-6)
    assert main(["predict", "--config", "quickstart", "--ckpt_path", "last"]) == 0
    assert len(list(run_of().parent.iterdir())) == 1


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_the_checkpoint_that_a_callback_has_chosen_is_evaluated(verb):
    chosen = {"monitor": "val/accuracy", "mode": "max", "filename": "best"}
    choosing = [word for name, value in chosen.items() for word in (f"--trainer.callbacks.{name}", value)]
    assert main([*ONE, "--trainer.callbacks", "ModelCheckpoint", *choosing]) == 0
    folder = run_of()
    before = sorted(Path().rglob("*"))
    config, checkpoint = folder / "config.yaml", folder / "checkpoints" / "best.ckpt"
    assert main([verb, "--config", str(config), "--ckpt_path", str(checkpoint)]) == 0
    assert sorted(Path().rglob("*")) == before


def test_print_config_shows_what_would_run(capsys):
    with pytest.raises(SystemExit) as left:
        main(["fit", "--config", "quickstart", "--print_config"])
    assert left.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["trainer"]["max_epochs"] == 20
    assert config["federation"]["participation"] == 1.0


# --- going on -------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_in_its_folder():
    assert main([*QUICK, "--trainer.max_epochs", "2"]) == 0
    assert main([*QUICK, "--trainer.max_epochs", "4", "--ckpt_path", "last"]) == 0
    assert rounds_of(run_of()) == [1, 2, 3, 4]
    assert main([*QUICK, "--trainer.max_epochs", "4"]) == 0
    resumed, whole = (torch.load(run_of(version=v) / "checkpoints" / "last.ckpt")["state_dict"] for v in (0, 1))
    assert all(torch.equal(resumed[n], whole[n]) for n in whole)


def test_a_finished_run_says_so(capsys):
    assert main(ONE) == 0
    capsys.readouterr()
    assert main([*ONE, "--ckpt_path", "last"]) == 0
    assert "No round was trained: the checkpoint has all 1 rounds already" in capsys.readouterr().out
    assert rounds_of(run_of()) == [1]


def test_other_settings_are_refused(capsys):
    assert main(ONE) == 0
    path = str(run_of() / "checkpoints" / "last.ckpt")
    more = [*QUICK, "--trainer.max_epochs", "2", "--ckpt_path", path]
    message = refused(capsys, *more, "--seed_everything", "3")
    assert message.startswith(
        "the checkpoint was written with seed `0`, but this run has seed `3`: resume with the same"
    )
    message = refused(capsys, *more, "--data.partition.alpha", "0.3")
    assert re.search(
        r"with partition `Dirichlet\(alpha=0.5\) of 10 clients \(\w+\)`, but .*`Dirichlet\(alpha=0.3\)", message
    )
    message = refused(capsys, *more, "--model", "FedProx")
    assert "written with algorithm `FedAvg`, but this run has algorithm `FedProx`" in message
    message = refused(capsys, *more, "--model.net", "LogisticRegression")
    assert "the checkpoint holds another network" in message


def test_there_is_nothing_to_go_on_with(capsys):
    message = refused(capsys, *ONE, "--ckpt_path", "last")
    assert message.startswith("`--ckpt_path last` finds no `checkpoints/last.ckpt` in the newest run below `runs/")
    message = refused(capsys, "validate", "--config", "quickstart", "--ckpt_path", "last")
    assert message.startswith("`--ckpt_path last` finds no")


@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_checkpoints_that_cannot_be_used(capsys, verb):
    assert main(ONE) == 0
    whole = (run_of() / "checkpoints" / "last.ckpt").read_bytes()
    Path("cut.ckpt").write_bytes(whole[: len(whole) // 2])
    torch.save({"w": torch.ones(1)}, "weights.pt")
    foreign = torch.load(run_of() / "checkpoints" / "last.ckpt")
    del foreign["flightning"]
    torch.save(foreign, "foreign.ckpt")
    base = [verb, "--config", "quickstart", "--ckpt_path"]
    assert "`cut.ckpt` is truncated or no checkpoint at all" in refused(capsys, *base, "cut.ckpt")
    assert "`weights.pt` is no checkpoint of a Trainer" in refused(capsys, *base, "weights.pt")
    assert "was not written by a federation" in refused(capsys, *base, "foreign.ckpt")
    assert "there is no checkpoint `none.ckpt`" in refused(capsys, *base, "none.ckpt")


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "answer"),
    [
        (
            "--data.partition.alpha",
            r"`alpha` is an option of `Dirichlet`, .*, for instance `--data.partition Dirichlet`.",
        ),
        ("--data.skew.groups", r"`groups` is an option of .*`RotationSkew`: name the class, too, .*`--data.skew Blur"),
    ],
)
def test_an_option_of_a_rule_asks_for_the_rule(capsys, option, answer):
    message = refused(capsys, "fit", "--model", "FedAvg", "--data", "Digits", option, "4", "--trainer.max_epochs", "1")
    assert re.match(answer, message)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--model", "FedProxx"], "`FedProxx` is no class that flightning knows. Did you mean `FedProx`"),
        (["--data", "Digit"], "`Digit` is no class that flightning knows. Did you mean `Digits`"),
        (["--model.net", "MLPP"], "`MLPP` is no class that flightning knows. Did you mean `MLP`"),
        (
            ["--data.partition", "Dirichlett"],
            "`Dirichlett` is no class that flightning knows. Did you mean `Dirichlet`",
        ),
        (["--optimizer", "Adamm"], "`Adamm` is no class that flightning knows. Did you mean `Adam`"),
        (["--lr_scheduler", "StepLRR"], "`StepLRR` is no class that flightning knows. Did you mean `StepLR`"),
        (["--model.net", "nosuch.net"], "`nosuch.net` cannot be imported (No module named 'nosuch'): check"),
        (["--model", "nosuch.Model"], "`nosuch.Model` cannot be imported (No module named 'nosuch')"),
        (["--model.mu", "1"], "there is no option `mu` here. Known names: `class_names`, `input_shape`, `net`, `num"),
        (["--model", "FedProx", "--model.nu", "1"], "there is no option `nu` here. Did you mean `mu`"),
        (["--model.net", "MLP", "--model.net.hiden", "[3]"], "there is no option `hiden` here. Did you mean `hidden`?"),
        (
            ["--data.partition.alpha", "0.1", "5"],
            "`5` is left over: `--data.partition.alpha` takes one value. Write a list as `[1,2]`; several partitions",
        ),
        (["--trainer.presision", "16"], "there is no option `--trainer.presision`. Did you mean `--trainer.precision`"),
        (["--trainer.max_epochs", "many"], "`trainer.max_epochs=many` must be a whole number."),
        (["--optimizer.lr", "fast"], "`lr=fast` must be a number."),
        (["--federation.sampler", "all"], "`federation.sampler=all` must be one of `fixed`, `bernoulli`, `weighted`."),
        (["--data.partition.alpha", "0"], "`alpha` must be > 0 and finite, got 0.0: use 0.1"),
        (["--data.num_clients", "5000"], "There are more clients than samples (5000 > 1437): lower `num_clients`"),
        (["--federation.participation", "0"], "`participation=0` of 10 clients with data selects nobody"),
        (["--federation.local_steps", "3"], "`local_epochs=1` and `local_steps=3` exclude each other"),
        (["--trainer.accumulate_grad_batches", "2"], "`accumulate_grad_batches=2` would add gradients of different"),
        (["--trainer.overfit_batches", "1"], "`overfit_batches=1"),
        (["--trainer.max_epochs", "0"], "`max_epochs=0` is no number of rounds: set it to at least 1."),
        (["--trainer.max_epochs", "null"], "`trainer.max_epochs`, the number of rounds, is missing: give it"),
        (["--data", "MNIST", "--data.download", "false"], "`MNIST` cannot be read from `root='data'`"),
    ],
)
def test_mistakes_are_explained_in_one_sentence(capsys, arguments, start):
    assert refused(capsys, *ONE, *arguments).startswith(start)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ([], "say what to do, for instance `flightning fit --config quickstart`"),
        (["fitt"], "there is no verb `fitt`. Did you mean `fit`"),
        (["fit", "--model", "FedAvg"], "`--data` is missing: name a class, for instance `--data Digits`"),
        (["fit", "--config", "quickstrt"], "there is no configuration file `quickstrt`. Did you mean `quickstart`"),
        (["fit", "--config", "nosuch.yaml"], "there is no file `"),
        (["fit", "--model", "FedAvg", "--data", "Digits"], "`trainer.max_epochs`, the number of rounds, is missing"),
    ],
)
def test_incomplete_command_lines_are_explained(capsys, arguments, start):
    assert refused(capsys, *arguments).startswith(start)


def test_an_unwritable_folder_is_refused_before_training(capsys):
    Path("file").write_text("")
    message = refused(capsys, *ONE, "--trainer.default_root_dir", "file")
    assert message.startswith("the run's folder `file/digits-fedavg/version_0` cannot be written")
    assert "`--trainer.default_root_dir`" in message


def test_an_unwritable_folder_that_was_named_is_refused_with_its_own_option(capsys):
    Path("file").write_text("")
    message = refused(capsys, *ONE, "--run_folder", "file/mine")
    assert message.startswith("the run's folder `file/mine` cannot be written")
    assert "choose another with `--run_folder` or" in message


def test_messages_that_are_not_known_are_passed_on():
    assert explain("something else") == "something else"
