"""Run a fraction of the rounds of a configuration, and say so."""

from __future__ import annotations

from typing import Any

from flightning.errors import ConfigurationError

__all__ = ["scale_rounds"]

#: Arguments of PyTorch's schedulers that count rounds.
_IN_ROUNDS = (
    *("milestones", "step_size", "T_max", "T_0", "total_iters"),
    *("step_size_up", "step_size_down"),  # CyclicLR
    *("total_steps", "epochs"),  # OneCycleLR
    *("patience", "cooldown"),  # ReduceLROnPlateau
)


def scale_rounds(config: Any, budget: float) -> str:
    """Scale ``trainer.max_epochs`` down, and with it what schedule and method count in rounds.

    Args:
        config: Configuration of a fit (a mapping or a namespace of jsonargparse), changed in place.
        budget: Fraction of the rounds, in (0, 1]; ``1`` changes nothing.

    Returns:
        What must stand on top of every report of the run; empty where nothing was changed.

    Raises:
        ConfigurationError: Where the budget is no such fraction.

    Example:
        >>> config = {"trainer": {"max_epochs": 120},
        ...           "lr_scheduler": {"class_path": "MultiStepLR", "init_args": {"milestones": [40, 80]}}}
        >>> scale_rounds(config, 0.05)
        'Budget 0.05: 6 rounds in place of 120, learning-rate schedule scaled with them (milestones [2, 4] in place \
of [40, 80]). These are not the numbers of the full protocol.'
        >>> config["trainer"]["max_epochs"]
        6
    """
    if not 0 < budget <= 1:
        raise ConfigurationError(f"`budget={budget:g}` must lie in (0, 1]: 0.05 runs a twentieth of the rounds.")
    trainer = config["trainer"]
    rounds = trainer.get("max_epochs")
    if budget == 1 or rounds is None or rounds < 1:
        return ""
    fewer = max(1, round(budget * rounds))
    trainer["max_epochs"] = fewer
    scheduler = config.get("lr_scheduler")
    changed = _scale_schedule(scheduler, fewer / rounds)
    details = ", learning-rate schedule not scaled" if scheduler else ""
    details = f", learning-rate schedule scaled with them ({', '.join(changed)})" if changed else details
    details += _scale_method(config.get("model"), fewer, rounds) + _scale_evaluation(trainer, fewer, rounds)
    counted = f"{fewer} round{'s' if fewer > 1 else ''}"
    return (
        f"Budget {budget:g}: {counted} in place of {rounds}{details}. These are not the numbers of the full protocol."
    )


def _scale_schedule(scheduler: Any, factor: float) -> list[str]:
    arguments = (scheduler or {}).get("init_args") or {}
    changed = []
    for name in _IN_ROUNDS:
        before = arguments.get(name)
        if not before:  # no patience at all is none in fewer rounds, too
            continue
        after = [_scaled(b, factor) for b in before] if isinstance(before, list) else _scaled(before, factor)
        arguments[name] = after
        changed.append(f"{name} {after} in place of {before}")
    before = arguments.get("gamma")
    # a factor for each round, and not for each of some steps: the same decay over the whole run
    if before not in (None, 1) and not any(arguments.get(name) for name in ("milestones", "step_size")):
        arguments["gamma"] = before ** (1 / factor)
        changed.append(f"gamma {arguments['gamma']:.4g} in place of {before:g}")
    return changed


def _scale_method(model: Any, fewer: int, rounds: int) -> str:
    """Scale what a method counts in rounds: a warm-up, such that at least one round comes after it, and ``T_0``."""
    arguments, details = (model or {}).get("init_args") or {}, ""
    before = arguments.get("warmup_rounds")
    if before and before < rounds:
        arguments["warmup_rounds"] = min(_scaled(before, fewer / rounds), fewer - 1)
        details += f", warm-up of {arguments['warmup_rounds']} in place of {before}"
    before = arguments.get("T_0")
    if before:
        arguments["T_0"] = _scaled(before, fewer / rounds)
        details += f", T_0 {arguments['T_0']} in place of {before}"
    return details


def _scale_evaluation(trainer: Any, fewer: int, rounds: int) -> str:
    """Scale the rounds between two evaluations, such that the last round is evaluated."""
    before = trainer.get("check_val_every_n_epoch")
    if not before or before == 1:
        return ""
    most = min(_scaled(before, fewer / rounds), fewer)
    after = next(every for every in range(most, 0, -1) if fewer % every == 0)
    trainer["check_val_every_n_epoch"] = after
    return f", an evaluation every {f'{after} rounds' if after > 1 else 'round'} in place of {before}"


def _scaled(rounds: int, factor: float) -> int:
    return max(1, round(rounds * factor))
