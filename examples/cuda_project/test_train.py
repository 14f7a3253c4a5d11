"""Tests of ``train.py``. Like the program, they are for CUDA and do not mention openreg."""

import pytest
import torch
from train import Prefetcher, make_batches, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def test_loss_falls():
    model, losses = train(torch.device("cuda", 0))
    assert next(model.parameters()).is_cuda
    assert losses[-1] < losses[0] / 2


def test_prefetched_batches_are_those_of_the_host():
    batches = make_batches(5)
    for (points, labels), fetched in zip(batches, Prefetcher(batches, "cuda"), strict=True):
        assert torch.equal(fetched[0].cpu(), points)
        assert torch.equal(fetched[1].cpu(), labels)


def test_memory_is_given_back():
    before = torch.cuda.memory_allocated()
    train(torch.device("cuda", 0), steps=3)
    assert torch.cuda.memory_allocated() <= before


def test_checkpoint_moves_between_gpu_and_cpu(tmp_path):
    model, _ = train(torch.device("cuda", 0), steps=3)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    weights = torch.load(tmp_path / "model.pt", map_location="cpu")
    assert torch.equal(weights["0.weight"], model[0].weight.cpu())


def test_graph_replays_with_new_data():
    x = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [6.0] * 8
