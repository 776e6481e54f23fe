"""``flightning dashboard``: a W&B workspace whose panels fit what flightning logs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import yaml

from flightning.errors import ConfigurationError, FlightningError

__all__ = ["SECTIONS", "Panel", "Section", "create", "definition", "run"]


@dataclass(frozen=True)
class Panel:
    """A line chart.

    Args:
        title: Heading.
        metrics: What is drawn.
        x: What it is drawn over.
        pattern: Regular expression of more metrics.
    """

    title: str
    metrics: tuple[str, ...] = ()
    x: str = "round"
    pattern: str = ""


@dataclass(frozen=True)
class Section:
    """Panels under one heading.

    Args:
        name: Heading.
        panels: The panels.
    """

    name: str
    panels: tuple[Panel, ...]


SECTIONS = (
    Section(
        "Accuracy",
        (
            Panel("Accuracy over rounds", ("val/accuracy",)),
            Panel("Accuracy over bytes", ("val/accuracy",), "total/bytes"),
            Panel("Accuracy over seconds", ("val/accuracy",), "total/seconds"),
            Panel("Loss on the test set", ("val/loss",)),
            Panel("Training loss of the clients", ("round/loss",)),
            Panel("Task loss of the clients", ("round/task",)),
        ),
    ),
    Section(
        "Drift",
        (
            Panel("Length of client updates", ("drift/norm",)),
            Panel("Cosine between client updates", ("drift/cosine",)),
            Panel("Longest client update", ("drift/norm_max",)),
            Panel("Distance from the global weights by layer", pattern="drift/distance/.*"),
        ),
    ),
    Section(
        "Communication",
        (
            Panel("Bytes so far", ("total/bytes",)),
            Panel("Bytes up per round", ("round/bytes_up",)),
            Panel("Bytes down per round", ("round/bytes_down",)),
            Panel("Bytes besides the weights", ("round/extra_bytes_up", "round/extra_bytes_down")),
        ),
    ),
    Section(
        "Fairness",
        (
            Panel("Mean accuracy of the clients", ("clients/accuracy_mean",)),
            Panel("Accuracy of the worst tenth of the clients", ("clients/accuracy_worst10",)),
            Panel("Deviation over the clients", ("clients/accuracy_std",)),
            Panel("Spread of the training loss over the clients", ("round/loss_std",)),
        ),
    ),
    Section(
        "System",
        (
            Panel("Seconds per round", ("round/seconds",)),
            Panel("Seconds of training", ("round/seconds_training",)),
            Panel("Seconds of aggregation and evaluation", ("round/seconds_aggregation", "round/seconds_evaluation")),
            Panel("Updates that were left out", ("round/bad_updates",)),
        ),
    ),
)
"""What the dashboard shows."""

GROUP_BY = ("Group", "JobType")
"""Runs are averaged over seeds: a group is a comparison, its job types are the methods."""


def definition(entity: str, project: str, name: str) -> dict[str, Any]:
    """The dashboard as plain data.

    Args:
        entity: User or team in W&B.
        project: Project in W&B.
        name: Name of the dashboard.
    """
    return {
        "entity": entity,
        "project": project,
        "name": name,
        "group_by": list(GROUP_BY),
        "sections": [
            {
                "name": section.name,
                "panels": [
                    {"title": p.title, "x": p.x, **({"pattern": p.pattern} if p.pattern else {"y": list(p.metrics)})}
                    for p in section.panels
                ],
            }
            for section in SECTIONS
        ],
    }


def create(entity: str, project: str, name: str) -> str:
    """Create the dashboard in W&B.

    Args:
        entity: User or team in W&B.
        project: Project in W&B.
        name: Name of the dashboard.

    Returns:
        Its address.

    Raises:
        ConfigurationError: If the package is missing or W&B refuses.
    """
    try:
        import wandb
        from wandb_workspaces.reports.v2 import LinePlot
        from wandb_workspaces.workspaces import Metric, RunsetSettings, Workspace, WorkspaceSettings
        from wandb_workspaces.workspaces import Section as WorkspaceSection
    except ImportError as error:
        raise ConfigurationError(
            f"a dashboard needs the package `{error.name}`: run `pip install -e '.[dashboard]'` in the clone, or see "
            "what it would contain with `--dry-run`."
        ) from error
    sections = [
        WorkspaceSection(
            name=section.name,
            is_open=True,
            panels=[
                LinePlot(title=p.title, x=p.x, y=list(p.metrics), metric_regex=p.pattern or None)
                for p in section.panels
            ],
        )
        for section in SECTIONS
    ]
    workspace = Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=sections,
        settings=WorkspaceSettings(x_axis="round", max_runs=50),
        runset_settings=RunsetSettings(groupby=[Metric(key) for key in GROUP_BY]),
    )
    try:
        workspace.save()
    except (wandb.errors.Error, OSError, ValueError) as error:
        raise ConfigurationError(
            f"W&B did not create the dashboard in `{entity}/{project}` ({error}): log in with `wandb login`, and check "
            "that the entity and the project exist."
        ) from error
    return str(workspace.url)


def run(argv: list[str]) -> int:
    """Entry point of ``flightning dashboard``.

    Args:
        argv: Arguments after the verb.

    Returns:
        0, or 2 if it cannot be created.
    """
    parser = argparse.ArgumentParser(
        prog="flightning dashboard", description="Create a W&B workspace for what flightning logs."
    )
    parser.add_argument("--entity", help="user or team in W&B")
    parser.add_argument("--project", help="project in W&B")
    parser.add_argument("--name", default="flightning", help="name of the dashboard (%(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print it without an account")
    options = parser.parse_args(argv)
    if options.dry_run:
        places = options.entity or "my-team", options.project or "my-project"
        print(yaml.safe_dump(definition(*places, options.name), sort_keys=False), end="")
        return 0
    if not (options.entity and options.project):
        parser.error("a dashboard needs a place: give `--entity` and `--project`, or see it with `--dry-run`.")
    try:
        print(create(options.entity, options.project, options.name))
    except FlightningError as error:
        print(f"flightning dashboard: {error}", file=sys.stderr)
        return 2
    return 0
