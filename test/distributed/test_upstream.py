"""torch's own tests of ``torch.distributed`` pass on the device, but for those listed here.

With OPENREG_TEST_FULL=1, all of them run, and what passes on the CPU has to pass on the device.
"""

import os

from common import TestCase, run_tests
from distributed.upstream import LEFT_OUT, run

_IS_FULL = os.environ.get("OPENREG_TEST_FULL") == "1"

# Tests that fail, and why that is torch's.
_FAILURES = {
    "cuda": {
        "test_monitored_barrier_allreduce_hang": "looks for a text of NCCL's watchdog",
        "test_monitored_barrier_allreduce_hang_wait_all_ranks": "the same",
    },
    "openreg": {
        "test_ddp_logging_data_cpu": "the log calls a group of several backends custom",
        "test_get_backend": "the group has two backends, and the test knows one",
        "test_monitored_barrier_gloo": "torch serves groups with Gloo alone",
        "test_monitored_barrier_gloo_subgroup": "the same",
        "test_sparse_all_reduce_sum": "there are no collectives of sparse tensors",
    },
}

_SAMPLE = {
    "cuda": (
        "test_DistributedDataParallel_SyncBatchNorm_Channels_Last",
        "test_all_gather_object_default_pg",
        "test_all_reduce_sum_cuda_async",
        "test_all_to_all_single_unequal_split_cuda",
        "test_batch_isend_irecv_nccl",
        "test_batch_isend_irecv_self_nccl",
        "test_coalescing_manager_async",
        "test_ddp_profiling_torch_profiler",
        "test_ddp_uneven_input_join_disable",
        "test_monitored_barrier_allreduce_hang",
        "test_nccl_high_priority_stream",
        "test_reduce_scatter_v_cuda",
        "test_send_recv_nccl_torch_profiler",
        "test_stateless_api_with_ddp",
    ),
    "openreg": (
        "test_DistributedDataParallelCPU",
        "test_all_gather_coalesced_with_empty",
        "test_all_reduce_coalesced_max_complex_unsupported",
        "test_barrier_timeout_full_group",
        "test_gather_checks",
        "test_scatter_object_list",
        "test_send_recv_any_source_torch_profiler",
        "test_sparse_all_reduce_sum",
    ),
}


class TestUpstream(TestCase):
    def failures(self, outcomes):
        return {name: why for name, (outcome, why) in outcomes.items() if outcome == "failed"}

    def check(self, place):
        outcomes = run(place, () if _IS_FULL else _SAMPLE[place])
        failures = self.failures(outcomes)
        expected = {name for name in _FAILURES[place] if name in outcomes}
        unexpected = {name: why for name, why in failures.items() if name not in expected}
        self.assertEqual(unexpected, {})
        self.assertEqual(set(failures), expected, "a test that is listed as failing passes")
        return {name for name, (outcome, _) in outcomes.items() if outcome == "passed"}

    def test_those_for_nccl_pass_on_cuda(self):
        passed = self.check("cuda")
        self.assertGreaterEqual(len(passed), 140 if _IS_FULL else len(_SAMPLE["cuda"]) - 1)

    def test_those_for_gloo_pass_on_the_device(self):
        passed = self.check("openreg")
        if not _IS_FULL:
            self.assertEqual(len(passed), len(_SAMPLE["openreg"]) - 1)
            return
        on_cpu = run("cpu")
        self.assertEqual(self.failures(on_cpu), {})
        missing = {name for name, (outcome, _) in on_cpu.items() if outcome == "passed"} - passed
        self.assertEqual(missing - set(LEFT_OUT["openreg"]), set(_FAILURES["openreg"]))


if __name__ == "__main__":
    run_tests()
