"""The types of torch's first releases, torch.openreg.FloatTensor and its kin."""

import pickle

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)

DENSE = sorted(name for name in dir(torch.cuda) if name.endswith("Tensor"))
SPARSE = sorted(name for name in dir(torch.cuda.sparse) if name.endswith("Tensor"))


class TestTypes(OpenRegTestCase):
    def test_there_are_those_that_torch_cuda_has(self):
        self.assertGreater(len(DENSE), 8)
        for module, names in ((torch.openreg, DENSE), (torch.openreg.sparse, SPARSE)):
            self.assertEqual([n for n in sorted(dir(module)) if n.endswith("Tensor")], names)
            self.assertLessEqual(set(names), set(module.__all__))

    @parametrize("name", DENSE)
    def test_a_type_describes_itself_as_torch_s_own_do(self, name):
        ours, torchs = getattr(torch.openreg, name), getattr(torch, name)
        for attribute in ("dtype", "layout", "is_cuda", "is_sparse", "__name__"):
            self.assertEqual(getattr(ours, attribute), getattr(torchs, attribute))
        self.assertEqual(repr(ours), repr(torchs).replace("torch.", "torch.openreg."))
        self.assertIs(pickle.loads(pickle.dumps(ours)), ours)

    @parametrize("name", DENSE)
    def test_type_and_tensor_know_each_other(self, name):
        kind = getattr(torch.openreg, name)
        x = torch.ones(2, device="openreg").type(kind)
        self.assertEqual(x.type(), f"torch.openreg.{name}")
        self.assertEqual((x.dtype, x.device.type), (kind.dtype, "openreg"))
        self.assertIsInstance(x, kind)
        self.assertIsInstance(torch.ones(2).type(kind), kind)  # from the CPU, too
        others = [getattr(torch.openreg, other) for other in DENSE if other != name]
        self.assertFalse(isinstance(x, tuple(others)))
        self.assertNotIsInstance(x, getattr(torch, name))
        self.assertNotIsInstance(x.cpu(), kind)
        self.assertNotIsInstance(2.0, kind)

    @parametrize("name", SPARSE)
    def test_sparse_types_are_apart_from_dense_ones(self, name):
        kind = getattr(torch.openreg.sparse, name)
        x = torch.eye(2).to(kind.dtype).to("openreg")
        self.assertIsInstance(x.to_sparse(), kind)
        self.assertEqual(x.to_sparse().type(), f"torch.openreg.sparse.{name}")
        self.assertNotIsInstance(x, kind)
        self.assertNotIsInstance(x.to_sparse(), getattr(torch.openreg, name))
        self.assertTrue(kind.is_sparse)

    def test_a_module_takes_a_type(self):
        layer = torch.nn.Linear(2, 2).type(torch.openreg.DoubleTensor)
        self.assertIsInstance(layer.weight, torch.openreg.DoubleTensor)


class TestConstruction(OpenRegTestCase):
    def test_numbers_are_sizes_and_a_sequence_is_values(self):
        self.assertEqual(torch.openreg.FloatTensor().shape, (0,))
        self.assertEqual(torch.openreg.FloatTensor(2, 3).shape, (2, 3))
        self.assertEqual(torch.openreg.FloatTensor(torch.Size([2, 3])).shape, (2, 3))
        self.assert_bit_equal(torch.openreg.LongTensor([2, 3]), torch.LongTensor([2, 3]))
        self.assert_bit_equal(torch.openreg.HalfTensor([[2.5]]), torch.HalfTensor([[2.5]]))

    def test_a_tensor_of_the_type_is_aliased(self):
        x = torch.ones(2, device="openreg")
        self.assertEqual(torch.openreg.FloatTensor(x).data_ptr(), x.data_ptr())

    def test_others_are_refused(self):
        with self.assertRaises(TypeError):
            torch.openreg.FloatTensor(torch.ones(2))
        with self.assertRaises(TypeError):
            torch.openreg.FloatTensor(torch.ones(2, dtype=torch.float64, device="openreg"))
        with self.assertRaises(TypeError):
            torch.openreg.FloatTensor("two")
        with self.assertRaisesRegex(RuntimeError, "expects device type: openreg"):
            torch.openreg.FloatTensor(2, device="cpu")

    @requires_two_devices
    def test_it_is_on_the_device_given_or_the_current_one(self):
        with torch.openreg.device(1):
            self.assertEqual(torch.openreg.FloatTensor(2).device.index, 1)
        self.assertEqual(torch.openreg.FloatTensor([2.0], device="openreg:1").device.index, 1)
        self.assertEqual(torch.openreg.FloatTensor(2).device.index, 0)

    def test_a_sparse_one_takes_indices_and_values(self):
        indices = torch.tensor([[0, 2]], device="openreg")
        values = torch.tensor([1.0, 2.0], device="openreg")
        x = torch.openreg.sparse.FloatTensor(indices, values, torch.Size([4]))
        self.assertIsInstance(x, torch.openreg.sparse.FloatTensor)
        self.assert_bit_equal(x.to_dense(), torch.tensor([1.0, 0.0, 2.0, 0.0]))

    def test_a_type_is_no_base(self):
        with self.assertRaisesRegex(TypeError, "'torch.openreg.FloatTensor' is not an acceptable"):

            class Mine(torch.openreg.FloatTensor):
                pass


instantiate_parametrized_tests(TestTypes)

if __name__ == "__main__":
    run_tests()
