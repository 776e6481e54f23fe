"""Flower, FedLab and pfl on the same work as flightning; `python -m benchmarks.peers --help`."""
