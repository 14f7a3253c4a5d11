"""The memory of a training step, as a test.

pytest --openreg-cuda --openreg-dry-run=a100-40gb examples/will_it_fit
"""

import pytest
import train


# docs: budget
@pytest.mark.gpu_memory(at_most="38GiB")
def test_step_fits():
    """One step, with all three fixes."""
    options = train.options_of(["--bf16", "--checkpoint", "--micro=4", "--steps=1"])
    train.train(options)


# docs: end
