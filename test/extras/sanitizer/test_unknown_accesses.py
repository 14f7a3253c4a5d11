"""Accesses of which a kernel does not say whether they read or write."""

import pytest
import torch
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests
from extras.sanitizer.programs import Stream, _module, device, stream
from interfaces import extension

from torch_openreg.extras.sanitizer import sanitizer as checker

pytestmark = pytest.mark.sample(0.5)

_READ, _UNKNOWN = 0, 3  # of RangeAccess


class TestUnknownAccess(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.kernels = extension("aten/generated_kernel_test.cpp")
        cls.ranges = extension("core/observer_test.cpp")

    def tearDown(self):
        _module.synchronize()
        checker.disable()
        checker.clear()
        super().tearDown()

    def access(self, form, x, is_unknown):
        if form == "tensor":
            self.kernels.launch("increment", ("unknown" if is_unknown else "read",), (x,), 0)
        else:
            kind = _UNKNOWN if is_unknown else _READ
            self.ranges.launch_on_ranges([(x.data_ptr(), x.nbytes, kind)])

    @parametrize("form", ("tensor", "range"))
    def test_needs_no_contents_and_has_some_afterwards(self, form):
        for is_unknown in (True, False):
            with checker.check("collect", uninitialized=True):
                x = torch.empty(8, device=device)
                self.access(form, x, is_unknown)
                x + 1
            kinds = [one.kind for one in checker.findings()]
            self.assertEqual(kinds, [] if is_unknown else ["uninitialized"])
            checker.clear()

    @parametrize("form", ("tensor", "range"))
    def test_races_with_a_write(self, form):
        x, side = torch.zeros(8, device=device), Stream()
        _module.synchronize()
        with checker.check("collect"):
            with stream(side):
                x.fill_(1)
            self.access(form, x, is_unknown=True)
        self.assertEqual([one.kind for one in checker.findings()], ["race"])


instantiate_parametrized_tests(TestUnknownAccess)


if __name__ == "__main__":
    run_tests()
