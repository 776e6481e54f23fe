"""Measurements: what flightning costs, as ratios in one run."""
