"""Devices: their number, the current device, their properties."""

import copy
import importlib
import io
import pickle
import re
import sys
from pathlib import Path

import torch
from common import (
    A_DEVICE,
    DEVICE_COUNT,
    DEVICE_TYPE,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
    torch_openreg,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_openreg import _C

IS_OF_TYPE = f"is_{DEVICE_TYPE}"
LAST = DEVICE_COUNT - 1
DEVICE_SPELLINGS = [
    subtest(LAST, name="int"),
    subtest(f"{DEVICE_TYPE}:{LAST}", name="str"),
    subtest(torch.device(DEVICE_TYPE, LAST), name="device"),
]
# Arguments that set_device and similar functions reject, with the exceptions.
NOT_DEVICES = [
    subtest((DEVICE_COUNT, RuntimeError, OUT_OF_RANGE_TEXT), name="index_too_large"),
    subtest((2**40, RuntimeError, OUT_OF_RANGE_TEXT), name="index_beyond_all_bounds"),
    subtest((f"{DEVICE_TYPE}:99", RuntimeError, OUT_OF_RANGE_TEXT), name="string_index_too_large"),
    subtest(("cpu", ValueError, f"expected {A_DEVICE}, got cpu"), name="cpu"),
    subtest((torch.device("meta"), ValueError, f"expected {A_DEVICE}"), name="meta"),
    subtest(("banana", RuntimeError, "banana"), name="unknown_string"),
    subtest((1.5, TypeError, "expected an int, a string, a torch.device"), name="float"),
    subtest(([0], TypeError, "expected an int, a string, a torch.device"), name="list"),
]


class TestDevice(OpenRegTestCase):
    def tearDown(self):
        torch.openreg.set_device(0)
        super().tearDown()

    def test_module_is_available_with_devices(self):
        self.assertTrue(torch.openreg.is_available())
        self.assertGreater(torch.openreg.device_count(), 0)

    def test_current_device_of_a_new_thread_is_0(self):
        torch.openreg.set_device(LAST)
        self.assertEqual(call_in_thread(torch.openreg.current_device), 0)

    @parametrize("device", DEVICE_SPELLINGS)
    def test_set_device_accepts(self, device):
        torch.openreg.set_device(device)
        self.assertEqual(torch.openreg.current_device(), LAST)

    @parametrize("case", NOT_DEVICES)
    def test_set_device_refuses(self, case):
        device, error, text = case
        with self.assertRaisesRegex(error, text):
            torch.openreg.set_device(device)

    def test_set_device_refuses_a_device_without_index(self):
        for device in (None, DEVICE_TYPE, torch.device(DEVICE_TYPE)):
            with self.assertRaisesRegex(ValueError, "expected a device with an index"):
                torch.openreg.set_device(device)

    @requires_two_devices
    def test_set_device_ignores_a_negative_index(self):
        torch.openreg.set_device(1)
        torch.openreg.set_device(-1)
        self.assertEqual(torch.openreg.current_device(), 1)

    def test_set_device_of_one_thread_leaves_the_others(self):
        call_in_thread(lambda: torch.openreg.set_device(LAST))
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_factories_use_the_current_device(self):
        torch.openreg.set_device(LAST)
        self.assertEqual(torch.empty(1, device=DEVICE_TYPE).device, torch.device(DEVICE_TYPE, LAST))

    def test_factory_refuses_an_index_that_is_out_of_range(self):
        with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
            torch.empty(1, device=f"{DEVICE_TYPE}:{DEVICE_COUNT}")

    def test_default_device_can_be_one_of_this_type(self):
        with torch.device(f"{DEVICE_TYPE}:{LAST}"):
            self.assertEqual(torch.ones(2).device, torch.device(DEVICE_TYPE, LAST))

    @parametrize("device", DEVICE_SPELLINGS)
    def test_synchronize_accepts(self, device):
        torch.openreg.synchronize(device)

    def test_synchronize_takes_none_and_negative_as_the_current_device(self):
        torch.openreg.synchronize()
        torch.openreg.synchronize(None)
        torch.openreg.synchronize(-1)

    @parametrize("case", NOT_DEVICES)
    def test_synchronize_refuses(self, case):
        device, error, text = case
        with self.assertRaisesRegex(error, text):
            torch.openreg.synchronize(device)

    def test_can_device_access_peer_is_true_for_any_two_devices(self):
        for device in range(DEVICE_COUNT):
            for peer in range(DEVICE_COUNT):
                self.assertEqual(
                    torch.openreg.can_device_access_peer(device, f"{DEVICE_TYPE}:{peer}"),
                    device != peer,
                )

    def test_can_device_access_peer_refuses_an_index_that_is_out_of_range(self):
        for pair in ((0, DEVICE_COUNT), (DEVICE_COUNT, 0), (-1, 0)):
            with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
                torch.openreg.can_device_access_peer(*pair)


@requires_two_devices
class TestDeviceContext(OpenRegTestCase):
    @parametrize("device", [1, f"{DEVICE_TYPE}:1", torch.device(f"{DEVICE_TYPE}:1")])
    def test_context_selects_and_restores(self, device):
        with torch.openreg.device(device):
            self.assertEqual(torch.openreg.current_device(), 1)
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_context_restores_after_an_exception(self):
        with self.assertRaises(KeyError), torch.openreg.device(1):
            raise KeyError
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_contexts_nest(self):
        with torch.openreg.device(1):
            with torch.openreg.device(0):
                self.assertEqual(torch.openreg.current_device(), 0)
            self.assertEqual(torch.openreg.current_device(), 1)

    def test_context_can_be_entered_again(self):
        context = torch.openreg.device(1)
        for _ in range(2):
            with context:
                self.assertEqual(torch.openreg.current_device(), 1)
            self.assertEqual(torch.openreg.current_device(), 0)

    def test_context_can_be_entered_while_it_is_entered(self):
        context = torch.openreg.device(1)
        with context:
            torch.openreg.set_device(0)
            with context:
                self.assertEqual(torch.openreg.current_device(), 1)
            self.assertEqual(torch.openreg.current_device(), 0)
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_context_undoes_a_set_device_inside(self):
        with torch.openreg.device(0):
            torch.openreg.set_device(1)
        self.assertEqual(torch.openreg.current_device(), 0)

    @parametrize("device", [None, -1])
    def test_context_changes_nothing_for(self, device):
        with torch.openreg.device(1), torch.openreg.device(device):
            self.assertEqual(torch.openreg.current_device(), 1)

    @parametrize("case", NOT_DEVICES)
    def test_context_refuses(self, case):
        device, error, text = case
        with self.assertRaisesRegex(error, text), torch.openreg.device(device):
            self.fail("the context was entered")

    def test_context_is_accepted_as_a_device(self):
        self.assertEqual(
            torch.openreg.get_device_name(torch.openreg.device(1)), torch.openreg.get_device_name(1)
        )

    def test_device_of_selects_the_device_of_a_tensor(self):
        with torch.openreg.device_of(torch.empty(1, device=f"{DEVICE_TYPE}:1")):
            self.assertEqual(torch.openreg.current_device(), 1)
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_device_of_selects_the_device_of_a_storage(self):
        with torch.openreg.device_of(torch.empty(1, device=f"{DEVICE_TYPE}:1").untyped_storage()):
            self.assertEqual(torch.openreg.current_device(), 1)

    def test_device_of_changes_nothing_for_a_cpu_tensor(self):
        with torch.openreg.device(1), torch.openreg.device_of(torch.empty(1)):
            self.assertEqual(torch.openreg.current_device(), 1)

    def test_exchange_device_returns_the_one_before(self):
        self.assertEqual(torch.openreg._exchange_device(1), 0)
        self.assertEqual(torch.openreg._maybe_exchange_device(0), 1)

    def test_maybe_exchange_device_ignores_an_index_out_of_range(self):
        self.assertEqual(torch.openreg._maybe_exchange_device(DEVICE_COUNT), 0)
        self.assertEqual(torch.openreg._maybe_exchange_device(2**40), 0)

    def test_bindings_have_the_names_of_pytorchs_pages(self):
        self.assertEqual(_C._get_device_count(), DEVICE_COUNT)
        self.assertEqual(_C._get_device(), 0)
        self.assertEqual(_C._exchange_device(DEVICE_COUNT - 1), 0)
        self.assertEqual(_C._exchange_device(-1), -1)
        self.assertEqual(_C._maybe_exchange_device(-1), -1)
        self.assertEqual(_C._get_device(), DEVICE_COUNT - 1)
        _C._set_device(0)
        self.assertIs(_C._exchangeDevice, _C._exchange_device)
        self.assertIs(_C._isInBadFork, _C._is_in_bad_fork)

    def test_bindings_refuse_an_index_below_minus_one(self):
        stub = Path(torch_openreg.__file__).with_name("_C.pyi").read_text()
        bindings = re.findall(r"^def (_\w+)\(device: int\)", stub, re.MULTILINE)
        # By the names and the rules of torch.cuda's, these ignore any.
        bindings = [name for name in bindings if "exchange_device" not in name]
        self.assertGreater(len(bindings), 8)
        for name in bindings:
            with self.subTest(binding=name), self.assertRaisesRegex(Exception, OUT_OF_RANGE_TEXT):
                getattr(_C, name)(-2)

    def test_exchange_device_ignores_a_negative_index(self):
        self.assertEqual(torch.openreg._exchange_device(-1), -1)
        self.assertEqual(torch.openreg._maybe_exchange_device(-1), -1)


class TestDeviceProperties(OpenRegTestCase):
    def test_properties_have_the_documented_types(self):
        types = {
            "name": str,
            "major": int,
            "minor": int,
            "total_memory": int,
            "multi_processor_count": int,
            "physical_index": int,
            "clock_rate": int,
            "warp_size": int,
            "is_integrated": bool,
        }
        properties = torch.openreg.get_device_properties(0)
        for name, expected in types.items():
            self.assertIsInstance(getattr(properties, name), expected, name)

    def test_total_memory_is_what_mem_get_info_says(self):
        self.assertEqual(
            torch.openreg.get_device_properties(LAST).total_memory,
            torch.openreg.mem_get_info(LAST)[1],
        )

    def test_repr_shows_the_name(self):
        self.assertIn(
            torch.openreg.get_device_name(0), repr(torch.openreg.get_device_properties(0))
        )

    @parametrize("device", [*DEVICE_SPELLINGS, subtest(None, name="none")])
    def test_properties_accept(self, device):
        properties = torch.openreg.get_device_properties(device)
        self.assertEqual(torch.openreg.get_device_name(device), properties.name)
        self.assertEqual(
            torch.openreg.get_device_capability(device), (properties.major, properties.minor)
        )

    @parametrize("case", [*NOT_DEVICES, subtest((-1, RuntimeError, OUT_OF_RANGE_TEXT), name="-1")])
    def test_properties_refuse(self, case):
        device, error, text = case
        with self.assertRaisesRegex(error, text):
            torch.openreg.get_device_properties(device)

    def test_bf16_and_fp16_are_supported_in_this_order(self):
        self.assertEqual(torch.openreg.get_amp_supported_dtype(), [torch.float16, torch.bfloat16])
        self.assertTrue(torch.openreg.is_bf16_supported())
        self.assertTrue(torch.openreg.is_bf16_supported(including_emulation=False))
        self.assertFalse(torch.openreg.is_tf32_supported())


class TestModule(OpenRegTestCase):
    def test_every_public_name_exists(self):
        for name in torch.openreg.__all__:
            self.assertTrue(hasattr(torch.openreg, name), name)

    def test_unknown_name_raises_attribute_error(self):
        with self.assertRaisesRegex(AttributeError, "torch.openreg.*banana"):
            _ = torch.openreg.banana

    def test_submodules_are_the_same_under_both_names(self):
        for name in ("streams", "memory", "random", "devices"):
            self.assertIs(
                importlib.import_module(f"torch.openreg.{name}"),
                importlib.import_module(f"torch_openreg.openreg.{name}"),
            )

    def test_torch_finds_the_module(self):
        self.assertIs(torch.get_device_module(DEVICE_TYPE), getattr(torch, DEVICE_TYPE))
        self.assertIs(sys.modules["torch.openreg"], torch.openreg)
        self.assertIs(
            torch.utils.backend_registration._get_custom_mod_func("device_count"),
            torch.openreg.device_count,
        )

    def test_init_may_be_called_again(self):
        torch.openreg.init()
        torch.openreg.init()
        self.assertTrue(torch.openreg.is_initialized())
        self.assertTrue(torch.openreg._initialized)

    def test_process_that_did_not_fork_is_not_in_a_bad_fork(self):
        self.assertFalse(torch.openreg._is_in_bad_fork())

    @parametrize(
        "arguments,expected",
        [
            subtest(((f"{DEVICE_TYPE}:0", True), 0), name="string"),
            subtest(((DEVICE_TYPE, True), 0), name="string_without_index"),
            subtest(((None, True), 0), name="none"),
            subtest(((LAST,), LAST), name="int"),
            subtest(((torch.device(DEVICE_TYPE, LAST),), LAST), name="device"),
            subtest((("cpu", False, True), -1), name="cpu_if_allowed"),
        ],
    )
    def test_get_device_index_accepts(self, arguments, expected):
        self.assertEqual(torch.openreg._utils._get_device_index(*arguments), expected)

    def test_get_device_index_refuses_no_index_unless_optional(self):
        with self.assertRaisesRegex(ValueError, "expected a device with an index"):
            torch.openreg._utils._get_device_index(DEVICE_TYPE)

    def test_tensor_gets_methods(self):
        x = torch.arange(3)
        self.assertFalse(getattr(x, IS_OF_TYPE))
        y = getattr(x, DEVICE_TYPE)(LAST)
        self.assertTrue(getattr(y, IS_OF_TYPE))
        self.assertEqual(y.device, torch.device(DEVICE_TYPE, LAST))
        self.assert_bit_equal(y, x)

    def test_module_gets_a_method(self):
        layer = getattr(torch.nn.Linear(2, 3), DEVICE_TYPE)()
        self.assertTrue(all(getattr(p, IS_OF_TYPE) for p in layer.parameters()))

    def test_storage_gets_methods(self):
        storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
        self.assertFalse(getattr(storage, IS_OF_TYPE))
        moved = getattr(storage, DEVICE_TYPE)()
        self.assertTrue(getattr(moved, IS_OF_TYPE))
        self.assertEqual(moved.tolist(), [0, 1, 2, 3])

    def test_packed_sequence_gets_methods(self):
        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])
        self.assertFalse(getattr(packed, IS_OF_TYPE))
        moved = getattr(packed, DEVICE_TYPE)()
        self.assertTrue(getattr(moved, IS_OF_TYPE))
        self.assert_bit_equal(moved.data, packed.data)


class TestFramework(OpenRegTestCase):
    """What torch does with the module on its own."""

    def setUp(self):
        super().setUp()
        self.file = io.BytesIO()
        self.x = torch.arange(6.0, device=f"{DEVICE_TYPE}:{LAST}").view(2, 3)
        torch.save(self.x, self.file)
        self.file.seek(0)

    def test_load_restores_the_device(self):
        y = torch.load(self.file)
        self.assertEqual(y.device, torch.device(DEVICE_TYPE, LAST))
        self.assert_bit_equal(y, self.x)

    @parametrize(
        "location,expected",
        [
            subtest(("cpu", "cpu"), name="cpu"),
            subtest((DEVICE_TYPE, f"{DEVICE_TYPE}:0"), name="current_device"),
            subtest((f"{DEVICE_TYPE}:0", f"{DEVICE_TYPE}:0"), name="index"),
            subtest((torch.device(f"{DEVICE_TYPE}:0"), f"{DEVICE_TYPE}:0"), name="device"),
            subtest(
                ({f"{DEVICE_TYPE}:{LAST}": f"{DEVICE_TYPE}:0"}, f"{DEVICE_TYPE}:0"), name="mapping"
            ),
        ],
    )
    def test_load_maps_to(self, location, expected):
        y = torch.load(self.file, map_location=location)
        self.assertEqual(y.device, torch.device(expected))
        self.assert_bit_equal(y, self.x)

    def test_load_refuses_a_device_that_does_not_exist(self):
        with self.assertRaisesRegex(RuntimeError, rf"torch.{DEVICE_TYPE}.device_count\(\) is"):
            torch.load(self.file, map_location=f"{DEVICE_TYPE}:99")

    def test_deepcopy_and_pickle_keep_the_device(self):
        for y in (copy.deepcopy(self.x), pickle.loads(pickle.dumps(self.x))):
            self.assertEqual(y.device, self.x.device)
            self.assertNotEqual(y.data_ptr(), self.x.data_ptr())
            self.assert_bit_equal(y, self.x)

    def test_tensor_prints_itself_with_its_device(self):
        self.assertEqual(
            str(self.x),
            f"tensor([[0., 1., 2.],\n        [3., 4., 5.]], device='{DEVICE_TYPE}:{LAST}')",
        )

    def test_type_string_names_the_module(self):
        self.assertEqual(self.x.type(), f"torch.{DEVICE_TYPE}.FloatTensor")
        self.assertEqual(
            torch.ones(2).type(f"torch.{DEVICE_TYPE}.FloatTensor").device.type, DEVICE_TYPE
        )

    def test_fake_tensors_carry_the_device(self):
        with FakeTensorMode():
            x = torch.empty(2, device=DEVICE_TYPE) + 1
        self.assertEqual(x.device, torch.device(f"{DEVICE_TYPE}:0"))

    def test_numpy_is_refused(self):
        with self.assertRaisesRegex(TypeError, "Use Tensor.cpu()"):
            self.x.numpy()

    def test_handles_can_be_passed_to_c_functions(self):
        stream, event = torch.openreg.Stream(), torch.openreg.Event()
        self.assertIsNone(event._as_parameter_.value)
        event.record(stream)
        self.assertEqual(stream._as_parameter_.value, stream.native_handle)
        self.assertEqual(event._as_parameter_.value, event.event_id)


instantiate_parametrized_tests(TestDevice)
instantiate_parametrized_tests(TestFramework)
instantiate_parametrized_tests(TestDeviceContext)
instantiate_parametrized_tests(TestDeviceProperties)
instantiate_parametrized_tests(TestModule)

if __name__ == "__main__":
    run_tests()
