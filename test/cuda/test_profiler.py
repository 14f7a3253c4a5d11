"""``torch.profiler`` with ProfilerActivity.CUDA, NVTX and the profiler's older forms."""

import json
import tempfile
from pathlib import Path

import torch
from common import OpenRegTestCase, run_tests
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from torch_openreg.extras.profiler import profiler as ranges


class TestProfiler(OpenRegTestCase):
    def run_profiled(self, **arguments):
        x = torch.ones(64, 64, device="cuda")
        x @ x
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], **arguments) as prof:
            with record_function("block"):
                y = x @ x
                y.cpu()
            torch.cuda.synchronize()
        return prof

    def test_activities(self):
        self.assertEqual(supported_activities(), {ProfilerActivity.CPU, ProfilerActivity.CUDA})

    def test_kernels_are_those_of_cuda_with_their_time(self):
        prof = self.run_profiled()
        kernels = [e for e in prof.events() if e.device_type == DeviceType.CUDA]
        names = {e.name for e in kernels}
        self.assertTrue(any("mm" in name for name in names), names)
        (averages,) = [e for e in prof.key_averages() if e.key == "aten::mm"]
        self.assertGreater(averages.device_time_total, 0)
        table = prof.key_averages().table(sort_by="cuda_time_total", row_limit=5)
        self.assertIn("CUDA time", table)

    def test_trace_has_kernels_copies_and_arrows(self):
        prof = self.run_profiled()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            prof.export_chrome_trace(str(file))
            events = json.loads(file.read_text())["traceEvents"]
        categories = {event.get("cat") for event in events}
        self.assertLessEqual({"kernel", "cuda_runtime", "cpu_op", "ac2g"}, categories)
        self.assertTrue({"gpu_memcpy"} & categories, categories)

    def test_schedule(self):
        traces = []
        x = torch.ones(4, device="cuda")
        with profile(
            activities=[ProfilerActivity.CUDA],
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=1),
            on_trace_ready=lambda prof: traces.append(len(prof.events())),
        ) as prof:
            for _ in range(3):
                x + 1
                torch.cuda.synchronize()
                prof.step()
        self.assertEqual(len(traces), 1)
        self.assertGreater(traces[0], 0)

    def test_older_profiler(self):
        x = torch.ones(4, device="cuda")
        with torch.autograd.profiler.profile(use_device="cuda", use_kineto=False) as prof:
            x + 1
        (event,) = [e for e in prof.function_events if e.name == "aten::add"]
        self.assertGreater(event.device_time_total, 0)


class TestRanges(OpenRegTestCase):
    def test_nvtx(self):
        with ranges.collect() as collected:
            depth = torch.cuda.nvtx.range_push("outer")
            torch.cuda.nvtx.mark("point")
            with torch.cuda.nvtx.range("inner {}", 1):
                pass
            torch.cuda.nvtx.range_pop()
            torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("free"))
        self.assertEqual(depth, 0)
        names = {activity.name for activity in collected}
        self.assertLessEqual({"outer", "inner 1", "point", "free"}, names)

    def test_emit_nvtx(self):
        x = torch.ones(2, device="cuda")
        with ranges.collect() as collected, torch.autograd.profiler.emit_nvtx():
            x + 1
        self.assertTrue(any(a.name.startswith("aten::add") for a in collected if a.kind == "range"))

    def test_profiler_of_the_runtime(self):
        with torch.cuda.profiler.profile():
            torch.ones(2, device="cuda")
        self.assertEqual(torch.cuda.cudart().cudaGetErrorString(0), "no error")
        self.assertEqual(torch.cuda.cudart().cudaMemGetInfo(0)[1], torch.cuda.mem_get_info(0)[1])


if __name__ == "__main__":
    run_tests()
