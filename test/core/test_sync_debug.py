"""``set_sync_debug_mode``: operators that make the host wait warn or raise."""

import warnings

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

WAITS = [
    subtest(lambda x: x.item(), name="item"),
    subtest(lambda x: x.cpu(), name="copy_to_the_host"),
    subtest(lambda x: x.nonzero(), name="size_that_depends_on_data"),
    subtest(lambda x: torch.equal(x, x), name="equal"),
    subtest(lambda x: torch.linalg.eigvals(x[None]), name="fallback"),
]

_NAME = {"openreg": "OpenReg", "cuda": "CUDA"}[DEVICE_TYPE]


class TestSyncDebugMode(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.ones(1, device=DEVICE_TYPE)

    def tearDown(self):
        torch.openreg.set_sync_debug_mode("default")
        super().tearDown()

    @parametrize("wait", WAITS)
    def test_wait_warns_or_raises(self, wait):
        text = f"called a synchronizing {_NAME} operation: aten::"
        torch.openreg.set_sync_debug_mode("warn")
        with self.assertWarnsRegex(UserWarning, text):
            wait(self.x)
        torch.openreg.set_sync_debug_mode("error")
        with self.assertRaisesRegex(RuntimeError, text):
            wait(self.x)
        torch.openreg.set_sync_debug_mode("default")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            wait(self.x)

    def test_explicit_waits_and_asynchronous_work_are_silent(self):
        torch.openreg.set_sync_debug_mode("error")
        (self.x * 2).to("cpu", non_blocking=True)
        torch.openreg.synchronize()
        torch.openreg.current_stream().synchronize()

    # Of these, the first call waits here, or each one, and none on CUDA.
    @parametrize(
        "function,prepare",
        [
            subtest((torch.cdist, lambda x: (x, x)), name="first_call_of_a_fallback"),
            subtest((torch.multinomial, lambda x: (x, 2, True)), name="multinomial"),
            subtest((torch.mm, lambda x: (x.to_sparse_csr(), x)), name="sparse_product"),
        ],
    )
    def test_waits_that_cuda_does_not_need_are_silent(self, function, prepare):
        arguments = prepare(torch.rand(3, 3, device=DEVICE_TYPE))
        torch.openreg.set_sync_debug_mode("error")
        function(*arguments)
        function(*arguments)

    @parametrize("mode,number", [("default", 0), ("warn", 1), ("error", 2), (1, 1)])
    def test_mode_can_be_read(self, mode, number):
        torch.openreg.set_sync_debug_mode(mode)
        self.assertEqual(torch.openreg.get_sync_debug_mode(), number)

    @parametrize("mode", ["loud", 3, -1])
    def test_unknown_mode(self, mode):
        with self.assertRaisesRegex(ValueError, "set_sync_debug_mode: expected"):
            torch.openreg.set_sync_debug_mode(mode)


instantiate_parametrized_tests(TestSyncDebugMode)

if __name__ == "__main__":
    run_tests()
