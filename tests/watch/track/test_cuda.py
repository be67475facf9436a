"""On a GPU: the step waits for nothing, and the numbers are those of the CPU."""

import copy
import threading

import numpy
import pytest
import torch
from test_tracked_models import check
from tiny_model import loss_of, tiny, train

from rankrise import watch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

EVERY = watch.Schedule(often=1, seldom=2)


@pytest.mark.parametrize("keep", ["model", "cpu"])
def test_numbers(tmp_path, keep):
    model = tiny(width=64, heads=4, dropout=0.0).cuda()
    before = copy.deepcopy(model)
    with watch.RankTracker(model, tmp_path, schedule=EVERY, keep=keep, matrices=["head.weight"]) as tracker:
        train(model, range(1, 5), after=tracker.step)
    check(tmp_path, before.cpu(), model.cpu())
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 2, 3, 4]
    assert run.spectra_steps.tolist() == [2, 4]
    assert numpy.isfinite(run.steps()["loss"]).all()


@pytest.mark.parametrize("keep", ["model", "cpu"])
def test_the_step_waits_for_nothing(tmp_path, keep):
    """torch raises where a call would wait for the device; the worker may wait, on its own thread."""
    model = tiny(width=64, heads=4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracker = watch.RankTracker(model, tmp_path, schedule=watch.Schedule(3, 6), keep=keep, strict=True)
    for step in range(1, 13):
        loss = loss_of(model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:  # it waits for the worker, which looks at what the folder holds
            tracker.step(step, loss=loss)
            continue
        tracker.flush()  # the mode is the whole process's, and the worker does wait: it is held up meanwhile
        go_on = threading.Event()
        tracker._worker.put("being held up", go_on.wait)
        torch.cuda.set_sync_debug_mode("error")
        try:
            tracker.step(step, loss=loss)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            go_on.set()
    tracker.close()
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [3, 6, 9, 12]
    assert len(run.steps()["loss"]) == 12


def test_the_weights_are_those_of_the_step(tmp_path):
    """They are copied in the order of training, although they are measured while it goes on."""
    model = tiny(width=64, heads=4, dropout=0.0).cuda()
    start = copy.deepcopy(model)
    with watch.RankTracker(model, tmp_path, schedule=watch.Schedule([1], []), strict=True) as tracker:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        torch.cuda._sleep(200_000_000)  # the device is behind
        loss_of(model, 1).backward()
        optimizer.step()
        tracker.step(1)
        reference = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    check(tmp_path, start.cpu(), reference.cpu())


def test_training_is_bitwise_the_same(tmp_path):
    def losses(track):
        model = tiny(seed=3, width=64, heads=4).cuda()
        torch.manual_seed(7)
        if not track:
            return train(model, range(1, 20))
        with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
            return train(model, range(1, 20), after=tracker.step)

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert losses(False) == losses(True)
    finally:
        torch.use_deterministic_algorithms(False)


def test_graphs(tmp_path):
    """A step that is captured in a CUDA graph: nothing is tracked while capturing, all of it at replays."""
    model = tiny(width=64, heads=4, dropout=0.0).cuda()
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def once():
        logits = model(tokens).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens.roll(1, 1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    tokens = torch.randint(0, 11, (4, 6), device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        once()
    torch.cuda.current_stream().wait_stream(stream)
    with watch.RankTracker(model, tmp_path, schedule=EVERY, strict=True) as tracker:
        model.load_state_dict(before.state_dict())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = once()
            tracker.step(100)
        for step in (1, 2, 3):
            graph.replay()
            tracker.step(step, loss=loss)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 2, 3]
    losses = run.steps()["loss"]
    assert (losses[1:] < losses[:-1]).all()  # each replay's own, though the tensor is the same
