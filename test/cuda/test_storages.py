"""Storages, old tensor types, files and other processes."""

import copy
import io
import struct
import subprocess
import sys
import tempfile
import textwrap
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_program,
    run_tests,
    subtest,
)

pytestmark = pytest.mark.sample(0.14)

TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


def tagged_as_of_a_gpu(content):
    """The file of tensors on the CPU, as torch writes it of tensors on cuda:0.

    Their storages' locations are pickled strings: the opcode, four bytes of length, the text.
    """

    def changed(pickled):
        tag, other = (b"X" + struct.pack("<I", len(t)) + t for t in (b"cpu", b"cuda:0"))
        assert tag in pickled
        return pickled.replace(tag, other)

    if not zipfile.is_zipfile(io.BytesIO(content)):
        return changed(content)
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as source,
        zipfile.ZipFile(result, "w", zipfile.ZIP_STORED) as target,
    ):
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, changed(data) if name.endswith("data.pkl") else data)
    return result.getvalue()


class TestStorages(OpenRegTestCase):
    @parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 1)])
    def test_of_a_size(self, device):
        storage = torch.UntypedStorage(16, device=device)
        self.assertEqual(storage.nbytes(), 16)
        self.assertEqual(storage.device, torch.empty(0, device=device).device)
        self.assertTrue(storage.is_cuda)

    def test_of_values(self):
        storage = torch.UntypedStorage([1, 2, 3], device="cuda")
        self.assertEqual(storage.cpu().tolist(), [1, 2, 3])

    def test_empty(self):
        self.assertEqual(torch.UntypedStorage(device="cuda").nbytes(), 0)

    def test_of_the_cpu_as_ever(self):
        self.assertEqual(torch.UntypedStorage(4).device.type, "cpu")
        self.assertEqual(torch.UntypedStorage([1, 2]).tolist(), [1, 2])
        self.assertEqual(torch.UntypedStorage(4, device="meta").device.type, "meta")

    def test_resize_keeps_contents(self):
        x = torch.arange(4, dtype=torch.uint8, device="cuda")
        storage = x.untyped_storage()
        self.assertIs(storage.resize_(8), storage)
        self.assertEqual(storage.cpu().tolist()[:4], [0, 1, 2, 3])
        storage.resize_(2)
        self.assertEqual(storage.cpu().tolist(), [0, 1])
        storage.resize_(0)
        self.assertEqual(storage.nbytes(), 0)

    def test_clone_copy_and_move(self):
        x = torch.arange(4.0, device="cuda")
        clone = x.untyped_storage().clone()
        self.assertNotEqual(clone.data_ptr(), x.data_ptr())
        self.assertEqual(clone.cpu().tolist(), x.cpu().untyped_storage().tolist())
        moved = torch.arange(4.0).untyped_storage().cuda()
        self.assertEqual(moved.device, torch.device("cuda:0"))

    def test_deepcopy_and_pickle(self):
        x = torch.arange(4.0, device="cuda:1", requires_grad=True)
        self.assert_bit_equal(copy.deepcopy(x), x)
        self.assertEqual(copy.deepcopy(x).device, x.device)
        module = copy.deepcopy(torch.nn.Linear(2, 2).cuda())
        self.assertTrue(module.weight.is_cuda)

    def test_typed_storage(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            storage = torch.cuda.FloatStorage(3)
            self.assertEqual(storage.fill_(2).tolist(), [2, 2, 2])
            typed = torch.arange(2.0, device="cuda").storage()
            self.assertEqual(typed.type(), "torch.cuda.FloatStorage")


class TestTypes(OpenRegTestCase):
    @parametrize("name,dtype", [subtest(pair, name=pair[0]) for pair in TYPES.items()])
    def test_type_makes_and_knows_tensors(self, name, dtype):
        kind = getattr(torch.cuda, name)
        x = kind(2, 3)
        self.assertEqual((x.dtype, x.device.type, tuple(x.shape)), (dtype, "cuda", (2, 3)))
        self.assertEqual(kind([1, 0]).cpu().tolist(), [1, 0])
        self.assertIsInstance(x, kind)
        self.assertNotIsInstance(x.cpu(), kind)
        self.assertEqual(x.type(), f"torch.cuda.{name}")
        self.assertEqual(torch.ones(2).type(kind).type(), f"torch.cuda.{name}")
        self.assertEqual(torch.ones(2).type(f"torch.cuda.{name}").dtype, dtype)
        self.assertTrue(kind.is_cuda)

    def test_sparse_type(self):
        x = torch.eye(2, device="cuda").to_sparse()
        self.assertIsInstance(x, torch.cuda.sparse.FloatTensor)
        self.assertNotIsInstance(x.to_dense(), torch.cuda.sparse.FloatTensor)

    def test_types_are_among_torch_s(self):
        for module in (torch.cuda, torch.cuda.sparse):
            for name in TYPES:
                self.assertIn(getattr(module, name), torch._tensor_classes)

    def test_constructor_and_default_are_deprecated(self):
        output = run_child(
            """
            import warnings
            import torch

            warnings.simplefilter("always")
            with warnings.catch_warnings(record=True) as caught:
                for _ in range(2):
                    torch.cuda.FloatTensor(2)
                    torch.set_default_tensor_type(torch.cuda.FloatTensor)
            print([str(one.message).split(" are ")[0].split(" is ")[0] for one in caught])
            """
        )
        self.assertEqual(
            output.splitlines()[0],
            "['The torch.cuda.*DtypeTensor constructors', 'torch.set_default_tensor_type()']",
        )

    @parametrize("kind", ["torch.cuda.DoubleTensor", torch.cuda.DoubleTensor])
    def test_default_tensor_type(self, kind):
        try:
            torch.set_default_tensor_type(kind)
            x = torch.ones(2)
            self.assertEqual((x.dtype, x.device.type), (torch.float64, "cuda"))
        finally:
            torch.set_default_tensor_type(torch.FloatTensor)
        x = torch.ones(2)
        self.assertEqual((x.dtype, x.device.type), (torch.float32, "cpu"))


class TestFiles(OpenRegTestCase):
    @parametrize(
        "location,device",
        [(None, "cuda:1"), ("cuda:0", "cuda:0"), ("cuda", "cuda:0"), ("cpu", "cpu")],
    )
    def test_map_location(self, location, device):
        file = io.BytesIO()
        torch.save({"x": torch.arange(3.0, device="cuda:1")}, file)
        file.seek(0)
        x = torch.load(file, map_location=location)["x"]
        self.assertEqual(x.device, torch.device(device))
        self.assertEqual(x.cpu(), torch.arange(3.0))

    def test_file_says_cuda_as_that_of_a_gpu(self):
        # A GPU's file names the storage's location; a file for the CPU has the same layout.
        file = io.BytesIO()
        torch.save(torch.arange(3.0, device="cuda:1"), file)
        with zipfile.ZipFile(file) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
            self.assertIn(b"cuda:1", archive.read(name))

    @parametrize("is_zip", [True, False])
    @parametrize(
        "location,device",
        [(None, "cuda:0"), ("cuda:1", "cuda:1"), ({"cuda:0": "cpu"}, "cpu"), ("cpu", "cpu")],
    )
    def test_file_of_a_gpu_loads(self, is_zip, location, device):
        # Such a file is the CPU's with another tag, without bytes of this package.
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(
                {"model": torch.nn.Linear(3, 2).state_dict(), "step": torch.tensor(7)},
                file,
                _use_new_zipfile_serialization=is_zip,
            )
        expected = torch.load(io.BytesIO(file.getvalue()))
        loaded = torch.load(io.BytesIO(tagged_as_of_a_gpu(file.getvalue())), map_location=location)
        self.assertEqual(loaded["step"].item(), 7)
        for name, value in expected["model"].items():
            self.assertEqual(loaded["model"][name].device, torch.device(device))
            self.assert_bit_equal(loaded["model"][name], value)

    def test_file_loads_where_only_the_cpu_is(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint"
            torch.save({"x": torch.arange(3.0, device="cuda:1")}, path)
            code = f"""
            import torch
            assert not torch.cuda.is_available()
            assert torch.load({str(path)!r}, map_location="cpu")["x"].tolist() == [0, 1, 2]
            try:
                torch.load({str(path)!r})
            except RuntimeError as error:
                assert "on a CUDA device but torch.cuda.is_available() is False" in str(error)
                print("refused")
            """
            program = run_program(
                code, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OPENREG_DEVICE_TYPE": "openreg"}
            )
        self.assertEqual(program.stdout.strip(), "refused")

    def test_device_that_is_not_there(self):
        file = io.BytesIO()
        torch.save(torch.arange(3.0, device="cuda:1"), file)
        data = file.getvalue().replace(b"cuda:1", b"cuda:7")
        text = "Attempting to deserialize object on CUDA device 7"
        with self.assertRaisesRegex(RuntimeError, text):
            torch.load(io.BytesIO(data), weights_only=False)


SENDER = """
import traceback
import torch
import torch.multiprocessing as mp

def work(inbox, outbox):
    try:
        value = inbox.get(timeout=100)
        {work}
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        outbox.put("done")
    except BaseException:
        outbox.put(traceback.format_exc())
    inbox.get(timeout=100)

if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=work, args=(inbox, outbox), daemon=True)
    child.start()
    {make}
    inbox.put(value)
    answer = outbox.get(timeout=100)
    assert answer == "done", answer
    {check}
    inbox.put("end")
    child.join()
    print("checked", child.exitcode)
"""


class TestProcesses(OpenRegTestCase):
    @parametrize(
        "make,work,check",
        [
            subtest(
                (
                    "value = torch.zeros(3, device='cuda:1')",
                    "value += 2",
                    "assert value.tolist() == [2, 2, 2]",
                ),
                name="tensor",
            ),
            subtest(
                (
                    "value = torch.zeros(6, device='cuda')[2:4]",
                    "assert value.storage_offset() == 2; value += 1",
                    "assert value.tolist() == [1, 1]",
                ),
                name="view",
            ),
            subtest(
                (
                    "value = torch.nn.Parameter(torch.zeros(2, device='cuda'))",
                    "assert type(value) is torch.nn.Parameter and value.requires_grad\n"
                    "        value.data += 1",
                    "assert value.tolist() == [1, 1]",
                ),
                name="parameter",
            ),
            subtest(
                (
                    "module = torch.nn.Linear(2, 2).cuda()\n    value = module.state_dict()",
                    "value['bias'].fill_(7)",
                    "assert module.bias.tolist() == [7, 7]",
                ),
                name="state_dict",
            ),
            subtest(
                (
                    "value = torch.eye(2, device='cuda').to_sparse()",
                    "assert value.layout is torch.sparse_coo; value._values().mul_(3)",
                    "assert value.to_dense().tolist() == [[3, 0], [0, 3]]",
                ),
                name="sparse",
            ),
            subtest(
                (
                    "value = torch.nested.nested_tensor("
                    "[torch.ones(2), torch.zeros(1)], device='cuda')",
                    # torch copies the buffer of a nested tensor that arrives.
                    "assert value.is_nested and value.is_cuda\n"
                    "        assert value.values().tolist() == [1, 1, 0]",
                    "assert value.values().tolist() == [1, 1, 0]",
                ),
                name="nested",
            ),
            subtest(
                (
                    "value = torch.cuda.Event(interprocess=True)\n    value.record()",
                    "assert isinstance(value, torch.cuda.Event); value.synchronize()",
                    "assert value.query()",
                ),
                name="event",
            ),
        ],
    )
    def test_queue_shares_memory(self, make, work, check):
        program = SENDER.format(make=make, work=work, check=check)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "program.py"
            file.write_text(textwrap.dedent(program))
            run = subprocess.run(
                [sys.executable, str(file)], capture_output=True, text=True, timeout=240
            )
        self.assertEqual(run.stdout.strip(), "checked 0", run.stderr)

    def test_storage_alone_is_refused_as_on_cuda(self):
        from multiprocessing.reduction import ForkingPickler

        with self.assertRaisesRegex(RuntimeError, "Cannot pickle CUDA storage"):
            ForkingPickler.dumps(torch.ones(2, device="cuda").untyped_storage())


instantiate_parametrized_tests(TestStorages)
instantiate_parametrized_tests(TestTypes)
instantiate_parametrized_tests(TestFiles)
instantiate_parametrized_tests(TestProcesses)

if __name__ == "__main__":
    run_tests()
