"""Interprocess communication: tensors and events in several processes."""

import contextlib
import multiprocessing
import os
import pickle
import random
import signal
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from common import (
    DEVICE_TYPE,
    FORK_TEXT,
    INDEX_ERROR,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_tests,
)

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.045)

TIMEOUT_S = 120

# The state of a peer between calls.
kept = {}


def serve(connection):
    """Calls functions that arrive, until None does."""
    while (request := connection.recv()) is not None:
        function, arguments = request
        del request
        try:
            reply = (True, function(*arguments))
        except Exception as error:
            reply = (False, f"{type(error).__name__}: {error}")
        del arguments, function
        connection.send(reply)
        del reply


class Peer:
    """Another process, which calls functions for the test."""

    def __init__(self, method="forkserver"):
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["torch", "torch.testing._internal.common_utils"])
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def begin(self, function, *arguments):
        self.connection.send((function, arguments))

    def result(self):
        if not self.connection.poll(TIMEOUT_S):
            raise AssertionError("the peer does not answer")
        succeeded, value = self.connection.recv()
        if not succeeded:
            raise RuntimeError(value)
        return value

    def call(self, function, *arguments):
        self.begin(function, *arguments)
        return self.result()

    def end(self):
        if self.process.is_alive():
            with contextlib.suppress(OSError):
                self.connection.send(None)
        self.process.join(TIMEOUT_S)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
        return code

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(TIMEOUT_S)


def dumps(value):
    return bytes(ForkingPickler.dumps(value))


def keep(**values):
    kept.update(values)


def keep_tensor(value):
    kept["tensor"] = value


def forget():
    kept.clear()
    torch.openreg.synchronize()


def values():
    return kept["tensor"].tolist()


def describe(tensor):
    return (
        type(tensor).__name__,
        str(tensor.device),
        str(tensor.dtype),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.is_shared(),
        tensor.tolist(),
    )


def fill(value):
    kept["tensor"].fill_(value)
    torch.openreg.synchronize()


def double_and_return(tensor):
    return (tensor.cpu() * 2).tolist()


def make(size, device=DEVICE_TYPE):
    kept["tensor"] = torch.arange(size, dtype=torch.float32, device=device)
    torch.openreg.synchronize()
    return kept["tensor"]


def make_message(size):
    return dumps(make(size))


def load(message):
    return pickle.loads(message).tolist()


def share_received(tensor):
    dumps(tensor)


def count_descriptors():
    return len(os.listdir("/proc/self/fd"))


def count_mappings():
    with open("/proc/self/maps") as maps:
        return sum("memfd:openreg" in line for line in maps)


def resources():
    torch.openreg.synchronize()
    return count_descriptors(), count_mappings()


class IpcTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.peers = []

    def tearDown(self):
        for peer in self.peers:
            self.assertIn(peer.end(), (0, -signal.SIGKILL))
        torch.openreg.ipc_collect()
        super().tearDown()

    def start_peer(self, method="forkserver"):
        peer = Peer(method)
        self.peers.append(peer)
        return peer

    def assert_nothing_is_out(self):
        self.assertEqual(_C._collect_shared(), 0)


def serve_queues(requests, replies):
    """Doubles tensors in place."""
    while (tensor := requests.get()) is not None:
        tensor *= 2
        torch.openreg.synchronize()
        replies.put(tensor.shape)
        del tensor


def produce(queue, done):
    queue.put(torch.arange(4.0, device=DEVICE_TYPE))
    done.get()


class TestQueues(IpcTestCase):
    @parametrize("method", ["spawn", "forkserver"])
    @parametrize("kind", ["Queue", "SimpleQueue"])
    def test_queue_carries_the_memory_itself(self, method, kind):
        context = torch.multiprocessing.get_context(method)
        requests, replies = getattr(context, kind)(), getattr(context, kind)()
        process = context.Process(target=serve_queues, args=(requests, replies))
        process.start()
        tensor = torch.arange(6.0, device=DEVICE_TYPE).view(2, 3)
        requests.put(tensor)
        self.assertEqual(replies.get(), (2, 3))
        self.assertEqual(tensor.cpu(), torch.arange(6.0).view(2, 3) * 2)
        requests.put(None)
        process.join(TIMEOUT_S)
        self.assertEqual(process.exitcode, 0)
        self.assert_nothing_is_out()

    def test_parent_receives_from_a_spawned_child(self):
        context = torch.multiprocessing.get_context("spawn")
        queue, done = context.Queue(), context.Queue()
        process = context.Process(target=produce, args=(queue, done))
        process.start()
        tensor = queue.get(timeout=TIMEOUT_S)
        self.assertEqual(tensor.cpu(), torch.arange(4.0))
        done.put(None)
        process.join(TIMEOUT_S)
        self.assertEqual(process.exitcode, 0)
        self.assertEqual((tensor + 1).cpu(), torch.arange(4.0) + 1)

    def test_arguments_of_a_process_are_shared(self):
        context = torch.multiprocessing.get_context("forkserver")
        queue = context.SimpleQueue()
        tensor = torch.zeros(3, device=DEVICE_TYPE)
        process = context.Process(target=serve_once, args=(tensor, queue))
        process.start()
        self.assertEqual(queue.get(), "done")
        self.assertEqual(tensor.tolist(), [5, 5, 5])
        process.join(TIMEOUT_S)


def serve_once(tensor, queue):
    tensor.fill_(5)
    torch.openreg.synchronize()
    queue.put("done")


class TestTensors(IpcTestCase):
    def setUp(self):
        super().setUp()
        self.peer = self.start_peer()

    def check_arrives(self, tensor):
        expected = describe(tensor)
        self.assertEqual(self.peer.call(describe, tensor), expected)

    @parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])
    def test_dtype_arrives(self, dtype):
        self.check_arrives(torch.tensor([0, 1, 1], device=DEVICE_TYPE).to(dtype))

    def test_views_arrive(self):
        base = torch.arange(60.0, device=DEVICE_TYPE).view(3, 4, 5)
        self.check_arrives(base[1:, ::2])
        self.check_arrives(base.transpose(0, 2)[2:])
        self.check_arrives(base[0, 0, :1].expand(7))
        self.check_arrives(base.select(1, 3))

    def test_conjugate_and_negative_views_arrive(self):
        base = torch.tensor([1 + 2j, 3 - 4j], device=DEVICE_TYPE)
        for view in (base.conj(), base.conj().imag, base.conj().imag[1:]):
            self.assertTrue(view.is_conj() or view.is_neg())
            self.check_arrives(view)
            self.assertEqual(self.peer.call(lazy_bits, view), (view.is_conj(), view.is_neg()))

    def test_empty_tensors_and_scalars_arrive(self):
        self.check_arrives(torch.empty(0, device=DEVICE_TYPE))
        self.check_arrives(torch.empty(3, 0, 2, device=DEVICE_TYPE, requires_grad=True))
        self.check_arrives(torch.tensor(3.5, device=DEVICE_TYPE))
        self.check_arrives(torch.arange(5.0, device=DEVICE_TYPE)[2:2])

    @requires_two_devices
    def test_tensor_keeps_its_device(self):
        self.check_arrives(torch.arange(3, device=f"{DEVICE_TYPE}:1"))
        self.check_arrives(torch.empty(0, device=f"{DEVICE_TYPE}:1"))

    def test_leaves_and_parameters_arrive(self):
        self.check_arrives(torch.ones(3, device=DEVICE_TYPE, requires_grad=True))
        for requires_grad in (True, False):
            parameter = torch.nn.Parameter(torch.ones(3), requires_grad).to(DEVICE_TYPE)
            self.check_arrives(torch.nn.Parameter(parameter.detach(), requires_grad))

    def test_non_leaf_is_refused(self):
        tensor = torch.ones(3, device=DEVICE_TYPE, requires_grad=True) * 2
        with self.assertRaisesRegex(RuntimeError, "non-leaf tensor which requires_grad"):
            dumps(tensor)
        self.check_arrives(tensor.detach())

    def test_sparse_tensors_arrive(self):
        dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]], device=DEVICE_TYPE)
        for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
            sparse = dense.to_sparse(layout=layout)
            self.assertEqual(self.peer.call(describe_sparse, sparse), (str(layout), dense.tolist()))

    def test_nested_tensors_arrive(self):
        parts = [torch.ones(2, 3), torch.zeros(1, 3)]
        nested = torch.nested.nested_tensor(parts, device=DEVICE_TYPE)
        self.assertEqual(self.peer.call(describe_nested, nested), [p.tolist() for p in parts])

    def test_storages_arrive(self):
        tensor = torch.arange(4, dtype=torch.uint8, device=DEVICE_TYPE)
        storage = tensor.untyped_storage()
        self.assertEqual(
            self.peer.call(describe_storage, storage), (f"{DEVICE_TYPE}:0", [0, 1, 2, 3])
        )

    def test_module_arrives(self):
        module = torch.nn.Linear(3, 2).to(DEVICE_TYPE)
        self.assertIs(module.share_memory(), module)
        x = torch.randn(4, 3)
        self.assertEqual(self.peer.call(run_module, module, x), module.cpu()(x).detach().tolist())

    def test_share_memory_does_nothing_and_is_shared(self):
        tensor = torch.arange(3.0, device=DEVICE_TYPE)
        address = tensor.data_ptr()
        self.assertTrue(tensor.is_shared())
        self.assertIs(tensor.share_memory_(), tensor)
        self.assertEqual(tensor.data_ptr(), address)

    def test_writes_are_seen_in_both_directions(self):
        tensor = torch.zeros(1000, device=DEVICE_TYPE)
        self.peer.call(keep_tensor, tensor)
        tensor.fill_(1)
        torch.openreg.synchronize()
        self.assertEqual(self.peer.call(values), [1] * 1000)
        self.peer.call(fill, 2)
        self.assertEqual(tensor.cpu(), torch.full((1000,), 2.0))

    def test_aliases_stay_aliases(self):
        base = torch.zeros(6, device=DEVICE_TYPE)
        self.assertTrue(self.peer.call(are_aliases, base[:3], base[2:]))
        self.assertFalse(self.peer.call(are_aliases, base, torch.zeros(6, device=DEVICE_TYPE)))

    def test_aliases_sent_one_by_one_share_a_storage(self):
        base = torch.zeros(6, device=DEVICE_TYPE)
        self.peer.call(keep_tensor, base[:3])
        self.assertTrue(self.peer.call(is_alias_of_kept, base[2:]))
        self.peer.call(forget)
        self.assert_nothing_is_out()

    def test_received_tensor_is_refused(self):
        tensor = torch.zeros(6, device=DEVICE_TYPE)
        with self.assertRaisesRegex(RuntimeError, "received from another process"):
            self.peer.call(share_received, tensor)
        with self.assertRaisesRegex(RuntimeError, "received from another process"):
            self.peer.call(share_received_view, tensor)
        self.assertEqual(self.peer.call(double_and_return, tensor + 1), [2] * 6)

    def test_copy_of_a_received_tensor_is_shared(self):
        tensor = torch.arange(3.0, device=DEVICE_TYPE)
        self.assertEqual(self.peer.call(copy_and_return, tensor).tolist(), [0, 1, 2])

    def test_own_message_gives_the_tensor_itself(self):
        tensor = torch.arange(3.0, device=DEVICE_TYPE)
        message = dumps(tensor[1:])
        received = pickle.loads(message)
        self.assertEqual(received.data_ptr(), tensor.data_ptr() + 4)
        self.assertEqual(received.untyped_storage()._cdata, tensor.untyped_storage()._cdata)
        self.assert_nothing_is_out()
        with self.assertRaisesRegex(RuntimeError, "no lease"):
            pickle.loads(message)

    def test_received_tensor_works_with_operators(self):
        tensor = torch.arange(12.0, device=DEVICE_TYPE).view(3, 4)
        expected = (tensor.cpu() @ tensor.cpu().T).softmax(0).tolist()
        self.assertEqual(self.peer.call(compute, tensor), expected)

    def test_resizing_is_refused_on_both_sides(self):
        tensor = torch.arange(4.0, device=DEVICE_TYPE)
        with self.assertRaisesRegex(RuntimeError, "not resizable"):
            self.peer.call(resize, tensor, 400)
        self.peer.call(keep_tensor, tensor)
        with self.assertRaisesRegex(RuntimeError, "not resizable"):
            tensor.resize_(400)
        self.assertEqual(tensor.shape, (4,))
        self.assertEqual(self.peer.call(resize, tensor, 2), [0, 1])
        self.peer.call(forget)
        self.assert_nothing_is_out()
        tensor.resize_(400)
        self.assertEqual(tensor[:4].tolist(), [0, 1, 2, 3])

    def test_sparse_gradients_and_cpu_tensors_travel_beside(self):
        on_cpu = torch.arange(3.0)
        on_device = torch.arange(3.0, device=DEVICE_TYPE)
        self.assertEqual(self.peer.call(add_to_host, on_cpu, on_device), [0, 2, 4])

    def test_capturing_nothing_else_is_sent(self):
        self.assertEqual(self.peer.call(double_and_return, torch.ones(2)), [2, 2])


def lazy_bits(tensor):
    return tensor.is_conj(), tensor.is_neg()


def describe_sparse(tensor):
    return str(tensor.layout), tensor.to_dense().tolist()


def describe_nested(tensor):
    return [part.tolist() for part in tensor.cpu().unbind()]


def describe_storage(storage):
    return str(storage.device), list(storage.cpu())


def run_module(module, x):
    return module(x.to(DEVICE_TYPE)).tolist()


def are_aliases(a, b):
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def is_alias_of_kept(tensor):
    return are_aliases(kept["tensor"], tensor)


def share_received_view(tensor):
    dumps(tensor[2:].view(2, 2))


def copy_and_return(tensor):
    kept["copy"] = tensor.clone()
    return kept["copy"]


def compute(tensor):
    return (tensor @ tensor.T).softmax(0).tolist()


def resize(tensor, size):
    tensor.resize_(size)
    return tensor.tolist()


def add_to_host(on_cpu, on_device):
    return (on_cpu + on_device.cpu()).tolist()


def sum_up(requests, replies):
    while (request := requests.get()) is not None:
        replies.put(resources() if request == "resources" else sum_of(request))
        del request


class TestLifetime(IpcTestCase):
    def test_sender_keeps_the_memory_until_the_receiver_releases_it(self):
        peer = self.start_peer()
        before = torch.openreg.memory_allocated()
        tensor = torch.full((1 << 20,), 3.0, device=DEVICE_TYPE)
        peer.call(keep_tensor, tensor)
        del tensor
        torch.openreg.ipc_collect()
        self.assertGreaterEqual(torch.openreg.memory_allocated() - before, 4 << 20)
        self.assertEqual(set(peer.call(values)), {3})
        peer.call(forget)
        torch.openreg.ipc_collect()
        self.assertEqual(torch.openreg.memory_allocated(), before)

    @parametrize("is_out_of_memory", [False, True])
    def test_released_memory_comes_back_when_memory_is_wanted(self, is_out_of_memory):
        peer = self.start_peer()
        before = torch.openreg.memory_allocated()
        peer.call(keep_tensor, torch.ones(1 << 20, device=DEVICE_TYPE))
        peer.call(forget)
        self.assertGreaterEqual(torch.openreg.memory_allocated() - before, 4 << 20)
        if is_out_of_memory:
            with self.assertRaises(torch.OutOfMemoryError):
                torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE_TYPE)
        else:
            torch.openreg.empty_cache()
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_next_share_frees_what_was_released(self):
        peer = self.start_peer()
        before = torch.openreg.memory_allocated()
        for _ in range(20):
            peer.call(double_and_return, torch.ones(1 << 18, device=DEVICE_TYPE))
            self.assertLessEqual(torch.openreg.memory_allocated() - before, 4 << 20)

    def test_release_waits_for_the_work_of_the_receiver(self):
        peer = self.start_peer()
        before = torch.openreg.memory_allocated()
        peer.call(use_behind_gates, torch.ones(1000, device=DEVICE_TYPE))
        torch.openreg.ipc_collect()
        self.assertGreater(torch.openreg.memory_allocated(), before)
        self.assertEqual(peer.call(open_gate, "first"), None)
        torch.openreg.ipc_collect()
        self.assertGreater(torch.openreg.memory_allocated(), before)
        self.assertEqual(peer.call(open_gate, "second"), [3] * 1000)
        torch.openreg.ipc_collect()
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_receiver_that_is_killed_releases_all(self):
        peer = self.start_peer()
        before = torch.openreg.memory_allocated()
        tensor = torch.ones(1000, device=DEVICE_TYPE)
        peer.call(keep_tensor, tensor)
        peer.kill()
        self.assert_nothing_is_out()
        del tensor
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_received_memory_outlives_its_process(self):
        peer = self.start_peer()
        tensor = peer.call(make, 1000)
        view = tensor[10:20]
        peer.kill()
        self.assertEqual(tensor.cpu(), torch.arange(1000.0))
        tensor += 1
        self.assertEqual(view.tolist(), list(range(11, 21)))
        del tensor
        self.assertEqual((view * 2).tolist(), list(range(22, 42, 2)))

    def test_message_of_an_ended_process_is_an_error(self):
        peer = self.start_peer()
        message = peer.call(make_message, 10)
        peer.kill()
        with self.assertRaisesRegex(RuntimeError, f"process {peer.process.pid}.* has ended"):
            pickle.loads(message)

    def test_message_is_received_once(self):
        first, second = self.start_peer(), self.start_peer()
        message = dumps(torch.arange(2.0, device=DEVICE_TYPE))
        self.assertEqual(first.call(load, message), [0, 1])
        for peer in (first, second):
            with self.assertRaisesRegex(RuntimeError, "received before"):
                peer.call(load, message)

    def test_dropped_message_keeps_its_tensor(self):
        before = torch.openreg.memory_allocated()
        message = dumps(torch.ones(1000, device=DEVICE_TYPE))
        torch.openreg.ipc_collect()
        self.assertGreater(torch.openreg.memory_allocated(), before)
        self.assertEqual(_C._collect_shared(), 1)
        pickle.loads(message)
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_record_stream_on_a_received_tensor(self):
        peer = self.start_peer()
        tensor = peer.call(make, 100)
        side = torch.openreg.Stream()
        result = torch.zeros(100, device=DEVICE_TYPE)
        side.wait_stream(torch.openreg.current_stream())
        with StreamGate(side):
            with torch.openreg.stream(side):
                result.copy_(tensor)
            tensor.record_stream(side)
            del tensor
        side.synchronize()
        self.assertEqual(result.tolist(), list(range(100)))

    def test_ten_thousand_tensors_leave_nothing(self):
        context = torch.multiprocessing.get_context("spawn")
        requests, replies = context.Queue(), context.Queue()
        process = context.Process(target=sum_up, args=(requests, replies))
        process.start()

        def ask(value):
            requests.put(value)
            return replies.get(timeout=TIMEOUT_S)

        ask([torch.ones(8, device=DEVICE_TYPE)])
        here, there = resources(), ask("resources")
        torch.openreg.ipc_collect()
        memory = torch.openreg.memory_allocated()
        for i in range(100):
            batch = [torch.full((8,), float(i), device=DEVICE_TYPE) for _ in range(100)]
            self.assertEqual(ask(batch), 800.0 * i)
            del batch
        self.assertEqual(resources(), here)
        self.assertEqual(ask("resources"), there)
        requests.put(None)
        process.join(TIMEOUT_S)
        self.assertEqual(process.exitcode, 0)
        self.assert_nothing_is_out()
        self.assertEqual(torch.openreg.memory_allocated(), memory)

    def test_thousands_of_tensors_at_once(self):
        peer = self.start_peer()
        peer.call(double_and_return, torch.ones(1, device=DEVICE_TYPE))
        there = peer.call(resources)
        tensors = [torch.full((1,), float(i), device=DEVICE_TYPE) for i in range(3000)]
        peer.call(keep_tensor, tensors)
        self.assertLessEqual(peer.call(resources)[1] - there[1], 4)
        self.assertEqual(peer.call(values_of_all), [float(i) for i in range(3000)])
        peer.call(forget)
        self.assert_nothing_is_out()

    def test_tensors_are_received_and_freed_by_threads(self):
        peer = self.start_peer()
        messages = [dumps(torch.full((4,), float(i), device=DEVICE_TYPE)) for i in range(400)]
        self.assertEqual(peer.call(load_in_threads, messages), sum(range(400)) * 4.0)
        self.assert_nothing_is_out()


def use_behind_gates(tensor):
    kept["result"] = torch.zeros_like(tensor)
    side = torch.openreg.Stream()
    kept["first"] = StreamGate()
    kept["second"] = StreamGate(side)
    kept["streams"] = {"first": torch.openreg.current_stream(), "second": side}
    kept["first"].__enter__()
    kept["second"].__enter__()
    with torch.openreg.stream(side):
        kept["result"].add_(tensor, alpha=3)
    tensor.record_stream(side)


def open_gate(name):
    kept[name].__exit__()
    kept["streams"][name].synchronize()
    return kept["result"].tolist() if name == "second" else None


def sum_of(tensors):
    return sum(tensor.sum().item() for tensor in tensors)


def values_of_all():
    return [tensor.item() for tensor in kept["tensor"]]


def load_in_threads(messages):
    import threading

    sums = []

    def run(own):
        sums.append(sum(pickle.loads(message).sum().item() for message in own))

    threads = [threading.Thread(target=run, args=(messages[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.openreg.synchronize()
    return sum(sums)


class TestOrder(IpcTestCase):
    def test_receiver_waits_for_pending_work_of_the_sender(self):
        peer = self.start_peer()
        tensor = torch.zeros(1000, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate() as gate:
            tensor.fill_(7)
            peer.begin(copy_of, tensor)  # returns although the work is pending
            peer.begin(is_idle)
            self.assertEqual(peer.result(), None)
            self.assertFalse(peer.result())
            gate.open()
            self.assertEqual(peer.call(values), [7] * 1000)

    def test_work_on_the_streams_of_the_tensor_is_waited_for(self):
        peer = self.start_peer()
        side = torch.openreg.Stream()
        with torch.openreg.stream(side):
            tensor = torch.zeros(1000, device=DEVICE_TYPE)
        side.synchronize()
        with StreamGate(side) as gate:
            with torch.openreg.stream(side):
                tensor.fill_(7)
            peer.begin(copy_of, tensor)  # from the default stream, as the thread of a queue does
            peer.begin(is_idle)
            self.assertEqual(peer.result(), None)
            self.assertFalse(peer.result())
            gate.open()
            self.assertEqual(peer.call(values), [7] * 1000)

    def test_failure_of_the_sender_arrives(self):
        peer = self.start_peer()
        peer.begin(copy_of, fail_and_make(1000))
        self.assertEqual(peer.result(), None)
        with self.assertRaisesRegex(RuntimeError, f"process {os.getpid()} failed before"):
            peer.call(values)
        with self.assertRaises(INDEX_ERROR):
            torch.openreg.synchronize()
        self.assertEqual(peer.call(double_and_return, torch.ones(2, device=DEVICE_TYPE)), [2, 2])

    def test_death_of_the_sender_ends_the_wait(self):
        peer = self.start_peer()
        tensor = peer.call(make_behind_a_gate, 10)
        result = tensor + 1
        self.assertFalse(torch.openreg.current_stream().query())
        peer.kill()
        with self.assertRaisesRegex(RuntimeError, f"process {peer.process.pid} ended before"):
            result.cpu()

    def test_events_order_streams_across_processes(self):
        peer = self.start_peer()
        event = torch.openreg.Event(interprocess=True)
        tensor = torch.zeros(10, device=DEVICE_TYPE)
        peer.call(keep_tensor, tensor)
        with StreamGate() as gate:
            tensor.fill_(4)
            event.record()
            self.assertEqual(peer.call(wait_for_event, event), False)
            gate.open()
            self.assertEqual(peer.call(values), [4] * 10)
        self.assertTrue(peer.call(query_event))

    def test_event_handle_before_the_first_record(self):
        peer = self.start_peer()
        event = torch.openreg.Event(interprocess=True)
        handle = event.ipc_handle()
        self.assertEqual(len(handle), 64)
        self.assertEqual(peer.call(open_event, handle), (True, f"{DEVICE_TYPE}:0"))
        with StreamGate() as gate:
            event.record()
            self.assertFalse(peer.call(query_event))
            gate.open()
            event.synchronize()
        self.assertTrue(peer.call(synchronize_event))

    def test_bad_use_of_interprocess_events(self):
        peer = self.start_peer()
        event = torch.openreg.Event(interprocess=True)
        handle = event.ipc_handle()
        with self.assertRaisesRegex(ValueError, "enable_timing=False"):
            torch.openreg.Event(interprocess=True, enable_timing=True)
        with self.assertRaisesRegex(RuntimeError, "interprocess=True"):
            torch.openreg.Event().ipc_handle()
        with self.assertRaisesRegex(RuntimeError, "made by this process"):
            torch.openreg.Event.from_ipc_handle(f"{DEVICE_TYPE}:0", handle)
        with self.assertRaisesRegex(ValueError, "64 bytes, got 3"):
            torch.openreg.Event.from_ipc_handle(0, b"abc")
        with self.assertRaisesRegex(RuntimeError, "out of range"):
            torch.openreg.Event.from_ipc_handle(64, handle)
        with self.assertRaisesRegex(RuntimeError, "damaged"):
            torch.openreg.Event.from_ipc_handle(0, bytes(64))
        peer.call(open_event, handle)
        with self.assertRaisesRegex(RuntimeError, "received from another process"):
            peer.call(share_event)
        event = None
        with self.assertRaisesRegex(RuntimeError, "has destroyed the event"):
            peer.call(query_event)
        with self.assertRaisesRegex(RuntimeError, "has destroyed the event"):
            peer.call(record_event)

    def test_record_of_the_receiver_is_waited_for_by_the_owner(self):
        peer = self.start_peer()
        event = torch.openreg.Event(interprocess=True)
        peer.call(open_event, event.ipc_handle())
        tensor = peer.call(record_behind_a_gate, 10)
        self.assertFalse(event.query())
        event.wait()
        result = tensor + 1
        self.assertFalse(torch.openreg.current_stream().query())
        peer.call(open_gate_of_record)
        event.synchronize()
        self.assertEqual(result.tolist(), [2] * 10)
        self.assertTrue(peer.call(synchronize_event))

    def test_latest_record_counts_whichever_process_made_it(self):
        peer = self.start_peer()
        event = torch.openreg.Event(interprocess=True)
        peer.call(open_event, event.ipc_handle())
        peer.call(record_event)
        self.assertTrue(peer.call(synchronize_event))
        event.synchronize()
        with StreamGate() as gate:
            event.record()
            self.assertFalse(event.query())
            self.assertFalse(peer.call(query_event))
            gate.open()
            event.synchronize()
        self.assertTrue(peer.call(query_event))

    def test_death_of_the_receiver_ends_the_wait_for_its_record(self):
        peer = self.start_peer()
        event = torch.openreg.Event(interprocess=True)
        peer.call(open_event, event.ipc_handle())
        peer.call(record_behind_a_gate, 10)
        self.assertFalse(event.query())
        peer.kill()
        text = f"process {peer.process.pid} ended before"
        with self.assertRaisesRegex(RuntimeError, text):
            event.synchronize()
        with self.assertRaisesRegex(RuntimeError, text):
            torch.openreg.synchronize()  # the current stream waits for the peer's tensor

    def test_process_exits_while_it_waits_for_another(self):
        peer = self.start_peer()
        with StreamGate():
            tensor = torch.ones(3, device=DEVICE_TYPE)
            peer.call(copy_of, tensor)
            self.assertEqual(peer.end(), 0)


def copy_of(tensor):
    kept["tensor"] = tensor.clone()


def is_idle():
    return torch.openreg.current_stream().query()


def fail_and_make(size):
    tensor = torch.zeros(size, device=DEVICE_TYPE)
    torch.openreg.synchronize()
    return tensor[torch.full((size,), size, device=DEVICE_TYPE)]


def make_behind_a_gate(size):
    tensor = torch.zeros(size, device=DEVICE_TYPE)
    kept["gate"] = StreamGate()
    kept["gate"].__enter__()
    return tensor.add_(1)


def wait_for_event(event):
    kept["event"] = event
    event.wait()
    kept["tensor"] = kept["tensor"].clone()
    return torch.openreg.current_stream().query()


def open_event(handle):
    kept["event"] = torch.openreg.Event.from_ipc_handle(f"{DEVICE_TYPE}:0", handle)
    return kept["event"].query(), str(kept["event"].device)


def query_event():
    return kept["event"].query()


def synchronize_event():
    kept["event"].synchronize()
    return kept["event"].query()


def share_event():
    kept["event"].ipc_handle()


def record_event():
    kept["event"].record()


def record_behind_a_gate(size):
    tensor = make_behind_a_gate(size)
    kept["event"].record()
    return tensor


def open_gate_of_record():
    kept["gate"].open()


class TestMessages(IpcTestCase):
    def test_damaged_messages_are_refused(self):
        storage = torch.ones(10, device=DEVICE_TYPE).untyped_storage()
        message = _C._share_storage(storage)
        generator = random.Random(0)
        for position in range(len(message)):
            damaged = bytearray(message)
            damaged[position] ^= generator.randrange(1, 256)
            with self.assertRaisesRegex(RuntimeError, "damaged"):
                _C._receive_storage(bytes(damaged))
        for size in (0, 1, len(message) - 1, len(message) + 1):
            with self.assertRaisesRegex(RuntimeError, f"expected {len(message)} bytes, got {size}"):
                _C._receive_storage((message + b"x")[:size])
        self.assertEqual(_C._receive_storage(message)._cdata, storage._cdata)

    def test_message_of_another_version_is_refused_with_both_versions(self):
        message = bytearray(_C._share_storage(torch.ones(10, device=DEVICE_TYPE).untyped_storage()))
        version = int.from_bytes(message[:8], "little")
        message[:8] = (version + 1).to_bytes(8, "little")
        checksum = 0xCBF29CE484222325
        for byte in message[:-8]:
            checksum = (checksum ^ byte) * 0x100000001B3 % 2**64
        message[-8:] = checksum.to_bytes(8, "little")
        with self.assertRaisesRegex(
            RuntimeError,
            f"expected a message of version {version}, got one of version {version + 1}",
        ):
            _C._receive_storage(bytes(message))

    def test_only_storages_of_the_device_are_sent(self):
        with self.assertRaisesRegex(
            RuntimeError,
            f"^_share_{DEVICE_TYPE}_: only available on {DEVICE_TYPE.upper()}\n.* got one of cpu",
        ):
            _C._share_storage(torch.ones(3).untyped_storage())

    def test_nothing_appears_in_the_file_system_and_files_are_private(self):
        names = set(os.listdir("/dev/shm"))
        dumps(torch.ones(3, device=DEVICE_TYPE))
        self.assertEqual(set(os.listdir("/dev/shm")) - names, set())
        modes = {
            os.stat(f"/proc/self/fd/{number}").st_mode & 0o777
            for number in os.listdir("/proc/self/fd")
            if os.path.islink(path := f"/proc/self/fd/{number}")
            and os.readlink(path).startswith("/memfd:openreg")
        }
        self.assertEqual(modes, {0o600})

    def test_device_that_the_receiver_lacks(self):
        output = run_child(
            """
            import multiprocessing, os, pickle
            import torch
            from multiprocessing.reduction import ForkingPickler

            reader, writer = multiprocessing.Pipe()
            answer, done = multiprocessing.Pipe()
            if os.fork() == 0:
                os.environ["OPENREG_DEVICE_COUNT"] = "1"
                try:
                    pickle.loads(reader.recv())
                except RuntimeError as error:
                    print(error, flush=True)
                done.send(None)
                os._exit(0)
            tensor = torch.ones(3, device="openreg:1")
            writer.send(bytes(ForkingPickler.dumps(tensor)))
            answer.recv()
            """,
            {"OPENREG_DEVICE_COUNT": "2"},
        )
        self.assertIn(
            "the sender's device 1 does not exist here; this process has 1 devices", output
        )

    def test_forked_child_neither_sends_nor_receives(self):
        output = run_child(
            """
            import os, pickle, sys
            import torch
            from multiprocessing.reduction import ForkingPickler

            tensor = torch.ones(3, device="openreg")
            message = bytes(ForkingPickler.dumps(tensor))
            if os.fork() == 0:
                for action in (lambda: ForkingPickler.dumps(tensor), lambda: pickle.loads(message)):
                    try:
                        action()
                    except RuntimeError as error:
                        print(str(error).split(".")[0])
                print(pickle.loads(ForkingPickler.dumps(torch.ones(2))).tolist(), flush=True)
                os._exit(0)
            os.wait()
            print(pickle.loads(message).tolist())
            """
        )
        error = FORK_TEXT.split(".")[0]
        self.assertEqual(output.splitlines(), [error, error, "[1.0, 1.0]", "[1.0, 1.0, 1.0]"])


class TestCpuTensors(OpenRegTestCase):
    def test_cpu_tensors_travel_as_ever(self):
        tensor = torch.arange(3.0)
        function, arguments = torch.multiprocessing.reductions.reduce_tensor(tensor)
        self.assertEqual(function(*arguments), tensor)
        received = pickle.loads(dumps(tensor))
        received[0] = 9
        self.assertEqual(tensor[0], 9)

    def test_other_storages_get_torchs_errors(self):
        with self.assertRaisesRegex(RuntimeError, "Cannot pickle meta storage"):
            dumps(torch.empty(3, device="meta").untyped_storage())


instantiate_parametrized_tests(TestQueues)
instantiate_parametrized_tests(TestTensors)
instantiate_parametrized_tests(TestLifetime)


if __name__ == "__main__":
    run_tests()
