"""The command line: `flightning fit --model FedProx --data FashionMNIST --trainer.max_epochs 50`."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

# Imported classes can be referenced by their bare names.
import flightning.algorithms
import flightning.datamodules
import flightning.nets
from flightning.budget import scale_rounds
from flightning.callbacks import Federation, LastCheckpoint, RoundLogging, RoundProgress, RunReport
from flightning.datamodules import FederatedDataModule
from flightning.datamodules.view import describe
from flightning.errors import CheckpointError, ClientError, ConfigurationError, FlightningError
from flightning.loggers import (
    RoundCSVLogger,
    claim_version,
    ensure_writable,
    latest_version,
    name_wandb_run,
    next_version,
)
from flightning.packaged import find_config
from flightning.refusals import explain
from flightning.strategies.watch import has_lost_process
from flightning.verbs import VERBS, run_verb
from flightning.version import __version__

__all__ = ["FederatedCLI", "FriendlyParser", "construct", "main", "quieten"]

#: Options that belong to one run and not to its configuration: another run with the same `config.yaml` lacks them.
_OF_ONE_RUN = ("run_folder", "budget", "ckpt_path")


class FriendlyParser(LightningArgumentParser):
    """Say what is wrong with an argument in one sentence."""

    #: The arguments of the command line, which the parsers of its parts do not see as a whole.
    given: Sequence[str] = ()

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the reason and leave with code 2."""
        verbs = [verb for action in self._actions for verb in _choices(action)]
        parsers = [self, *(p for action in self._actions for p in _choices(action).values())]
        options = {option for parser in parsers for option in parser._option_string_actions}
        sentence = explain(message, options, _known_classes(), [*verbs, *VERBS], FriendlyParser.given)
        print(f"error: {sentence}", file=sys.stderr)
        raise SystemExit(2)


def _choices(action: Any) -> dict[str, Any]:
    """Parsers of the verbs, where this argument is the verb."""
    return action.choices if isinstance(action.choices, dict) else {}


def _known_classes() -> list[str]:
    exported = [*flightning.algorithms.__all__, *flightning.datamodules.__all__, *flightning.nets.__all__]
    return [name for name in exported if not name.endswith("Mixin")]


@contextmanager
def _in_own_words() -> Iterator[None]:
    """Raise what a constructor refuses in its own words: jsonargparse wraps it into others."""
    try:
        yield
    except ValueError as error:
        if "Does not validate against any of the Union subtypes" in str(error):
            raise ConfigurationError(explain(str(error), classes=_known_classes())) from error
        raise


def construct(parser: LightningArgumentParser, config: Namespace) -> Namespace:
    """Build the classes of a parsed configuration."""
    with _in_own_words():
        return parser.instantiate_classes(config)


class RunConfig(SaveConfigCallback):
    """Write the resolved configuration into the run's folder and hand it to the loggers."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Save once, at the start of a fit."""
        folder = next((c.folder for c in trainer.callbacks if isinstance(c, RunReport)), None)  # type: ignore[attr-defined]
        if stage != "fit" or folder is None or not trainer.is_global_zero:
            return
        ensure_writable(folder)
        config = self.config.clone()
        for name in _OF_ONE_RUN:
            config.pop(name, None)
        text = self.parser.dump(config, skip_none=False)
        (folder / "config.yaml").write_text(text)
        for logger in trainer.loggers:
            logger.log_hyperparams(config.as_dict())


class FederatedCLI(LightningCLI):
    """LightningCLI with `federation`, links from data to model, and a folder per run."""

    #: Folder that was made for this run, so that no other takes it.
    _claimed: Path | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
        finally:
            if self._claimed is not None:
                with suppress(OSError):  # the run has left something there
                    self._claimed.rmdir()

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Parse with the friendly parser."""
        parser = FriendlyParser(**{"version": __version__, **kwargs})
        parser.add_argument(
            "-c", "--config", action=ActionConfigFile, help="A YAML file, or the name of a packaged configuration."
        )
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add `federation`, and tell the model what the data look like."""
        parser.add_lightning_class_args(Federation, "federation")
        for name in ("num_classes", "input_shape", "class_names"):
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "fit":
            parser.add_argument(
                "--run_folder",
                type=str | None,
                help="Folder of this run, in place of the next `runs/<data>-<model>/version_<n>`; with `--ckpt_path "
                "last`, the run that goes on.",
            )
            parser.add_argument(
                "--budget",
                type=float,
                default=1.0,
                help="Fraction of the rounds to run; schedules are scaled with them, and reports say so on top.",
            )
        return parser

    def before_instantiate_classes(self) -> None:
        """Scale the rounds down to the budget."""
        if self.subcommand == "fit":
            self.notice = scale_rounds(self.config.fit, self.config.fit.budget)

    def instantiate_classes(self) -> None:
        """Build everything; jsonargparse wraps what a constructor refuses into its own words."""
        with _in_own_words():
            super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the run's folder with its log, checkpoint, pictures and table."""
        config = self._get(self.config_init, "trainer", default={})
        if self.subcommand == "fit":
            if config.get("max_epochs") is None and not config.get("fast_dev_run"):
                raise ConfigurationError(
                    "`trainer.max_epochs`, the number of rounds, is missing: give it, for instance "
                    "`--trainer.max_epochs 50`."
                )
            if config.get("logger") is not False and not config.get("fast_dev_run"):
                kwargs.update(self._run_arguments(config))
        else:
            self._find_last(self._runs(config))
            if config.get("logger") is None:
                # Lightning refuses a `ModelCheckpoint`, such as that of the run, where there shall be none
                own = any(isinstance(callback, ModelCheckpoint) for callback in _as_list(config.get("callbacks")))
                kwargs.update(logger=False, enable_checkpointing=own)
        return super().instantiate_trainer(**kwargs)

    def _parse_ckpt_path(self) -> None:
        """Leave the configuration as it is: Lightning would take class and settings of the model from the checkpoint.

        What was asked for would be replaced in silence, and a resumed run could not be refused.
        """

    def _run_arguments(self, config: Any) -> dict[str, Any]:
        folder = self._run_folder(config)
        loggers = [logger for logger in _as_list(config.get("logger")) if logger is not True]
        model, data = (self._get(self.config_init, part) for part in ("model", "data"))
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                name_wandb_run(logger, type(model).__name__, type(data).__name__, describe(data), data.seed)
        callbacks: list[Callback] = _as_list(config.get("callbacks"))
        callbacks += [RoundProgress()] if config.get("enable_progress_bar") is not False else []
        callbacks += [RoundLogging(), RunReport(folder, notice=self.notice)]
        if config.get("enable_checkpointing") is not False:
            for callback in callbacks:
                if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                    callback.dirpath = str(folder / "checkpoints")
            callbacks.append(LastCheckpoint(folder / "checkpoints"))
        return {"logger": [RoundCSVLogger(folder), *loggers], "callbacks": callbacks}

    def _run_folder(self, config: Any) -> Path:
        given, checkpoint = (self._get(self.config_init, name) for name in ("run_folder", "ckpt_path"))
        if given is not None:
            own = checkpoint is not None and Path(checkpoint).resolve() == _last_checkpoint(Path(given)).resolve()
            resumes = own or checkpoint == "last"
            folder = _given_folder(Path(given), resumes)
            if resumes:
                self._set_checkpoint(folder)
            return folder
        return self._find_last(self._runs(config)) or self._new_folder(self._runs(config))

    def _new_folder(self, runs: Path) -> Path:
        # the folder of the first process is that of the run
        if rank_zero_only.rank:  # type: ignore[attr-defined]
            return next_version(runs)
        self._claimed = claim_version(runs)
        return self._claimed

    def _runs(self, config: Any) -> Path:
        names = [type(self._get(self.config_init, part)).__name__ for part in ("data", "model")]
        return Path(config.get("default_root_dir") or "runs") / "-".join(names).lower()

    def _find_last(self, runs: Path) -> Path | None:
        """The newest run and its checkpoint, where `--ckpt_path last` asks for them."""
        if self._get(self.config_init, "ckpt_path") != "last":
            return None
        latest = latest_version(runs)
        if latest is None or not _last_checkpoint(latest).exists():
            raise CheckpointError(
                f"`--ckpt_path last` finds no `checkpoints/last.ckpt` in the newest run below `{runs}`: start a run "
                "without it, or give the path of a checkpoint."
            )
        self._set_checkpoint(latest)
        return latest

    def _set_checkpoint(self, folder: Path) -> None:
        self.config_init[str(self.subcommand)]["ckpt_path"] = str(_last_checkpoint(folder))

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        with warnings.catch_warnings():
            # the classifier's own optimizer is a default that `--optimizer` is meant to replace
            warnings.filterwarnings("ignore", message=".*configure_optimizers` will be overridden.*")
            super()._add_configure_optimizers_method_to_model(subcommand)


def _as_list(given: Any) -> list[Any]:
    """What was given once, several times or not at all."""
    return list(given) if isinstance(given, list) else [] if given is None else [given]


def _last_checkpoint(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def _given_folder(folder: Path, resumes: bool) -> Path:
    if resumes and not _last_checkpoint(folder).exists():
        raise CheckpointError(
            f"`--ckpt_path last` finds no `checkpoints/last.ckpt` in `run_folder={str(folder)!r}`: start the run "
            "without it, or give the folder of an interrupted run."
        )
    if not resumes and (folder / "metrics.csv").exists():
        raise ConfigurationError(
            f"`run_folder={str(folder)!r}` holds a run already: choose another folder, or let that run go on with "
            "`--ckpt_path last`."
        )
    return folder


def main(args: Sequence[str] | None = None, callbacks: Sequence[Callback] = ()) -> int:
    """Run the command line.

    Args:
        args: Arguments without the program's name; ``None`` takes those of the process.
        callbacks: More callbacks for the Trainer, beside those of the configuration.

    Returns:
        Exit code: 0, 2 where the configuration cannot work, or 1 where another process of the run has ended.
    """
    argv = list(sys.argv[1:] if args is None else args)
    code = run_verb(argv)
    if code is not None:
        return code
    try:
        quieten()
        argv = [_packaged_config(argv, i) for i in range(len(argv))]
        FriendlyParser.given = argv
        if args is None:
            sys.argv[1:] = argv
        FederatedCLI(
            LightningModule,
            FederatedDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=RunConfig,
            seed_everything_default=0,
            trainer_defaults={"enable_model_summary": False, "callbacks": list(callbacks)},
            parser_kwargs={"prog": "flightning", "description": f"Other verbs: {', '.join(VERBS)}."},
            args=None if args is None else argv,
        )
    except ClientError:
        raise  # its cause and traceback are what the user looks for
    except FlightningError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RuntimeError:
        if not has_lost_process():
            raise
        return 1  # it was named already, and this is its echo
    return 0


def _packaged_config(argv: list[str], position: int) -> str:
    """Replace the bare name of a packaged configuration, such as ``quickstart``, by its path."""
    argument = argv[position]
    prefix, value = ("--config=", argument[9:]) if argument.startswith("--config=") else ("", argument)
    if not prefix and (position == 0 or argv[position - 1] not in ("--config", "-c")):
        return argument
    return prefix + find_config(value)


def quieten() -> None:
    """Keep Lightning's hints that do not concern a federation off the screen."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric.utilities.seed").setLevel(logging.WARNING)
    for message in (
        r".*number of training batches.*smaller than the logging interval.*",
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
        r".*does not have many workers.*",
        r".*exists and is not empty.*",
        r".*callbacks used to create the checkpoint need to be provided.*",
        r".*The dirpath has changed from.*",
        r".*LightningCLI's args parameter is intended to run from within Python.*",
    ):
        warnings.filterwarnings("ignore", message=message)
