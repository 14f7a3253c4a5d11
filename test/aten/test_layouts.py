"""Sparse, quantized and nested tensors: created, converted, printed, computed with."""

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

LAYOUTS = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}


def components(sparse):
    """The strided tensors of a sparse tensor."""
    if sparse.layout is torch.sparse_coo:
        return [sparse._indices(), sparse._values()]
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    return [sparse.ccol_indices(), sparse.row_indices(), sparse.values()]


class LayoutTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.dense = torch.randn(4, 4) * (torch.rand(4, 4) > 0.5)

    def assert_same(self, actual, expected):
        self.assertEqual(actual.device.type, DEVICE_TYPE)
        self.assertEqual(actual.layout, expected.layout)
        self.assertEqual(actual.shape, expected.shape)
        if expected.layout is torch.strided:
            self.assert_bit_equal(actual, expected)
            return
        for one, other in zip(components(actual), components(expected), strict=True):
            self.assertEqual(one.device.type, DEVICE_TYPE)
            self.assert_bit_equal(one, other)


def parts_of(tensor):
    """The strided tensors, on the CPU, that represent a tensor of any layout."""
    if tensor.is_nested:
        parts = [*tensor.unbind(), tensor._nested_tensor_strides()]
    elif tensor.is_quantized:
        parts = [tensor.int_repr(), tensor.dequantize()]
    else:
        parts = [tensor] if tensor.layout is torch.strided else components(tensor)
    return [part.detach().cpu().clone() for part in parts]


def quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 3, torch.qint8)


def quantized_by_channel(x):
    scales = torch.tensor([0.1, 0.2, 0.3, 0.4], device=x.device)
    return torch.quantize_per_channel(x, scales, torch.zeros_like(scales), 1, torch.qint8)


def nested(x):
    return torch.nested.nested_tensor([x[:2], x], layout=torch.strided, device=x.device)


def layer_norm(x):
    weight = torch.linspace(-1, 1, x.size(-1)).to(x.device)
    return torch.nn.functional.layer_norm(x, (x.size(-1),), weight, weight + 1)


class TestInferenceMode(LayoutTestCase):
    """A view of a normal tensor is a normal tensor, in inference mode, too."""

    @parametrize(
        "make,view",
        [
            subtest((make, view), name=f"{prefix}_{name}")
            for prefix, make, views in (
                (
                    "nested",
                    nested,
                    {
                        "transpose": lambda n: n.transpose(1, 2),
                        "view": lambda n: n.view(2, -1, 2, 2),
                        "detach": lambda n: n.detach(),
                        "alias": torch.ops.aten.alias,
                        "select": lambda n: n.select(0, 1),
                        "index": lambda n: n[0],
                        "unbind": lambda n: n.unbind()[1],
                        "chunk": lambda n: n.chunk(2, -1)[1],
                        "values": lambda n: n.values(),
                    },
                ),
                (
                    "quantized",
                    quantized,
                    {
                        "t": lambda q: q.t(),
                        "view": lambda q: q.view(2, 8),
                        "select": lambda q: q[1],
                        "slice": lambda q: q[1:3],
                        "unsqueeze": lambda q: q.unsqueeze(0),
                        "chunk": lambda q: q.chunk(2)[1],
                        "detach": lambda q: q.detach(),
                    },
                ),
                (
                    "quantized_by_channel",
                    quantized_by_channel,
                    {"view": lambda q: q.view(4, 4), "detach": lambda q: q.detach()},
                ),
                (
                    "coo",
                    torch.Tensor.to_sparse,
                    {
                        "t": lambda s: s.t(),
                        "transpose": lambda s: s.transpose(0, 1),
                        "permute": lambda s: s.permute(1, 0),
                        "unsqueeze": lambda s: s.unsqueeze(0),
                        "select": lambda s: s.select(0, 1),
                        "unbind": lambda s: s.unbind()[1],
                        "detach": lambda s: s.detach(),
                        "indices": lambda s: s.indices(),
                        "values": lambda s: s.values(),
                        "values_of_t": lambda s: s.t()._values(),
                    },
                ),
                (
                    "csr",
                    torch.Tensor.to_sparse_csr,
                    {
                        "t": lambda s: s.t(),
                        "transpose": lambda s: s.transpose(0, 1),
                        "select": lambda s: s.select(0, 1),
                        "unbind": lambda s: s.unbind()[1],
                        "detach": lambda s: s.detach(),
                        "crow_indices": lambda s: s.crow_indices(),
                        "values": lambda s: s.values(),
                        "values_of_t": lambda s: s.t().values(),
                    },
                ),
            )
            for name, view in views.items()
        ],
    )
    def test_view_is_a_normal_tensor(self, make, view):
        expected = parts_of(view(make(self.dense)))
        tensor = make(self.dense.to(DEVICE_TYPE))
        for _ in range(3):
            with torch.inference_mode():
                actual = view(tensor)
            self.assertFalse(actual.is_inference())
            self.assertEqual(actual.device.type, DEVICE_TYPE)
            for one, other in zip(parts_of(actual), expected, strict=True):
                self.assert_bit_equal(one, other)

    @parametrize(
        "make",
        [
            subtest(nested, name="nested"),
            subtest(quantized, name="quantized"),
            subtest(torch.Tensor.to_sparse, name="coo"),
            subtest(torch.Tensor.to_sparse_csr, name="csr"),
        ],
    )
    def test_other_results_are_inference_tensors(self, make):
        tensor = make(self.dense.to(DEVICE_TYPE))
        with torch.inference_mode():
            self.assertTrue(tensor.clone().is_inference())
            self.assertTrue(make(self.dense.to(DEVICE_TYPE)).detach().is_inference())


class TestSparse(LayoutTestCase):
    @parametrize("name", list(LAYOUTS))
    def test_dense_tensor_becomes_sparse_and_dense_again(self, name):
        actual = LAYOUTS[name](self.dense.to(DEVICE_TYPE))
        self.assert_same(actual, LAYOUTS[name](self.dense))
        self.assert_same(actual.to_dense(), self.dense)

    @parametrize("name", list(LAYOUTS))
    def test_sparse_tensor_moves_to_the_device_and_back(self, name):
        expected = LAYOUTS[name](self.dense)
        actual = expected.to(DEVICE_TYPE)
        self.assert_same(actual, expected)
        back = actual.cpu()
        self.assertEqual(back.device.type, "cpu")
        for one, other in zip(components(back), components(expected), strict=True):
            self.assert_bit_equal(one, other)

    @parametrize("target", ["cpu", f"{DEVICE_TYPE}:0"])
    @parametrize("source", ["cpu", f"{DEVICE_TYPE}:0", f"{DEVICE_TYPE}:1"])
    @parametrize("name", list(LAYOUTS))
    def test_copy_goes_to_the_host_and_between_devices(self, name, source, target):
        expected = LAYOUTS[name](self.dense)
        x = LAYOUTS[name](self.dense * 7).to(target)
        for non_blocking in (False, True):
            self.assertIs(x.copy_(expected.to(source), non_blocking), x)
            if source != "cpu":
                torch.openreg.synchronize(source)  # the copy's stream is the source's
            self.assertEqual(x.device, torch.device(target))
            for one, other in zip(components(x), components(expected), strict=True):
                self.assert_bit_equal(one, other)

    @parametrize("device", ["cpu", f"{DEVICE_TYPE}:1"])
    @parametrize("name", list(LAYOUTS))
    def test_tensor_like_a_sparse_one_is_on_the_device_that_is_named(self, name, device):
        x = LAYOUTS[name](self.dense.to(DEVICE_TYPE))
        for like in (torch.empty_like, torch.zeros_like):
            result = like(x, device=device)
            self.assertEqual((result.layout, result.shape), (x.layout, x.shape))
            for part in (result, *components(result)):
                self.assertEqual(part.device, torch.device(device))

    @parametrize("name", list(LAYOUTS))
    def test_text_names_device_and_layout(self, name):
        text = repr(LAYOUTS[name](self.dense.to(DEVICE_TYPE)))
        self.assertIn(f"device='{DEVICE_TYPE}:0'", text)
        self.assertIn(f"layout=torch.sparse_{name}", text)

    @parametrize("index_device", ["cpu", DEVICE_TYPE])
    def test_coo_tensor_is_made_of_its_components(self, index_device):
        indices, values = torch.tensor([[0, 2], [1, 0]]), torch.tensor([3.0, 4.0])
        expected = torch.sparse_coo_tensor(indices, values, (3, 3))
        actual = torch.sparse_coo_tensor(
            indices.to(index_device), values.to(index_device), (3, 3), device=DEVICE_TYPE
        )
        self.assert_same(actual, expected)

    def test_csr_tensor_is_made_of_its_components(self):
        parts = torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.tensor([1.0, 2.0])
        expected = torch.sparse_csr_tensor(*parts, size=(2, 2))
        actual = torch.sparse_csr_tensor(*[part.to(DEVICE_TYPE) for part in parts], size=(2, 2))
        self.assert_same(actual, expected)

    def test_values_share_the_memory_of_the_tensor(self):
        sparse = self.dense.to(DEVICE_TYPE).to_sparse_csr()
        sparse.values().mul_(2)
        self.assert_bit_equal(sparse.to_dense(), self.dense * 2)

    def test_coo_tensor_shares_the_memory_of_its_components(self):
        indices, values = torch.tensor([[1, 0]]).to(DEVICE_TYPE), torch.ones(2).to(DEVICE_TYPE)
        sparse = torch.sparse_coo_tensor(indices, values, (2,))
        self.assertEqual(sparse._indices().data_ptr(), indices.data_ptr())
        self.assertEqual(sparse._values().data_ptr(), values.data_ptr())
        values.mul_(2)
        self.assert_bit_equal(sparse.to_dense(), torch.full((2,), 2.0))

    @parametrize(
        "call",
        [
            subtest(lambda x, y: -x, name="neg"),
            subtest(lambda x, y: x.sin_(), name="sin_"),
            subtest(lambda x, y: x * 2.5, name="mul_scalar"),
            subtest(lambda x, y: y * x, name="mul_dense"),
            subtest(lambda x, y: x * y[0, 0], name="mul_number"),
            subtest(lambda x, y: torch.cat([x, x.clone()]), name="cat"),
            subtest(lambda x, y: x.unsqueeze(0), name="unsqueeze"),
            subtest(lambda x, y: y.sparse_mask(x), name="sparse_mask"),
            subtest(lambda x, y: x.to(torch.float64).sum(), name="sum"),
            subtest(lambda x, y: torch.empty_like(x).resize_as_sparse_(x), name="empty_like"),
            subtest(
                lambda x, y: torch.sparse_coo_tensor(x.indices(), y[0, 0] * x.values(), x.shape),
                name="sparse_coo_tensor",
            ),
            subtest(lambda x, y: x.zero_(), name="zero_"),
        ],
    )
    def test_kernels_that_cuda_shares_with_the_cpu_do_not_wait(self, call):
        dense = torch.randn(4, 4)
        expected = call(self.dense.to_sparse(), dense)
        arguments = self.dense.to(DEVICE_TYPE).to_sparse(), dense.to(DEVICE_TYPE)
        # What checks invariants reads indices.
        with torch.sparse.check_sparse_tensor_invariants(enable=False), StreamGate() as gate:
            actual = call(*arguments)
            gate.open()
        self.assert_same(actual, expected)

    def test_kernels_that_cuda_shares_for_compressed_tensors_do_not_wait(self):
        csr = self.dense.to(DEVICE_TYPE).to_sparse_csr()
        with torch.sparse.check_sparse_tensor_invariants(enable=False), StreamGate() as gate:
            actual = (-csr).abs().clone().to_dense()
            gate.open()
        self.assert_same(actual, self.dense.abs())

    def test_a_sparse_tensor_has_a_sparse_mask(self):
        results = []
        for device in ("cpu", DEVICE_TYPE):
            x = self.dense.to(device).to_sparse().requires_grad_()
            masked = x.sparse_mask(torch.eye(4, device=device).to_sparse())
            masked.to_dense().sum().backward()
            results += [masked.detach(), x.grad]
        self.assert_same(results[2], results[0])
        self.assert_same(results[3].to_dense(), results[1].to_dense())

    def test_sums_of_complex32_are_computed(self):
        indices = torch.zeros(1, 3, dtype=torch.int64, device=DEVICE_TYPE)
        values = torch.tensor([1 + 2j, 3 - 1j, 0.5]).to(torch.complex32).to(DEVICE_TYPE)
        x = torch.sparse_coo_tensor(indices, values, (2,))
        expected = torch.tensor([4.5 + 1j, 0]).to(torch.complex32)
        self.assert_bit_equal(x.coalesce().to_dense(), expected)
        self.assert_bit_equal(x.to_dense(), expected)
        self.assert_bit_equal((x + x).to_dense(), expected + expected)

    def test_tensors_of_two_devices_are_refused(self):
        sparse = self.dense.to(DEVICE_TYPE).to_sparse()
        with self.assertRaisesRegex(RuntimeError, "same device"):
            sparse * torch.ones(4, 4, device=f"{DEVICE_TYPE}:1")

    def test_result_is_on_the_device_of_the_tensor(self):
        sparse = self.dense.to(f"{DEVICE_TYPE}:1").to_sparse()
        for result in (sparse.neg(), sparse * 2, sparse.to_dense(), torch.empty_like(sparse)):
            self.assertEqual(result.device, torch.device(DEVICE_TYPE, 1))
        self.assertEqual(torch.empty_like(sparse, device=f"{DEVICE_TYPE}:0").device.index, 0)

    def test_duplicates_are_summed_by_coalesce(self):
        indices, values = torch.tensor([[0, 0, 1]]), torch.tensor([1.0, 2.0, 3.0])
        actual = torch.sparse_coo_tensor(indices.to(DEVICE_TYPE), values.to(DEVICE_TYPE), (2,))
        self.assertFalse(actual.is_coalesced())
        self.assertTrue(actual.coalesce().is_coalesced())
        self.assert_bit_equal(actual.coalesce().values(), torch.tensor([3.0, 3.0]))

    @parametrize(
        "call",
        [
            subtest(lambda s, x: s + s, name="add"),
            subtest(lambda s, x: s * 3, name="mul_scalar"),
            subtest(lambda s, x: torch.sparse.mm(s, x), name="mm"),
            subtest(lambda s, x: s @ x, name="matmul"),
            subtest(lambda s, x: torch.sparse.sum(s), name="sum"),
            subtest(lambda s, x: torch.sparse.sum(s, 0), name="sum_dim"),
            subtest(lambda s, x: s.t(), name="transpose"),
            subtest(lambda s, x: torch.sparse.softmax(s, 1), name="softmax"),
            subtest(lambda s, x: x.sparse_mask(s.coalesce()), name="sparse_mask"),
            subtest(lambda s, x: torch.sparse.addmm(x, s, x), name="addmm"),
        ],
    )
    def test_result_equals_the_cpu_s_of(self, call):
        x = torch.randn(4, 4)
        expected = call(self.dense.to_sparse(), x)
        actual = call(self.dense.to(DEVICE_TYPE).to_sparse(), x.to(DEVICE_TYPE))
        self.assert_same(actual, expected)

    def test_in_place_operator_writes_its_argument(self):
        actual, expected = self.dense.to(DEVICE_TYPE).to_sparse(), self.dense.to_sparse()
        self.assertIs(actual.mul_(2), actual)
        self.assert_same(actual, expected.mul_(2))
        actual.add_(self.dense.t().contiguous().to(DEVICE_TYPE).to_sparse())
        self.assert_same(actual, expected.add_(self.dense.t().contiguous().to_sparse()))

    @parametrize(
        "other",
        [
            subtest([[0, 3, 0], [0, 0, 0], [5, 0, 0]], name="elsewhere"),
            subtest([[1, 0, 0], [0, 2, 0], [0, 0, 3]], name="at_the_same_places"),
            subtest([[1, 1, 1], [1, 1, 1], [1, 1, 1]], name="everywhere"),
            subtest([[0, 0, 0], [0, 0, 0], [0, 0, 0]], name="nowhere"),
        ],
    )
    @parametrize("is_scaled", [False, True])
    def test_csr_tensor_grows_in_place_where_another_has_more_elements(self, other, is_scaled):
        one = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 3]])
        other = torch.tensor(other, dtype=torch.float32).to_sparse_csr()
        alpha = 0.5 if is_scaled else 1
        for _ in range(3):
            expected = one.to_sparse_csr()
            actual = expected.to(DEVICE_TYPE)
            alias = actual
            self.assertIs(actual.add_(other.to(DEVICE_TYPE), alpha=alpha), alias)
            expected.add_(other, alpha=alpha)
            self.assertEqual(alias._nnz(), expected._nnz())
            self.assert_same(alias, expected)
            self.assert_bit_equal(alias.to_dense(), expected.to_dense())

    @parametrize("sparse_dim", [1, 2, 3])
    @parametrize("order", ["sorted", "reversed", "duplicate", "empty"])
    def test_claim_to_be_coalesced_is_checked(self, sparse_dim, order):
        indices = torch.tensor([[0, 1, 2], [1, 1, 0], [2, 0, 2]])[:sparse_dim]
        indices = {
            "sorted": indices,
            "reversed": indices.flip(1),
            "duplicate": indices.repeat_interleave(2, dim=1),
            "empty": indices[:, :0],
        }[order]
        for _ in range(2):

            def make(device, is_coalesced=True):
                return torch.sparse_coo_tensor(
                    indices.to(device),
                    torch.ones(indices.size(1), device=device),
                    (3,) * sparse_dim,
                    is_coalesced=is_coalesced,
                    check_invariants=True,
                )

            self.assertFalse(make(DEVICE_TYPE, is_coalesced=False).is_coalesced())
            if order in ("reversed", "duplicate"):
                with self.assertRaisesRegex(RuntimeError, "correspond to uncoalesced COO tensor"):
                    make(DEVICE_TYPE)
            else:
                self.assertTrue(make(DEVICE_TYPE).is_coalesced())
                self.assert_same(make(DEVICE_TYPE), make("cpu"))

    def test_csr_matrix_product_has_gradients(self):
        gradients = []
        for device in ("cpu", DEVICE_TYPE):
            x = self.dense.to(device, copy=True).requires_grad_()
            (self.dense.to(device).to_sparse_csr() @ x).sum().backward()
            gradients.append(x.grad)
        self.assert_bit_equal(*gradients)

    def test_sparse_gradient_of_an_embedding_trains(self):
        weights = []
        for device in ("cpu", DEVICE_TYPE):
            torch.manual_seed(0)
            embedding = torch.nn.Embedding(6, 3, sparse=True)
            embedding.to(device)
            optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                embedding(torch.tensor([1, 2, 1], device=device)).square().sum().backward()
                self.assertTrue(embedding.weight.grad.is_sparse)
                optimizer.step()
            weights.append(embedding.weight.detach())
        self.assert_bit_equal(*weights)


class TestQuantized(LayoutTestCase):
    def quantize(self, x, scheme):
        return quantized(x) if scheme == "tensor" else quantized_by_channel(x)

    @parametrize("scheme", ["tensor", "channel"])
    def test_tensor_is_quantized_and_dequantized(self, scheme):
        expected = self.quantize(self.dense, scheme)
        actual = self.quantize(self.dense.to(DEVICE_TYPE), scheme)
        self.assertTrue(actual.is_quantized)
        self.assertEqual((actual.device.type, actual.dtype), (DEVICE_TYPE, torch.qint8))
        self.assertEqual(actual.qscheme(), expected.qscheme())
        self.assert_bit_equal(actual.int_repr(), expected.int_repr())
        self.assert_bit_equal(actual.dequantize(), expected.dequantize())

    @parametrize("scheme", ["tensor", "channel"])
    def test_quantized_tensor_moves_to_the_device_and_back(self, scheme):
        expected = self.quantize(self.dense, scheme)
        actual = expected.to(DEVICE_TYPE)
        self.assertEqual(actual.device.type, DEVICE_TYPE)
        self.assert_bit_equal(actual.dequantize(), expected.dequantize())
        back = actual.cpu()
        self.assertEqual(back.device.type, "cpu")
        self.assert_bit_equal(back.dequantize(), expected.dequantize())

    def test_quantizer_can_be_read(self):
        actual = self.quantize(self.dense.to(DEVICE_TYPE), "tensor")
        self.assertEqual((actual.q_scale(), actual.q_zero_point()), (0.1, 3))

    def test_channels_of_the_quantizer_outlive_the_tensors_they_came_from(self):
        actual = self.quantize(self.dense.to(DEVICE_TYPE), "channel")
        for _ in range(10):
            torch.full((4,), float("nan"), device=DEVICE_TYPE)
        self.assert_bit_equal(actual.q_per_channel_scales(), torch.tensor([0.1, 0.2, 0.3, 0.4]))

    def test_text_names_device_and_scheme(self):
        text = repr(self.quantize(self.dense.to(DEVICE_TYPE), "tensor"))
        self.assertIn(f"device='{DEVICE_TYPE}:0'", text)
        self.assertIn("per_tensor_affine", text)

    def test_operators_compute(self):
        expected = torch.relu(self.quantize(self.dense, "tensor"))
        actual = torch.relu(self.quantize(self.dense.to(DEVICE_TYPE), "tensor"))
        self.assert_bit_equal(actual.int_repr(), expected.int_repr())

    @parametrize("dtype", [torch.quint4x2, torch.quint2x4])
    @parametrize("shape", [(5, 3), (1, 8), (7, 1), (3, 2, 5)])
    def test_elements_smaller_than_a_byte_share_bytes(self, dtype, shape):
        x = torch.randn(shape)
        scales, points = torch.rand(shape[0]) + 0.1, torch.rand(shape[0])

        def quantize(device):
            channels = scales.to(device), points.to(device)
            return torch.quantize_per_channel(x.to(device), *channels, 0, dtype)

        expected = quantize("cpu")
        for actual in (quantize(DEVICE_TYPE), quantize(DEVICE_TYPE), expected.to(DEVICE_TYPE)):
            for one in (actual, actual.cpu(), actual.cpu().to(DEVICE_TYPE)):
                self.assertEqual(one.shape, expected.shape)
                self.assertEqual(
                    one.untyped_storage().nbytes(), expected.untyped_storage().nbytes()
                )
                self.assert_bit_equal(one.dequantize(), expected.dequantize())

    def test_views_share_memory(self):
        actual = self.quantize(self.dense.to(DEVICE_TYPE), "tensor")
        self.assertEqual(actual.view(16).data_ptr(), actual.data_ptr())
        self.assert_bit_equal(actual[1].dequantize(), actual.dequantize()[1])


class TestNested(LayoutTestCase):
    def nested(self, device, layout=torch.jagged):
        parts = [self.dense[:2].to(device), self.dense.to(device)]
        return torch.nested.nested_tensor(parts, layout=layout)

    @parametrize(
        "call",
        [
            subtest(lambda n: n * 2 + 1, name="arithmetic"),
            subtest(lambda n: n.sin(), name="unary"),
            subtest(
                lambda n: torch.nn.functional.linear(n, torch.ones(3, 4, device=n.device)),
                name="linear",
            ),
            subtest(lambda n: torch.nn.functional.layer_norm(n, (4,)), name="layer_norm"),
        ],
    )
    def test_jagged_tensor_computes(self, call):
        expected, actual = call(self.nested("cpu")), call(self.nested(DEVICE_TYPE))
        self.assertEqual(actual.device.type, DEVICE_TYPE)
        self.assert_bit_equal(actual.values(), expected.values())

    def test_jagged_tensor_becomes_padded(self):
        expected = self.nested("cpu").to_padded_tensor(-1.0)
        self.assert_bit_equal(self.nested(DEVICE_TYPE).to_padded_tensor(-1.0), expected)

    def test_jagged_attention_equals_the_cpu_s(self):
        results = []
        for device in ("cpu", DEVICE_TYPE):
            x = self.nested(device).unflatten(-1, (2, 2)).transpose(1, 2)
            attention = torch.nn.functional.scaled_dot_product_attention(x, x, x)
            results.append(attention.transpose(1, 2).values())
        self.assert_bit_equal(results[1], results[0])

    def test_jagged_tensor_has_gradients(self):
        gradients = []
        for device in ("cpu", DEVICE_TYPE):
            x = self.dense.to(device, copy=True).requires_grad_()
            nested = torch.nested.as_nested_tensor([x[:1], x], layout=torch.jagged)
            (nested * nested).values().sum().backward()
            gradients.append(x.grad)
        self.assert_bit_equal(*gradients)

    def test_shape_of_a_strided_nested_tensor_is_in_cpu_tensors(self):
        expected = self.nested("cpu", torch.strided)
        for actual in (self.nested(DEVICE_TYPE, torch.strided), expected.to(DEVICE_TYPE)):
            for read in (
                torch.Tensor._nested_tensor_size,
                torch.Tensor._nested_tensor_strides,
                torch.Tensor._nested_tensor_storage_offsets,
            ):
                self.assertEqual(read(actual).device.type, "cpu")
                self.assert_bit_equal(read(actual), read(expected))

    @parametrize("device_of_the_shape", ["cpu", DEVICE_TYPE])
    def test_strided_nested_tensor_owns_its_shape(self, device_of_the_shape):
        padded = torch.ones(2, 2, 2, device=DEVICE_TYPE)
        shape = torch.tensor([[2, 2], [1, 2]])
        actual = torch._nested_from_padded(padded, shape.to(device_of_the_shape))
        for value in range(20):
            torch.full((2, 2), value, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        self.assertEqual(actual._nested_tensor_size().tolist(), [[2, 2], [1, 2]])
        self.assert_bit_equal(actual.unbind()[1], torch.ones(1, 2))

    @parametrize(
        "function",
        [
            torch.relu,
            torch.abs,
            torch.cos,
            torch.sqrt,
            torch.neg,
            torch.nn.functional.gelu,
            torch.nn.functional.silu,
            subtest(lambda n: n * n, name="mul"),
            subtest(lambda n: n + n, name="add"),
            subtest(lambda n: torch.nn.functional.softmax(n, -1), name="softmax"),
            subtest(layer_norm, name="layer_norm"),
            subtest(lambda n: torch.nn.functional.dropout(n, 0.5), name="dropout"),
            subtest(lambda n: n.transpose(1, 2).transpose(1, 2), name="transpose"),
            subtest(lambda n: torch.matmul(n, n.transpose(1, 2)), name="matmul"),
        ],
    )
    def test_strided_nested_tensor_trains(self, function):
        def train(device):
            torch.manual_seed(0)
            linear = torch.nn.Linear(4, 8)
            linear.to(device)
            optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
            values = []
            for sizes in ((2, 4), (3, 1), (2, 4)):
                parts = [torch.rand(size, 4).to(device) for size in sizes]
                x = torch.nested.nested_tensor(parts, layout=torch.strided)
                output = function(linear(x)).to_padded_tensor(0.5)
                optimizer.zero_grad()
                output.sum().backward()
                optimizer.step()
                values += [output.detach(), *(p.grad.clone() for p in linear.parameters())]
            return values

        for actual, expected in zip(train(DEVICE_TYPE), train("cpu"), strict=True):
            self.assertEqual(actual.stride(), expected.stride())
            self.assert_bit_equal(actual, expected)

    @parametrize("device", ["cpu", f"{DEVICE_TYPE}:1"])
    def test_tensor_like_a_strided_nested_one_is_on_the_device_that_is_named(self, device):
        x = nested(self.dense.to(DEVICE_TYPE))
        result = torch.empty_like(x, device=device)
        self.assertEqual(result.device, torch.device(device))
        self.assertEqual([one.shape for one in result.unbind()], [one.shape for one in x.unbind()])

    def test_strided_nested_tensor_moves_and_splits(self):
        expected = self.nested("cpu", torch.strided)
        actual = expected.to(DEVICE_TYPE)
        self.assertEqual(actual.device.type, DEVICE_TYPE)
        for one, other in zip(actual.unbind(), expected.unbind(), strict=True):
            self.assert_bit_equal(one, other)


instantiate_parametrized_tests(TestInferenceMode)
instantiate_parametrized_tests(TestSparse)
instantiate_parametrized_tests(TestQuantized)
instantiate_parametrized_tests(TestNested)

if __name__ == "__main__":
    run_tests()
