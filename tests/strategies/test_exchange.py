"""What one process does in an exchange, without the others."""

import pytest
import torch
import torch.distributed as dist

from flightning.strategies.processes import Processes


def test_waiting_reads_the_result(monkeypatch):
    # on a GPU an exchange only joins a queue; this device has no numbers to read
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    with pytest.raises(RuntimeError, match="meta"):
        Processes(0, 2, "clients", torch.device("meta")).wait()


def test_buffers_are_agreed_on_in_one_exchange_per_type(monkeypatch):
    sent = []

    def broadcast(tensor, source):
        sent.append((tensor.dtype, source))
        tensor.add_(1)  # the first process has one more of everything

    monkeypatch.setattr(dist, "broadcast", broadcast)
    buffers = [torch.zeros(2, 3), torch.tensor(4), torch.ones(2), torch.tensor(7)]
    Processes(1, 2, "batches").agree_on(iter(buffers))
    assert sent == [(torch.float32, 0), (torch.int64, 0)]
    assert [b.tolist() for b in buffers] == [[[1.0] * 3] * 2, 5, [2.0, 2.0], 8]
