"""Schedules: the orders that OPENREG_SCHEDULE and torch_openreg.testing.schedule make."""

import threading

import pytest
import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_children,
    run_tests,
)

from torch_openreg import _C
from torch_openreg.testing import current_schedule, schedule

pytestmark = pytest.mark.sample(0.27)

SCHEDULES = ("lazy", "eager", "0", "1", "2", "3")


def _step(device):
    """Some training steps; the parameters after them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(144, 5),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = torch.randn(3, 4, 1, 8, 8)
    torch.manual_seed(1)  # of dropout
    for x in batches.to(device):
        optimizer.zero_grad()
        y = torch.tensor([0, 1, 2, 3]).to(device)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def _without_a_wait():
    """Reads on one stream what another one writes, in no order."""
    x, side = torch.zeros(64, device=DEVICE_TYPE), torch.Stream(DEVICE_TYPE)
    torch.accelerator.synchronize()
    with side:
        x.add_(1)
    y = x * 2
    return y[0].item()


class TestLaunches(OpenRegTestCase):
    """Whether a test has launched work, by which the pytest plug-in knows that it was checked."""

    def test_each_kind_of_work_is_noted(self):
        module = getattr(torch, DEVICE_TYPE)
        graph = module.CUDAGraph() if DEVICE_TYPE == "cuda" else module.Graph()
        x, pinned = torch.ones(64, device=DEVICE_TYPE), torch.ones(64).pin_memory()
        with module.graph(graph):
            x.add_(1)
        _C._take_has_launched()
        for work in (
            lambda: x.add_(1),
            lambda: x.zero_(),
            lambda: x.copy_(pinned, non_blocking=True),
            lambda: x.cpu(),
            lambda: x.clone(),
            lambda: torch.linalg.eig(torch.eye(2, device=DEVICE_TYPE)),
            lambda: graph.replay(),
        ):
            work()
            self.assertTrue(_C._take_has_launched())
            self.assertFalse(_C._take_has_launched())

    def test_what_needs_no_work_is_not_noted(self):
        x = torch.ones(64, device=DEVICE_TYPE)
        event = torch.accelerator.current_stream().record_event()
        _C._take_has_launched()
        x[3:].view(-1, 1)
        torch.empty(3, device=DEVICE_TYPE)
        torch.ones(64).pin_memory().add_(1)
        event.wait()
        torch.accelerator.synchronize()
        self.assertFalse(_C._take_has_launched())


class TestSchedule(OpenRegTestCase):
    @parametrize("order", SCHEDULES)
    def test_training_has_the_bits_of_the_cpu(self, order):
        expected = _step("cpu")
        with schedule(order):
            self.assertEqual(current_schedule(), order)
            actual = _step(DEVICE_TYPE)
        self.assertEqual(actual, expected, rtol=0, atol=0)

    @pytest.mark.openreg_sanitizer(expect="race")
    def test_missing_wait_shows_in_some_and_the_same_each_time(self):
        outcomes = {}
        for order in ("lazy", "eager", *range(8)):
            results = set()
            for _ in range(5):
                with schedule(order):
                    results.add(_without_a_wait())
            self.assertEqual(len(results), 1, (order, results))
            outcomes[order] = results.pop()
        self.assertEqual(outcomes["eager"], 2)
        self.assertEqual(outcomes["lazy"], 0)
        self.assertEqual({outcomes[seed] for seed in range(8)}, {0, 2})

    def test_missing_wait_shows_in_each_process(self):
        code = """
            import torch
            x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
            torch.openreg.synchronize()
            with side:
                x.add_(1)
            print((x * 2)[0].item())
            """
        for order, expected in (("lazy", "0.0"), ("eager", "2.0")):
            children = run_children([(code, {"OPENREG_SCHEDULE": order})] * 3)
            self.assertEqual([child.output.strip() for child in children], [expected] * 3)

    @parametrize("order", SCHEDULES)
    def test_gate_holds_its_stream_alone(self, order):
        with schedule(order), StreamGate() as gate:
            gate.wait_until_reached()
            x = torch.ones(4, device=DEVICE_TYPE)
            current = torch.accelerator.current_stream()
            self.assertFalse(current.query())
            self.assertFalse(current.query())
            with torch.Stream(DEVICE_TYPE):
                self.assertEqual(torch.ones(4, device=DEVICE_TYPE).sum().item(), 4)
            gate.open()
            self.assertEqual(x.sum().item(), 4)

    @parametrize("order", SCHEDULES)
    def test_loops_of_queries_end(self, order):
        with schedule(order):
            x = torch.ones(4, device=DEVICE_TYPE)
            event = torch.accelerator.current_stream().record_event()
            answers = []
            while not answers or not answers[-1]:
                answers.append(event.query())
            self.assertLessEqual(len(answers), 2)
            x.add_(1)
            while not torch.accelerator.current_stream().query():
                pass

    @parametrize("order", SCHEDULES)
    def test_graphs_give_the_same(self, order):
        module = getattr(torch, DEVICE_TYPE)
        graph = module.CUDAGraph() if DEVICE_TYPE == "cuda" else module.Graph()
        x, side = torch.ones(64, device=DEVICE_TYPE), torch.Stream(DEVICE_TYPE)
        with schedule(order):
            with module.graph(graph):
                current = torch.accelerator.current_stream()
                side.wait_stream(current)
                with side:
                    y = x * 2
                z = x + 1
                current.wait_stream(side)
                total = y + z
            for value in range(3):
                x.fill_(value)
                graph.replay()
                self.assertEqual(total[0].item(), 3 * value + 1)

    @parametrize("order", SCHEDULES)
    def test_profiler_sees_all_kernels(self, order):
        with schedule(order), torch.profiler.profile() as profiler:
            x = torch.ones(64, device=DEVICE_TYPE)
            for _ in range(10):
                x.add_(1)
            torch.accelerator.synchronize()
        kernels = [
            event
            for event in profiler.events()
            if event.device_type != torch.autograd.DeviceType.CPU and "add" in event.name
        ]
        self.assertGreaterEqual(len(kernels), 10)

    @parametrize("order", SCHEDULES)
    def test_memory_that_runs_out_is_given_back(self, order):
        run_child(
            """
            import torch
            side = torch.openreg.Stream()
            for _ in range(20):
                x = torch.ones(2_000_000, device="openreg")
                side.wait_stream(torch.openreg.current_stream())
                with side:
                    y = x[:10] * 2
                x.record_stream(side)
                del x
            assert y.sum().item() == 20
            pinned = [torch.ones(1000).pin_memory() for _ in range(5)]
            on_device = [x.to("openreg", non_blocking=True) for x in pinned]
            del pinned
            assert sum(x.sum().item() for x in on_device) == 5000
            """,
            {"OPENREG_SCHEDULE": order, "OPENREG_DEVICE_MEMORY": "32MiB"},
        )

    @parametrize("order", SCHEDULES)
    def test_threads_hand_over(self, order):
        with schedule(order):
            results, done = [], threading.Event()

            def work():
                with torch.Stream(DEVICE_TYPE) as side:
                    results.append(torch.ones(8, device=DEVICE_TYPE) * 3)
                    results.append(side.record_event())
                done.set()

            thread = threading.Thread(target=work)
            thread.start()
            done.wait()
            torch.accelerator.current_stream().wait_event(results[1])
            self.assertEqual(results[0].sum().item(), 24)
            thread.join()

    def test_errors_come_where_the_host_waits(self):
        for order in SCHEDULES:
            with schedule(order):
                x = torch.zeros(4, device=DEVICE_TYPE)
                x.gather(0, torch.tensor([99], device=DEVICE_TYPE))
                with self.assertRaisesRegex(Exception, "out of bounds"):
                    torch.accelerator.synchronize()

    def test_blocks_nest_and_restore(self):
        self.assertEqual(current_schedule(), "free")
        with schedule("lazy"):
            with schedule(7), schedule("free"):
                self.assertEqual(current_schedule(), "free")
            self.assertEqual(current_schedule(), "lazy")
            with self.assertRaises(ZeroDivisionError), schedule("eager"):
                _ = 1 / 0
            self.assertEqual(current_schedule(), "lazy")
        self.assertEqual(current_schedule(), "free")

    def test_other_orders_are_refused(self):
        for order in ("hasty", -1, 1.5, "", 2**64, None):
            with self.assertRaisesRegex(ValueError, "schedule: expected 'free', 'lazy'"):
                schedule(order).__enter__()

    def test_decorates(self):
        @schedule("lazy")
        def current():
            return current_schedule()

        self.assertEqual([current(), current()], ["lazy", "lazy"])

    def test_child_of_a_fork_is_told_as_always(self):
        for order in ("lazy", "5"):
            run_child(
                """
                import os, torch
                x = torch.ones(4, device="openreg")
                child = os.fork()
                if child == 0:
                    try:
                        torch.ones(1, device="openreg")
                    except RuntimeError as error:
                        os._exit(0 if "spawn" in str(error) else 2)
                    os._exit(1)
                assert os.waitpid(child, 0)[1] == 0
                assert x.sum().item() == 4
                """,
                {"OPENREG_SCHEDULE": order},
            )

    @parametrize("order", ("lazy", "eager", "5"))
    def test_processes_end_with_work_pending(self, order):
        code = """
            import torch
            side = torch.openreg.Stream()
            x = torch.ones(64, device="openreg")
            with side:
                y = x * 2
            x.add_(1)
            """
        children = run_children([(code, {"OPENREG_SCHEDULE": order})] * 4)
        self.assertEqual([child.returncode for child in children], [0] * 4)


instantiate_parametrized_tests(TestSchedule)

if __name__ == "__main__":
    run_tests()
