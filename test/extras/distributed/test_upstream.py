"""torch's own tests of ``torch.distributed`` pass on the device, but for those listed here.

With OPENREG_TEST_FULL=1, all of them run, with two ranks and with four; those that need more run
with eight. What passes on the CPU has to pass on the device then.
"""

import os

import pytest
from common import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from extras.distributed.upstream import LEFT_OUT, run

pytestmark = pytest.mark.sample(0.11)

_IS_FULL = os.environ.get("OPENREG_TEST_FULL") == "1"
_RANKS = (2, 4) if _IS_FULL else (2,)

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

_DEVICES = "compares tensors of several devices, which objects carry"

# The same, of runs with more than two ranks.
_FAILURES_OF_MORE = {
    "cuda": {},
    "openreg": {
        "test_all_gather_object_default_pg": _DEVICES,
        "test_all_gather_object_subgroup": _DEVICES,
        "test_gather_object": _DEVICES,
        "test_gather_object_subgroup": _DEVICES,
        "test_monitored_barrier_failure_order": "torch serves groups with Gloo alone",
        "test_monitored_barrier_wait_all_ranks": "the same",
        "test_scatter_object_list": _DEVICES,
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


def run_all(place, ranks):
    """Runs all tests; with four ranks, those that need more run with eight."""
    outcomes = run(place, ranks=ranks)
    wanting = [name for name, (_, why) in outcomes.items() if "small world size" in why]
    if ranks == 4:
        outcomes |= run(place, wanting, ranks=8)
    return outcomes


class TestUpstream(TestCase):
    def failures(self, outcomes):
        return {name: why for name, (outcome, why) in outcomes.items() if outcome == "failed"}

    def check(self, place, ranks):
        outcomes = run_all(place, ranks) if _IS_FULL else run(place, _SAMPLE[place], ranks)
        known = _FAILURES[place] | (_FAILURES_OF_MORE[place] if ranks > 2 else {})
        failures = self.failures(outcomes)
        expected = known.keys() & outcomes.keys()
        unexpected = {name: why for name, why in failures.items() if name not in expected}
        self.assertEqual(unexpected, {})
        self.assertEqual(set(failures), expected, "a test that is listed as failing passes")
        passed = {name for name, (outcome, _) in outcomes.items() if outcome == "passed"}
        return passed, known

    @parametrize("ranks", _RANKS)
    def test_those_for_nccl_pass_on_cuda(self, ranks):
        passed, _ = self.check("cuda", ranks)
        least = {2: 140, 4: 155} if _IS_FULL else {2: len(_SAMPLE["cuda"]) - 1}
        self.assertGreaterEqual(len(passed), least[ranks])

    @parametrize("ranks", _RANKS)
    def test_those_for_gloo_pass_on_the_device(self, ranks):
        passed, known = self.check("openreg", ranks)
        if not _IS_FULL:
            self.assertEqual(len(passed), len(_SAMPLE["openreg"]) - 1)
            return
        on_cpu = run_all("cpu", ranks)
        self.assertEqual(self.failures(on_cpu), {})
        missing = {name for name, (outcome, _) in on_cpu.items() if outcome == "passed"} - passed
        self.assertEqual(missing - set(LEFT_OUT["openreg"]), set(known))


instantiate_parametrized_tests(TestUpstream)

if __name__ == "__main__":
    run_tests()
