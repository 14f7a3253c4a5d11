"""Compiled kernels in traces of torch.profiler: names, arrows from their launches, replays."""

import torch
from common import DEVICE_TYPE, StreamGate, requires_two_devices, run_tests
from extras.inductor.compiled import CompiledTestCase
from extras.profiler.test_profiler import ProfilerTestCase, Trace, profile_both


def chain(x):
    return ((x + 1).relu() @ x).sin() * 2


class TestTraces(ProfilerTestCase, CompiledTestCase):
    def kernels(self, trace):
        """The compiled kernels of a trace."""
        return [event for event in trace.work() if event["name"].startswith("cpp_fused_")]

    def calls_of(self, trace):
        """The calls of compiled graphs."""
        graphs = [e for e in trace.of("cpu_op") if e["name"].startswith("## Call CompiledFxGraph")]
        return {event["args"]["External id"]: event for event in graphs}

    def warm_up(self, function, *arguments, count=1):
        for _ in range(count):
            function(*arguments)
        torch.openreg.synchronize()

    def test_arrows_lead_from_launches_to_kernels(self):
        compiled = torch.compile(chain)
        self.warm_up(compiled, self.x)
        with profile_both() as profiler, StreamGate() as gate:
            compiled(self.x)
            gate.open()
            torch.openreg.synchronize()
        trace = Trace(profiler)
        self.assert_well_formed(trace)  # each piece of work has an arrow from its call
        kernels = self.kernels(trace)
        self.assertEqual(
            [kernel["name"] for kernel in kernels], ["cpp_fused_add_relu_0", "cpp_fused_mul_sin_1"]
        )
        (graph,) = self.calls_of(trace).values()
        launches = {call["args"]["correlation"]: call for call in trace.calls()}
        for kernel in kernels:
            launch = launches[kernel["args"]["correlation"]]
            self.assertEqual(launch["name"], "orLaunchKernel")
            self.assertEqual(launch["tid"], graph["tid"])
            for event in (kernel, launch):
                self.assertEqual(event["args"]["External id"], graph["args"]["External id"])
            self.assertLessEqual(graph["ts"], launch["ts"])
            self.assertLessEqual(launch["ts"], graph["ts"] + graph["dur"])
        # The gate held the stream until the call had returned.
        self.assertGreater(kernels[0]["ts"], graph["ts"] + graph["dur"])

    def test_kernels_of_a_backward_belong_to_its_graph(self):
        compiled = torch.compile(lambda x: x.sin().exp().sum())
        leaf = self.x.detach().requires_grad_()
        self.warm_up(lambda: compiled(leaf).backward())
        with profile_both() as profiler:
            compiled(leaf).backward()
            torch.openreg.synchronize()
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        graphs = self.calls_of(trace)
        owners = [graphs[kernel["args"]["External id"]] for kernel in self.kernels(trace)]
        self.assertEqual(len({one["args"]["External id"] for one in owners}), 2)
        self.assertEqual(len({one["tid"] for one in owners}), 2)  # autograd has a thread

    def test_every_replay_has_a_record_of_every_kernel(self):
        compiled = torch.compile(chain, mode="reduce-overhead")
        with profile_both() as profiler:
            compiled(self.x)
            torch.openreg.synchronize()
        names = [kernel["name"] for kernel in self.kernels(Trace(profiler))]
        self.assertEqual(len(names), 2)
        self.warm_up(compiled, self.x)
        with profile_both() as profiler:
            for _ in range(3):
                compiled(self.x)
            torch.openreg.synchronize()
        trace = Trace(profiler)
        kernels = self.kernels(trace)
        self.assertEqual([kernel["name"] for kernel in kernels], names * 3)
        launches = {
            call["args"]["correlation"]: call
            for call in trace.calls()
            if call["name"] == "orGraphLaunch"
        }
        graphs = self.calls_of(trace)
        self.assertEqual((len(launches), len(graphs)), (3, 3))
        starts = {(arrow["id"], arrow["ts"]) for arrow in trace.arrows("s")}
        ends = {(arrow["id"], arrow["ts"]) for arrow in trace.arrows("f")}
        for kernel in kernels:
            launch = launches[kernel["args"]["correlation"]]
            self.assertIn((kernel["args"]["correlation"], launch["ts"]), starts)
            self.assertIn((kernel["args"]["correlation"], kernel["ts"]), ends)
            self.assertIn(kernel["args"]["External id"], graphs)
        self.assert_streams_do_one_thing_at_a_time(trace)

    @requires_two_devices
    def test_kernels_are_on_the_rows_of_their_devices_and_streams(self):
        compiled = torch.compile(lambda x: x.sin() * 2)
        x = self.x.to(f"{DEVICE_TYPE}:1")
        side = torch.Stream(device=f"{DEVICE_TYPE}:1")
        compiled(x)
        torch.openreg.synchronize(1)
        with profile_both() as profiler:
            compiled(x)
            with side:
                compiled(x)
            torch.openreg.synchronize(1)
        trace = Trace(profiler)
        self.assert_well_formed(trace)
        kernels = self.kernels(trace)
        self.assertEqual([kernel["args"]["device"] for kernel in kernels], [1, 1])
        self.assertEqual(len({kernel["args"]["stream"] for kernel in kernels}), 2)


if __name__ == "__main__":
    run_tests()
