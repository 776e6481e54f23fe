"""Log the numbers of a round without what Lightning does for each of them anew."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from lightning.pytorch import LightningModule

__all__ = ["log_numbers"]


def log_numbers(module: LightningModule, numbers: Mapping[str, float]) -> None:
    """Log numbers as ``module.log_dict`` does in a hook at the end of an epoch, in double precision.

    Lightning looks at its whole record of a number each time it is logged: for the 20 numbers of a round 6 ms, as long
    as the local training of three small clients. Only the first time is it asked to.

    Args:
        module: In one of whose hooks, or those of its callbacks, this is called.
        numbers: By name. Single precision could not hold 16.8 million bytes exactly.
    """
    results, hook, connector = module.trainer._results, module._current_fx_name, module.trainer._logger_connector
    if results is not None and hook is not None:
        if connector.should_reset_tensors(hook):  # the first to log in this hook forgets what an earlier epoch logged
            results.reset(metrics=False, fx=hook)
        connector._current_fx = hook
    for name, number in numbers.items():
        value = torch.tensor(number, dtype=torch.float64)
        if results is not None and (key := f"{hook}.{name}") in results:
            results.update_metrics(key, value, batch_size=1)
        else:
            module.log(name, value)
