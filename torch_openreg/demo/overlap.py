"""Section 2 of the demo: work that runs beside the host and beside other work.

Times depend on what else the machine does, so they are only printed. The results are checked: they
must be bit-identical to the CPU's.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from torch_openreg import openreg
from torch_openreg.demo.report import Report, describe_spread

__all__ = ["show_launch", "show_overlap"]

_REPETITIONS = 5
_LAUNCH_SIZE = 2048
_LANE_SIZE = 512
_LANE_MATMULS = 8


def show_launch(report: Report, device: torch.device) -> None:
    """Prints when the call of a large matmul returns and when its result is computed."""
    report.section("A launch returns before the kernel has run")
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(_LAUNCH_SIZE, _LAUNCH_SIZE, generator=generator) for _ in range(2))
    expected = left @ right
    left, right = left.to(device), right.to(device)
    returned_ms, done_ms = [], []
    for _ in range(_REPETITIONS):
        openreg.synchronize(device)
        start = time.perf_counter()
        result = left @ right
        returned_ms.append((time.perf_counter() - start) * 1e3)
        openreg.synchronize(device)
        done_ms.append((time.perf_counter() - start) * 1e3)
    returned, done = statistics.median(returned_ms), statistics.median(done_ms)
    report.line(
        f"matmul {_LAUNCH_SIZE}x{_LAUNCH_SIZE}: launch returned after {returned:.3f} ms, "
        f"done after {done:.1f} ms ({returned / done:.2%})"
    )
    report.check(torch.equal(result.cpu(), expected), "the result equals the CPU's")


def show_overlap(report: Report, device: torch.device) -> None:
    """Prints how long two chains of matmuls take concurrently, and one after the other."""
    report.section("Streams and devices run side by side")
    with _single_threaded_kernels():
        _compare_lanes(
            report,
            "two streams of one device",
            [_Lane(torch.Stream(device), seed) for seed in range(2)],
        )
        device_count = openreg.device_count()
        if device_count > 1:
            other = torch.device(device.type, (device.index + 1) % device_count)
            _compare_lanes(
                report,
                "two devices",
                [_Lane(torch.Stream(each), seed) for seed, each in enumerate((device, other))],
            )
        else:
            report.line("two devices: not measured, only one is visible")


class _Lane:
    """A stream with a chain of matmuls to run on it."""

    def __init__(self, stream: torch.Stream, seed: int) -> None:
        self.stream = stream
        generator = torch.Generator().manual_seed(seed)
        # An orthogonal factor keeps the chain's values in range.
        factor, _ = torch.linalg.qr(torch.randn(_LANE_SIZE, _LANE_SIZE, generator=generator))
        self.expected = _chain(factor)
        self._factor = factor.to(stream.device)
        openreg.synchronize(stream.device)

    def launch(self) -> torch.Tensor:
        """Enqueues the chain and returns its result, which is there after synchronize()."""
        with self.stream:
            return _chain(self._factor)


def _compare_lanes(report: Report, title: str, lanes: Sequence[_Lane]) -> None:
    ratios = []
    are_equal = True
    for _ in range(_REPETITIONS + 1):
        start = time.perf_counter()
        results = []
        for lane in lanes:
            results.append(lane.launch())
            lane.stream.synchronize()
        turn = time.perf_counter()
        results += [lane.launch() for lane in lanes]
        for lane in lanes:
            lane.stream.synchronize()
        end = time.perf_counter()
        ratios.append((end - turn) / (turn - start))
        are_equal &= all(
            torch.equal(result.cpu(), lane.expected)
            for result, lane in zip(results, [*lanes, *lanes], strict=True)
        )
    spread = describe_spread(ratios[1:])  # the first one warms up
    report.line(f"{title}: {spread} of the time of one after the other")
    report.check(are_equal, f"the results on {title} equal the CPU's")


def _chain(factor: torch.Tensor) -> torch.Tensor:
    result = factor
    for _ in range(_LANE_MATMULS):
        result = result @ factor
    return result


@contextlib.contextmanager
def _single_threaded_kernels() -> Iterator[None]:
    """Limits each kernel to one thread, so that two kernels can share two processors."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
