"""Streams: work runs in the order of its stream, and waits are respected."""

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs
from torch_openreg.conformance.target import target

DEVICE = target().device


@needs("streams")
class TestStreams(ConformanceTestCase):
    def test_streams_have_the_device_that_they_were_made_for(self) -> None:
        self.assertEqual(torch.Stream(DEVICE).device, DEVICE)

    def test_new_stream_is_neither_the_current_one_nor_another_new_one(self) -> None:
        one, other = torch.Stream(DEVICE), torch.Stream(DEVICE)
        self.assertNotEqual(one, torch.accelerator.current_stream(DEVICE))
        self.assertNotEqual(one, other)

    def test_stream_is_equal_to_itself_by_its_number(self) -> None:
        one = torch.Stream(DEVICE)
        same = torch.Stream(
            stream_id=one.stream_id, device_index=one.device_index, device_type=one.device_type
        )
        self.assertEqual(one, same)
        self.assertEqual(hash(one), hash(same))

    def test_stream_is_done_after_it_was_synchronized(self) -> None:
        stream = torch.Stream(DEVICE)
        with stream:
            x = torch.ones(256, 256, device=DEVICE)
            y = x @ x
        stream.synchronize()
        self.assertTrue(stream.query())
        self.assert_bit_equal(y, torch.full((256, 256), 256.0))

    def test_all_streams_are_done_after_the_device_was_synchronized(self) -> None:
        streams = [torch.Stream(DEVICE) for _ in range(3)]
        for stream in streams:
            with stream:
                torch.ones(128, 128, device=DEVICE).exp()
        torch.accelerator.synchronize(DEVICE)
        self.assertTrue(all(stream.query() for stream in streams))

    @needs("events")
    def test_stream_waits_for_a_held_stream(self) -> None:
        held, waiting = torch.Stream(DEVICE), torch.Stream(DEVICE)
        x = torch.zeros(1000, device=DEVICE)
        torch.accelerator.synchronize(DEVICE)
        with target().hold(held):
            with held:
                x += 1
            waiting.wait_stream(held)
            with waiting:
                x *= 3
        waiting.synchronize()
        self.assert_bit_equal(x, torch.full((1000,), 3.0))

    def test_tensor_that_is_used_on_another_stream_is_recorded(self) -> None:
        x = torch.ones(10, device=DEVICE)
        stream = torch.Stream(DEVICE)
        torch.accelerator.synchronize(DEVICE)
        with stream:
            y = x + 1
        x.record_stream(stream)
        del x
        stream.synchronize()
        self.assert_bit_equal(y, torch.full((10,), 2.0))
