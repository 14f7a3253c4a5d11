"""Checkpoints and interchange: files, pickles, copies, DLPack, numpy, and legacy names."""

import copy
import io
import operator
import pickle
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
)
from torch._utils import get_tensor_metadata, set_tensor_metadata
from torch.utils import dlpack

LAST = DEVICE_COUNT - 1
FORMATS = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
}


# `x.is_openreg`, or `x.is_cuda`.
is_on_device = operator.attrgetter(f"is_{DEVICE_TYPE}")


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


def restored(value, **options):
    return torch.load(saved(value), **options)


def shares_storage(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


class TestFiles(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.arange(6.0, device=f"{DEVICE_TYPE}:{LAST}").view(2, 3)

    @parametrize("format", list(FORMATS))
    @parametrize("weights_only", [True, False])
    def test_file_restores_device_contents_and_sharing(self, format, weights_only):
        value = {"whole": self.x, "row": self.x[1], "turned": self.x.t()}
        loaded = torch.load(saved(value, **FORMATS[format]), weights_only=weights_only)
        for name, tensor in value.items():
            self.assertEqual(loaded[name].device, tensor.device)
            self.assertEqual(loaded[name].stride(), tensor.stride())
            self.assert_bit_equal(loaded[name], tensor)
            self.assertTrue(shares_storage(loaded[name], loaded["whole"]))

    @parametrize("location", ["cpu", DEVICE_TYPE, f"{DEVICE_TYPE}:{LAST}", None])
    def test_file_is_mapped_into_memory(self, location):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            torch.save({"x": self.x, "row": self.x[0]}, path)
            loaded = torch.load(path, mmap=True, map_location=location)
            device = torch.device(location or self.x.device)
            self.assertEqual(loaded["x"].device.type, device.type)
            self.assert_bit_equal(loaded["x"], self.x)
            self.assertTrue(shares_storage(loaded["x"], loaded["row"]))

    def test_location_may_be_a_function(self):
        tags = []

        def to_cpu(storage, tag):
            tags.append(tag)
            return storage

        loaded = restored(self.x, map_location=to_cpu)
        self.assertEqual(tags, [f"{DEVICE_TYPE}:{LAST}"])
        self.assertEqual(loaded.device, torch.device("cpu"))

    def test_cpu_file_loads_onto_the_device(self):
        loaded = restored(self.x.cpu(), map_location=DEVICE_TYPE)
        self.assertEqual(loaded.device, torch.device(f"{DEVICE_TYPE}:0"))

    def test_save_waits_for_pending_work(self):
        with StreamGate(torch.openreg.current_stream(LAST)) as gate:
            x = self.x + 1
            gate.open()
        self.assert_bit_equal(restored(x), self.x + 1)

    def test_file_does_not_depend_on_the_device_of_its_reader(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            torch.save(self.x, path)
            run_program(
                f"""
                import torch
                x = torch.load({str(path)!r}, map_location="cpu")
                assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
                from torch_openreg import _C
                assert not _C._is_device_active(0)
                """
            )

    @parametrize(
        "make",
        [
            lambda: torch.arange(5, device=DEVICE_TYPE, dtype=torch.bfloat16),
            lambda: torch.tensor(3.0, device=DEVICE_TYPE),
            lambda: torch.empty(0, 3, device=DEVICE_TYPE),
            lambda: torch.randn(3, dtype=torch.complex64, device=DEVICE_TYPE).conj(),
            lambda: torch.randn(3, dtype=torch.complex64, device=DEVICE_TYPE).conj().imag,
            lambda: torch.eye(4, device=DEVICE_TYPE).to_sparse(),
            lambda: torch.eye(4, device=DEVICE_TYPE).to_sparse_csr(),
            lambda: torch.nn.Parameter(torch.ones(2, device=DEVICE_TYPE), requires_grad=False),
        ],
        name_fn=lambda make: str(make.__code__.co_firstlineno - TestFiles.FIRST_MAKER),
    )
    def test_kinds_of_tensors(self, make):
        x = make()
        y = restored(x)
        self.assertIs(type(y), type(x))
        self.assertEqual((y.device, y.dtype, y.layout), (x.device, x.dtype, x.layout))
        self.assertEqual(y.is_conj(), x.is_conj())
        self.assertEqual(y.is_neg(), x.is_neg())
        self.assertEqual(y.requires_grad, x.requires_grad)
        self.assert_bit_equal(y.to_dense(), x.to_dense())

    @parametrize("is_per_channel", [False, True])
    def test_quantized_tensors(self, is_per_channel):
        x = torch.arange(6.0).view(2, 3)
        if is_per_channel:
            scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0, 1])
            q = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
        else:
            q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        for y in (restored(q.to(DEVICE_TYPE)), restored(q, map_location=DEVICE_TYPE)):
            self.assertEqual(y.device.type, DEVICE_TYPE)
            self.assertEqual(y.qscheme(), q.qscheme())
            self.assert_bit_equal(y.int_repr(), q.int_repr())
            self.assert_bit_equal(y.dequantize(), q.dequantize())

    def test_whole_modules_and_optimizers(self):
        model = torch.nn.Linear(3, 2, device=DEVICE_TYPE)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        model(torch.ones(1, 3, device=DEVICE_TYPE)).sum().backward()
        optimizer.step()
        loaded = restored((model, optimizer.state_dict()), weights_only=False)
        self.assert_bit_equal(loaded[0].weight, model.weight)
        twin = torch.optim.Adam(loaded[0].parameters(), fused=True)
        twin.load_state_dict(loaded[1])
        for state in twin.state.values():
            self.assertEqual(state["exp_avg"].device.type, DEVICE_TYPE)

    def test_state_dict_hooks_run(self):
        model = torch.nn.Linear(3, 2, device=DEVICE_TYPE)
        seen = []
        model.register_state_dict_post_hook(lambda *_: seen.append("save"))
        model.register_load_state_dict_pre_hook(lambda *_: seen.append("load"))
        model.load_state_dict(OrderedDict(model.state_dict()), assign=True)
        self.assertEqual(seen, ["save", "load"])

    def test_module_without_memory_gets_some(self):
        with torch.device("meta"):
            model = torch.nn.Linear(3, 2)
        model.to_empty(device=DEVICE_TYPE)
        self.assertEqual(model.weight.device.type, DEVICE_TYPE)
        source = torch.nn.Linear(3, 2)
        model.load_state_dict(source.state_dict())
        self.assert_bit_equal(model.weight, source.weight)

    @parametrize("is_asynchronous", [False, True])
    def test_distributed_checkpoint_of_one_process(self, is_asynchronous):
        dcp = torch.distributed.checkpoint
        model = torch.nn.Linear(3, 2, device=DEVICE_TYPE)
        twin = torch.nn.Linear(3, 2, device=DEVICE_TYPE)
        with tempfile.TemporaryDirectory() as folder:
            if is_asynchronous:
                dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder).result()
            else:
                dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
            state = {"model": twin.state_dict()}
            dcp.load(state, checkpoint_id=folder)
        twin.load_state_dict(state["model"])
        self.assert_bit_equal(twin.weight, model.weight)


TestFiles.FIRST_MAKER = TestFiles.test_kinds_of_tensors.__code__.co_firstlineno


class TestBadFiles(OpenRegTestCase):
    def test_device_that_does_not_exist_is_refused(self):
        content = saved(torch.ones(2, device=f"{DEVICE_TYPE}:0")).getvalue()
        tag = f"{DEVICE_TYPE}:0".encode()
        self.assertIn(tag, content)
        changed = io.BytesIO(content.replace(tag, tag[:-1] + b"9"))
        with self.assertRaisesRegex(RuntimeError, rf"torch.{DEVICE_TYPE}.device_count\(\) is"):
            torch.load(changed)
        changed.seek(0)
        self.assert_bit_equal(torch.load(changed, map_location="cpu"), torch.ones(2))

    def test_damaged_files_raise_and_do_no_harm(self):
        content = saved(torch.arange(1000.0, device=DEVICE_TYPE)).getvalue()
        outcomes = set()
        for place in range(0, len(content), 97):
            damaged = bytearray(content)
            damaged[place : place + 8] = b"\xff" * 8
            try:
                loaded = torch.load(io.BytesIO(bytes(damaged)))
                outcomes.add("loaded")
                self.assertEqual(loaded.device.type, DEVICE_TYPE)
            except Exception as error:
                outcomes.add(type(error).__name__)
        self.assertGreater(len(outcomes), 1)
        for length in (0, 10, len(content) // 2, len(content) - 1):
            with self.assertRaises((RuntimeError, ValueError, EOFError)):
                torch.load(io.BytesIO(content[:length]))
        self.assertEqual(torch.ones(2, device=DEVICE_TYPE).sum().item(), 2)


FLAGS = {"version_number": True, "format_number": True}


class TestMetadata(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.ones(3, device=DEVICE_TYPE)

    def test_flags_are_kept_on_the_device_and_dropped_on_the_cpu(self):
        self.assertEqual(get_tensor_metadata(self.x), {})
        set_tensor_metadata(self.x, dict(FLAGS))
        self.assertEqual(get_tensor_metadata(self.x), FLAGS)
        self.assertEqual(get_tensor_metadata(restored(self.x)), FLAGS)
        self.assertEqual(get_tensor_metadata(restored(self.x, map_location="cpu")), {})
        self.assertEqual(get_tensor_metadata(pickle.loads(pickle.dumps(self.x))), FLAGS)

    def test_flags_belong_to_one_tensor(self):
        set_tensor_metadata(self.x, {"version_number": True})
        self.assertEqual(get_tensor_metadata(self.x + 1), {})
        self.assertEqual(get_tensor_metadata(self.x.detach()), {"version_number": True})
        set_tensor_metadata(self.x, {"version_number": False})
        self.assertEqual(get_tensor_metadata(self.x), {})

    def test_unknown_flags_are_ignored(self):
        set_tensor_metadata(self.x, {"another": True})
        self.assertEqual(get_tensor_metadata(self.x), {})

    def test_conjugate_bit_travels_beside_them(self):
        x = torch.ones(2, dtype=torch.complex64, device=DEVICE_TYPE).conj()
        set_tensor_metadata(x, {"format_number": True})
        self.assertEqual(get_tensor_metadata(restored(x)), {"conj": True, "format_number": True})


class TestCopies(OpenRegTestCase):
    def test_deepcopy_keeps_sharing(self):
        x = torch.ones(4, device=DEVICE_TYPE)
        y, row = copy.deepcopy((x, x[1:]))
        self.assertTrue(shares_storage(y, row))
        self.assertFalse(shares_storage(x, y))
        model = torch.nn.Sequential(torch.nn.Linear(2, 2, device=DEVICE_TYPE))
        model.append(model[0])
        twin = copy.deepcopy(model)
        self.assertIs(twin[0].weight, twin[1].weight)

    @requires_two_devices
    def test_pickle_keeps_device_and_gradient(self):
        x = torch.ones(2, device=f"{DEVICE_TYPE}:1", requires_grad=True)
        y = pickle.loads(pickle.dumps(x))
        self.assertEqual((y.device, y.requires_grad), (x.device, True))

    def test_storages(self):
        storage = torch.arange(4, dtype=torch.uint8, device=DEVICE_TYPE).untyped_storage()
        self.assertEqual(storage.tolist(), [0, 1, 2, 3])
        self.assertEqual(storage.cpu().tolist(), [0, 1, 2, 3])
        self.assertEqual(copy.deepcopy(storage).device.type, DEVICE_TYPE)
        moved = operator.methodcaller(DEVICE_TYPE)(torch.ones(2).untyped_storage())
        self.assertEqual(moved.device.type, DEVICE_TYPE)
        self.assertTrue(is_on_device(moved))


class TestDLPack(OpenRegTestCase):
    @parametrize("index", sorted({0, LAST}))
    def test_capsule_goes_both_ways_without_a_copy(self, index):
        x = torch.arange(6.0, device=f"{DEVICE_TYPE}:{index}").view(2, 3).t()
        for capsule in (dlpack.to_dlpack(x), x.__dlpack__()):
            y = dlpack.from_dlpack(capsule)
            self.assertEqual(y.device, x.device)
            self.assertEqual(y.stride(), x.stride())
            self.assertEqual(y.data_ptr(), x.data_ptr())
        y[0, 0] = 9
        self.assertEqual(x[0, 0].item(), 9)

    def test_capsule_keeps_the_memory(self):
        x = torch.full((1000,), 3.0, device=DEVICE_TYPE)
        capsule = dlpack.to_dlpack(x)
        del x
        torch.zeros(1000, device=DEVICE_TYPE)
        self.assertEqual(dlpack.from_dlpack(capsule).sum().item(), 3000)

    def test_objects_are_refused_by_torch_itself(self):
        # torch 2.13 supports only the device type's original name.
        with self.assertRaisesRegex(ValueError, "Unknown device type openreg for Dlpack"):
            torch.from_dlpack(torch.ones(2, device=DEVICE_TYPE))


class TestNumpy(OpenRegTestCase):
    @parametrize("convert", [np.asarray, np.array, torch.Tensor.numpy, list])
    def test_device_tensor_says_what_to_do(self, convert):
        x = torch.ones(2, device=DEVICE_TYPE)
        if convert is list:
            self.assertEqual([v.item() for v in convert(x)], [1.0, 1.0])
            return
        with self.assertRaisesRegex(TypeError, r"Use Tensor.cpu\(\) to copy the tensor to host"):
            convert(x)

    def test_force_copies(self):
        x = torch.ones(2, device=DEVICE_TYPE, requires_grad=True)
        self.assertEqual(x.numpy(force=True).tolist(), [1.0, 1.0])

    def test_array_becomes_a_tensor_on_the_device(self):
        x = torch.as_tensor(np.arange(3), device=DEVICE_TYPE)
        self.assertEqual((x.device.type, x.tolist()), (DEVICE_TYPE, [0, 1, 2]))


class TestLegacyNames(OpenRegTestCase):
    def test_tensors_modules_and_sequences_have_methods(self):
        x = torch.ones(2)
        move = operator.methodcaller(DEVICE_TYPE)
        move_to_last = operator.methodcaller(DEVICE_TYPE, LAST)
        self.assertFalse(is_on_device(x))
        self.assertTrue(is_on_device(move(x)))
        self.assertEqual(move_to_last(x).device, torch.device(DEVICE_TYPE, LAST))
        self.assertEqual(move_to_last(torch.nn.Linear(2, 2)).weight.device.index, LAST)
        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
        self.assertTrue(is_on_device(move(packed)))

    def test_type_names(self):
        x = torch.ones(2, device=DEVICE_TYPE, dtype=torch.float16)
        self.assertEqual(x.type(), f"torch.{DEVICE_TYPE}.HalfTensor")
        y = torch.ones(2).type(f"torch.{DEVICE_TYPE}.DoubleTensor")
        self.assertEqual((y.device.type, y.dtype), (DEVICE_TYPE, torch.float64))


instantiate_parametrized_tests(TestFiles)
instantiate_parametrized_tests(TestDLPack)
instantiate_parametrized_tests(TestNumpy)

if __name__ == "__main__":
    run_tests()
