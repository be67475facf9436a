"""Two real processes (gloo, torchrun): one record, with the numbers of a single process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from rankrise import watch

SCRIPT = Path(__file__).with_name("many_processes.py")


@pytest.mark.slow
def test_processes_that_train_together(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is done") == 2
    alone = watch.load(tmp_path / "alone")
    assert alone.measured.tolist() == [2, 4, 6, 7]
    for name in ("ddp", "fsdp-model", "fsdp-cpu"):
        run = watch.load(tmp_path / name)
        assert run.measured.tolist() == [2, 4, 6, 7]
        assert run.spectra_steps.tolist() == [4, 7]
        assert run.steps()["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert [layer["name"] for layer in run.layers] == [layer["name"] for layer in alone.layers]
        for which in (*run.products, *run.matrices):
            numpy.testing.assert_allclose(run.stable_rank(which), alone.stable_rank(which), rtol=1e-3)
            numpy.testing.assert_allclose(run.norm(which), alone.norm(which), rtol=1e-3)
