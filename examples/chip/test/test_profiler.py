# Step 10: times of operators on the device.
import torch
from common import NAME, held
from torch.testing._internal.common_utils import TestCase, run_tests


class TestProfiler(TestCase):
    def test_profile_has_the_time_on_the_device(self):
        x = torch.ones(1 << 20, device=NAME)
        with torch.autograd.profiler.profile(use_device=NAME, use_kineto=False) as profile:
            y = x + x
        (event,) = (event for event in profile.function_events if event.name == "aten::add")
        self.assertGreater(event.device_time_total, 0)
        self.assertEqual(y[0].item(), 2)

    def test_recording_does_not_wait(self):
        x = torch.ones(4, device=NAME)
        profile = torch.autograd.profiler.profile(use_device=NAME, use_kineto=False)
        with held() as gate, profile:
            x + x
            self.assertFalse(gate.is_set())
            gate.set()  # the profile ends when the events are done
        self.assertIn("aten::add", [event.name for event in profile.function_events])


if __name__ == "__main__":
    run_tests()
