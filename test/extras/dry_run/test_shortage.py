"""The line at which a program runs out of a GPU's memory, in dry runs for a T4."""

import textwrap

import pytest
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests
from reports import dry_run

pytestmark = pytest.mark.sample(0.3)

# What torch says on a T4, which has 14.56 GiB, and programs whose marked line finds no room.
TEXT = "CUDA out of memory. Tried to allocate"
MARK = "# no room"

PROGRAMS = {
    "model": """
        with torch.device("meta"):
            model = nn.Sequential(*[nn.Linear(16384, 16384) for _ in range(16)])
        model.to_empty(device="cuda")  # no room
        """,
    "forward": """
        layers = nn.Sequential(*[nn.Linear(8192, 8192, device="cuda") for _ in range(16)])
        x = torch.randn(65536, 8192, device="cuda")
        y = layers(x)  # no room
        """,
    "backward": """
        layers = nn.Sequential(*[nn.Linear(16384, 16384, device="cuda") for _ in range(8)])
        loss = layers(torch.randn(8, 16384, device="cuda")).sum()
        loss.backward()  # no room
        """,
    "optimizer": """
        layers = nn.Sequential(*[nn.Linear(16384, 16384, device="cuda") for _ in range(4)])
        optimizer = torch.optim.Adam(layers.parameters())
        layers(torch.randn(8, 16384, device="cuda")).sum().backward()
        optimizer.step()  # no room
        """,
    "cross_entropy": """
        logits = torch.randn(12288, 128256, device="cuda", dtype=torch.bfloat16)
        labels = torch.zeros(12288, dtype=torch.long, device="cuda")
        logits.requires_grad_()
        scores = logits.float()
        loss = nn.functional.cross_entropy(scores * 2, labels)  # no room
        """,
    "attention": """
        q = torch.randn(4, 16, 16384, 64, device="cuda", dtype=torch.half)
        scores = q @ q.transpose(-2, -1)  # no room
        """,
    "distances": """
        points = torch.randn(65536, 3, device="cuda")
        squares = (points[:, None] - points[None]).square()  # no room
        """,
    "list": """
        kept = []
        for step in range(100):
            kept.append(torch.zeros(2**28, device="cuda"))  # no room
        """,
    "cache": """
        cache = torch.empty(0, 4096, device="cuda", dtype=torch.half)
        for step in range(64):
            new = torch.empty(2**14, 4096, device="cuda", dtype=torch.half)
            cache = torch.cat([cache, new])  # no room
        """,
    "jacobian": """
        x = torch.randn(65536, device="cuda")
        jacobian = torch.func.jacrev(torch.sin)(x)  # no room
        """,
    "recomputed": """
        from torch.utils.checkpoint import checkpoint
        layer = nn.Linear(4096, 4096, device="cuda")
        def block(x):
            for _ in range(40):
                x = torch.tanh(layer(x))  # no room
            return x
        x = torch.randn(32768, 4096, device="cuda", requires_grad=True)
        y = checkpoint(block, x, use_reentrant=False)
        y.sum().backward()
        """,
    "copy": """
        import copy
        model = nn.Linear(49152, 49152, device="cuda")
        teacher = copy.deepcopy(model)  # no room
        """,
    "to_half": """
        weights = torch.empty(2**31 + 2**30, device="cuda")
        halves = weights.half()  # no room
        """,
    "gathered": """
        shards = [torch.empty(2**30, device="cuda") for _ in range(2)]
        whole = torch.stack(shards)  # no room
        """,
}


class TestLines(OpenRegTestCase):
    @parametrize("name", list(PROGRAMS))
    def test_marked_line_has_no_room(self, name):
        code = "import torch\nfrom torch import nn\n" + textwrap.dedent(PROGRAMS[name])
        process, report = dry_run(code, expect_success=False, OPENREG_DRY_RUN_GPU="t4")
        lines = code.splitlines()
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn(TEXT, process.stderr)
        self.assertEqual(report["verdict"], "does not fit")
        self.assertIn(MARK, lines[report["failure"]["place"]["line"] - 1])


instantiate_parametrized_tests(TestLines)

if __name__ == "__main__":
    run_tests()
