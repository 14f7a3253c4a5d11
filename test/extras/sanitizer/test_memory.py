"""The sanitizer's memory is bounded."""

import torch
from common import OpenRegTestCase, run_tests
from extras.sanitizer.programs import device

from torch_openreg import _C
from torch_openreg.extras.sanitizer import sanitizer as checker

_module = getattr(torch, device.type)


class TestMemory(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        checker.clear()
        _module.synchronize()

    def test_launches_of_one_line_share_a_stack(self):
        x = torch.zeros(64, device=device)
        with checker.check("collect"):
            counts = []
            for _ in range(1000):
                x.add_(1)
                if len(counts) < 2:
                    counts.append(_C._sanitizer_counts())
            counts.append(_C._sanitizer_counts())
        for key in ("stacks", "bytes_of_stacks"):
            self.assertEqual(counts[2][key], counts[1][key])
        self.assertEqual(counts[2]["launches"] - counts[1]["launches"], 998)

    def test_stacks_go_with_the_sanitizer(self):
        before = _C._sanitizer_counts()["stacks"]
        with checker.check("collect"):
            x = torch.zeros(64, device=device)
            for number in range(50):
                exec(compile("\n" * number + "x.add_(1)", "<made>", "exec"), {"x": x})
            self.assertGreaterEqual(_C._sanitizer_counts()["stacks"], before + 50)
        self.assertLessEqual(_C._sanitizer_counts()["stacks"], before)

    def test_a_launch_costs_less_than_200_bytes(self):
        with checker.check("collect"):
            before = _C._sanitizer_counts()
            kept = [torch.zeros(64, device=device) for _ in range(1000)]
            after = _C._sanitizer_counts()
            launches = after["remembered_launches"] - before["remembered_launches"]
            self.assertEqual(launches, len(kept))
            self.assertLess((after["bytes"] - before["bytes"]) / launches, 200)

    def test_so_does_one_of_many_to_the_same_memory(self):
        pieces = torch.zeros(4000, device=device)[::2].split(1)
        with checker.check("collect"):
            for piece in pieces:
                piece.fill_(1)
            counts = _C._sanitizer_counts()
        self.assertEqual(counts["remembered_launches"], len(pieces))
        self.assertLess(counts["bytes"] / len(pieces), 200)

    def test_what_is_overwritten_is_forgotten(self):
        x = torch.zeros(64, device=device)
        with checker.check("collect"):
            for _ in range(100):
                x.add_(1)
                x.sum()
            self.assertLess(_C._sanitizer_counts()["remembered_accesses"], 10)

    def test_a_buffer_in_many_pieces_is_searched_and_bounded(self):
        x, side = torch.zeros(5000, 4, device=device), _module.Stream()
        _module.synchronize()
        with checker.check("collect"):
            for row in range(40):
                x[row].fill_(1)
            self.assertEqual(_C._sanitizer_counts()["remembered_accesses"], 40)
            with _module.stream(side):
                x[40:].sum()
                self.assertEqual(checker.findings(), [])
                x[20].sum()
            (finding,) = checker.findings()
            self.assertEqual(finding.accesses[1].offset, 20 * 16)
            _module.synchronize()
            x.add_(1)
            self.assertEqual(_C._sanitizer_counts()["remembered_accesses"], 1)
            self.assertEqual(_C._sanitizer_counts()["forgotten"], 0)
            for row in range(4200):
                x[row].fill_(2)
            self.assertLessEqual(_C._sanitizer_counts()["remembered_accesses"], 4096)
            self.assertGreater(_C._sanitizer_counts()["forgotten"], 0)
        self.assertIn("forgotten for want of room", checker.summary())
        checker.clear()


if __name__ == "__main__":
    run_tests()
