"""How groups are made: by name and without, split, with options."""

import os
import tempfile
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from common import DEVICE_TYPE, TestCase, run_program, run_tests
from extras.distributed.ranks import BACKEND, Ranks, device_of
from torch.distributed.device_mesh import init_device_mesh

from torch_openreg import _C
from torch_openreg.distributed import ProcessGroupOCCL, monitored_barrier

pytestmark = pytest.mark.sample(0.26)

NAME = BACKEND.rsplit(":", 1)[1]


def init(folder, rank, size, backend, **arguments):
    dist.init_process_group(
        backend,
        store=dist.FileStore(os.path.join(folder, "store"), size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
        **arguments,
    )


def sums(rank, group=None):
    x = torch.full((3,), float(rank + 1), device=device_of(rank))
    dist.all_reduce(x, group=group)
    return x[0].item()


def begin_and_end(rank, size, folder, backend, with_device):
    device = device_of(rank)
    init(folder, rank, size, backend, **({"device_id": device} if with_device else {}))
    result = sums(rank)
    # The default backend, which c10d takes for Gloo's if it has to find it itself.
    group = dist.distributed_c10d._get_default_group()
    has_hooks = group._has_hooks()
    dist.destroy_process_group()
    return result, has_hooks


def use_subgroups(rank, size):
    even = dist.new_group([0, 2], timeout=timedelta(seconds=50))
    odd = dist.new_group([1, 3])
    group = odd if rank % 2 else even
    backend = group._get_backend(device_of(rank))
    assert isinstance(backend, ProcessGroupOCCL), backend
    expected_timeout = timedelta(seconds=50) if rank % 2 == 0 else backend.options._timeout
    assert backend.options._timeout == expected_timeout
    return sums(rank, group)


def split(rank, size, folder):
    init(folder, rank, size, BACKEND, device_id=device_of(rank))
    group = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    result = sums(rank, group)
    count = dist.distributed_c10d._get_default_group()._get_backend(device_of(rank))
    assert count.comm_split_count() == 1
    # Ranks without a part in it.
    part = dist.new_group([0, 1])
    if rank < 2:
        result += sums(rank, part)
    dist.destroy_process_group()
    return result


def use_mesh(rank, size):
    mesh = init_device_mesh(device_of(rank).type, (2, 2), mesh_dim_names=("rows", "columns"))
    return sums(rank, mesh.get_group("rows")), sums(rank, mesh.get_group("columns"))


def use_options(rank, size, folder):
    options = ProcessGroupOCCL.Options()
    options.is_high_priority_stream = True
    init(folder, rank, size, NAME, pg_options=options)
    result = sums(rank)
    backend = dist.distributed_c10d._get_default_group()._get_backend(device_of(rank))
    assert backend.options.is_high_priority_stream
    assert backend.options._timeout == timedelta(seconds=60)
    # Instead of NCCL, torch itself checks them.
    kind, class_name = (
        (AssertionError, "ProcessGroupNCCL") if NAME == "nccl" else (TypeError, "ProcessGroupOCCL")
    )
    with TestCase().assertRaisesRegex(kind, f"{class_name}.Options"):
        dist.new_group(backend=NAME, pg_options=object())
    dist.destroy_process_group()
    return result


def priorities_of(rank, size, folder, is_high):
    """Returns the priorities of the streams of a group, and of one that is split from it."""
    options = ProcessGroupOCCL.Options(is_high_priority_stream=is_high)
    init(folder, rank, size, NAME, pg_options=options, device_id=device_of(rank))
    groups = [dist.distributed_c10d._get_default_group()]
    groups.append(dist.split_group(split_ranks=[list(range(size))]))
    results = []
    for group in groups:
        x = torch.ones(3, device=device_of(rank))
        dist.all_reduce(x, group=group, async_op=True).wait()
        works = [dist.isend(x, 1 - rank, group), dist.irecv(x.clone(), 1 - rank, group)]
        for work in works:
            work.wait()
        streams = group._get_backend(x.device)._streams()
        results.append([_C._stream_priority(*stream) for stream in streams])
    torch.openreg.synchronize()
    dist.destroy_process_group()
    return results


def wait_for_all(rank, size):
    monitored_barrier()
    monitored_barrier(timeout=timedelta(seconds=30))
    return sums(rank)


def check_each_other(rank, size):
    """torch's own checks of collectives, around this backend's."""
    result = sums(rank)
    try:
        dist.all_reduce(torch.ones(rank + 2, device=device_of(rank)))
    except RuntimeError as error:
        return result, "mismatch" in str(error).lower() or "different" in str(error).lower()
    return result, False


class TestGroups(TestCase):
    def run_ranks(self, size, function, *args, backend=BACKEND, environment=None):
        with Ranks(size, backend=backend, environment=environment) as ranks:
            return ranks.run(function, *args)

    def test_group_by_name_by_device_and_without_a_name(self):
        for backend in (None, NAME, BACKEND):
            for with_device in (False, True):
                with (
                    self.subTest(backend=backend, with_device=with_device),
                    tempfile.TemporaryDirectory() as folder,
                ):
                    results = self.run_ranks(
                        2, begin_and_end, folder, backend, with_device, backend=None
                    )
                    self.assertEqual(results, [(3.0, False)] * 2)

    def test_new_groups_have_ranks_and_timeouts_of_their_own(self):
        self.assertEqual(self.run_ranks(4, use_subgroups), [4.0, 6.0, 4.0, 6.0])

    def test_groups_can_be_split(self):
        with tempfile.TemporaryDirectory() as folder:
            results = self.run_ranks(4, split, folder, backend=None)
        self.assertEqual(results, [6.0, 6.0, 7.0, 7.0])

    def test_meshes(self):
        expected = [(4.0, 3.0), (6.0, 3.0), (4.0, 7.0), (6.0, 7.0)]
        self.assertEqual(self.run_ranks(4, use_mesh), expected)

    def test_options(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.run_ranks(2, use_options, folder, backend=None), [3.0, 3.0])

    def test_streams_have_the_priority_of_the_options(self):
        least, greatest = torch.openreg.Stream.priority_range()
        self.assertLess(greatest, least)
        for is_high, expected in ((True, -1), (False, 0), (True, -1)):
            with self.subTest(is_high=is_high), tempfile.TemporaryDirectory() as folder:
                for results in self.run_ranks(2, priorities_of, folder, is_high, backend=None):
                    for priorities in results:
                        # That of collectives, and one at least for messages.
                        self.assertGreaterEqual(len(priorities), 2)
                        self.assertEqual(set(priorities), {expected})

    def test_monitored_barrier(self):
        self.assertEqual(self.run_ranks(2, wait_for_all), [3.0, 3.0])

    def test_groups_work_inside_of_torch_s_own_checks(self):
        results = self.run_ranks(
            2, check_each_other, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
        )
        self.assertEqual(results, [(3.0, True)] * 2)

    def test_a_group_of_one(self):
        self.assertEqual(self.run_ranks(1, sum_alone), [1.0])

    def test_a_group_with_a_device_leaves_the_choice_of_the_device_to_a_mesh(self):
        # Programs for torchrun may name their device nowhere else.
        for chosen in (None, 0):
            with self.subTest(chosen=chosen), tempfile.TemporaryDirectory() as folder:
                result = run_program(
                    f"""
                    import torch
                    import torch.distributed as dist
                    from torch.distributed.device_mesh import init_device_mesh
                    module = torch.get_device_module("{DEVICE_TYPE}")
                    if {chosen} is not None:
                        module.set_device({chosen})
                    dist.init_process_group(
                        "{NAME}",
                        store=dist.FileStore("{folder}/store", 1),
                        rank=0,
                        world_size=1,
                        device_id=torch.device("{DEVICE_TYPE}:1"),
                    )
                    print(module.is_initialized())
                    mesh = init_device_mesh("{DEVICE_TYPE}", (1,))
                    x = torch.ones(2, device="{DEVICE_TYPE}")
                    dist.all_reduce(x, group=mesh.get_group())
                    print(x.device.index, module.current_device())
                    dist.destroy_process_group()
                    """,
                    {"LOCAL_RANK": "1", "OPENREG_DEVICE_COUNT": "2"},
                )
                expected = "False\n1 1\n" if chosen is None else "True\n0 0\n"
                self.assertEqual(result.stdout, expected)

    def test_a_group_connects_only_devices_that_exist(self):
        error = "AcceleratorError" if DEVICE_TYPE == "cuda" else "RuntimeError"
        self.assertEqual(self.run_ranks(1, connect_devices), [[None, error, "ValueError"]])

    def test_importing_the_package_registers_the_backend_and_connects_nothing(self):
        result = run_program(
            "import torch, threading\n"
            "import torch.distributed as dist\n"
            f"print(dist.Backend.default_device_backend_map['{DEVICE_TYPE}'])\n"
            "print(sorted(dist.Backend.default_device_backend_map))\n"
            "print(torch.openreg.is_initialized() or threading.active_count())\n"
        )
        name, devices, threads = result.stdout.splitlines()
        self.assertEqual(name, NAME)
        self.assertNotIn("'o'", devices)
        self.assertEqual(threads, "1")


def connect_devices(rank, size):
    """Returns the errors of connecting a device, one that does not exist, and the CPU."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(device_of(rank))
    errors = []
    for device in (device_of(rank), torch.device(DEVICE_TYPE, 100), torch.device("cpu")):
        try:
            backend.eager_connect_single_device(device)
            errors.append(None)
        except Exception as error:
            errors.append(type(error).__name__)
    return errors


def sum_alone(rank, size):
    return sums(rank)


if __name__ == "__main__":
    run_tests()
