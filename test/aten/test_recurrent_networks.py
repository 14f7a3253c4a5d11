"""Recurrent networks and cells: values, gradients and their bits are the CPU's.

The backend composes them as the CPU does, so a release of torch that composes them otherwise shows
here.
"""

import itertools

import pytest
import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

pytestmark = pytest.mark.sample(0.3)

NETWORKS = {
    "lstm": lambda **options: torch.nn.LSTM(4, 6, **options),
    "lstm_with_projections": lambda **options: torch.nn.LSTM(4, 6, proj_size=3, **options),
    "gru": lambda **options: torch.nn.GRU(4, 6, **options),
    "rnn_tanh": lambda **options: torch.nn.RNN(4, 6, **options),
    "rnn_relu": lambda **options: torch.nn.RNN(4, 6, nonlinearity="relu", **options),
}
CELLS = {
    "lstm": torch.nn.LSTMCell,
    "gru": torch.nn.GRUCell,
    "rnn_tanh": torch.nn.RNNCell,
    "rnn_relu": lambda *sizes, **options: torch.nn.RNNCell(*sizes, nonlinearity="relu", **options),
}
OPTIONS = [
    {"num_layers": layers, "bidirectional": both, "bias": bias, "batch_first": first}
    for layers, both, bias, first in itertools.product((1, 2), *[(False, True)] * 3)
]
LENGTHS = [5, 5, 3, 1]


def flatten(results):
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, torch.nn.utils.rnn.PackedSequence):
        return [results.data, results.batch_sizes]
    return [tensor for one in results for tensor in flatten(one)]


class RecurrentTestCase(OpenRegTestCase):
    def results(self, make, device, dtype, inputs):
        """Outputs and gradients of a module that is made anew, from a fixed state."""
        torch.manual_seed(0)
        module = make().to(dtype)
        given = [tensor.to(dtype) for tensor in inputs(module)]
        module.to(device)
        torch.manual_seed(1)  # for dropout; the parameters have drawn from the CPU's generator
        leaves = [tensor.to(device, copy=True).requires_grad_() for tensor in given]
        outputs = [
            tensor for tensor in flatten(self.call(module, leaves)) if tensor.is_floating_point()
        ]
        gradients = torch.autograd.grad(
            [tensor for tensor in outputs if tensor.requires_grad],
            [*leaves, *module.parameters()],
            [torch.full_like(tensor, 0.5) for tensor in outputs if tensor.requires_grad],
            allow_unused=True,
        )
        return [*outputs, *(tensor for tensor in gradients if tensor is not None)]

    def assert_same_on_both(self, make, dtype, inputs):
        expected = self.results(make, "cpu", dtype, inputs)
        for _ in range(2):
            actual = self.results(make, DEVICE_TYPE, dtype, inputs)
            self.assertEqual(len(actual), len(expected))
            for one, other in zip(actual, expected, strict=True):
                self.assertEqual(one.device.type, DEVICE_TYPE)
                self.assertEqual(one.stride(), other.stride())
                self.assert_bit_equal(one, other)


def states(module, batch):
    """Initial states for the module's kind, layers and directions."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    if isinstance(module, torch.nn.LSTM):
        size = module.proj_size or module.hidden_size
        return [torch.randn(count, *batch, size), torch.randn(count, *batch, module.hidden_size)]
    return [torch.randn(count, *batch, module.hidden_size)]


class TestNetworks(RecurrentTestCase):
    call_packed = False

    def call(self, module, leaves):
        x, *initial = leaves
        if self.call_packed:
            x = torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, module.batch_first)
        if not initial:
            return module(x)
        return module(x, tuple(initial) if len(initial) == 2 else initial[0])

    @parametrize("name", list(NETWORKS))
    @parametrize(
        "options",
        [
            subtest(one, name="_".join(f"{key}_{value}" for key, value in one.items()))
            for one in OPTIONS
        ],
    )
    @parametrize("dtype", [torch.float32, torch.float64])
    def test_sequences_of_one_length(self, name, options, dtype):
        shape = (4, 5, 4) if options["batch_first"] else (5, 4, 4)
        self.assert_same_on_both(
            lambda: NETWORKS[name](**options),
            dtype,
            lambda module: [torch.randn(shape), *states(module, (4,))],
        )

    @parametrize("name", list(NETWORKS))
    @parametrize(
        "options",
        [
            subtest(one, name="_".join(f"{key}_{value}" for key, value in one.items()))
            for one in OPTIONS
        ],
    )
    def test_packed_sequences(self, name, options):
        self.call_packed = True
        shape = (4, 5, 4) if options["batch_first"] else (5, 4, 4)
        self.assert_same_on_both(
            lambda: NETWORKS[name](**options),
            torch.float32,
            lambda module: [torch.randn(shape), *states(module, (4,))],
        )

    @parametrize("name", list(NETWORKS))
    @parametrize("is_training", [False, True])
    @parametrize("is_packed", [False, True])
    def test_dropout_between_layers(self, name, is_training, is_packed):
        self.call_packed = is_packed
        # cuDNN's networks have no backward pass in evaluation.
        with torch.backends.cudnn.flags(enabled=is_training):
            self.assert_same_on_both(
                lambda: NETWORKS[name](num_layers=3, dropout=0.4).train(is_training),
                torch.float32,
                lambda module: [torch.randn(5, 4, 4)],
            )

    @parametrize("name", list(NETWORKS))
    @parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision(self, name, dtype):
        self.assert_same_on_both(
            lambda: NETWORKS[name](), dtype, lambda module: [torch.randn(5, 4, 4)]
        )

    @parametrize("name", list(NETWORKS))
    @parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_inference_in_low_precision(self, name, dtype):
        torch.manual_seed(0)
        module, x = NETWORKS[name](num_layers=2).to(dtype), torch.randn(5, 4, 4).to(dtype)
        with torch.no_grad():
            expected = flatten(module(x))
            actual = flatten(module.to(DEVICE_TYPE)(x.to(DEVICE_TYPE)))
        for one, other in zip(actual, expected, strict=True):
            self.assert_bit_equal(one, other)

    @parametrize("name", list(NETWORKS))
    def test_unbatched_sequence(self, name):
        self.assert_same_on_both(
            lambda: NETWORKS[name](bidirectional=True),
            torch.float32,
            lambda module: [torch.randn(5, 4), *states(module, ())],
        )

    def test_lstm_without_onednn(self):
        with torch.backends.mkldnn.flags(enabled=False):
            self.assert_same_on_both(
                lambda: NETWORKS["lstm"](num_layers=2, bidirectional=True),
                torch.float32,
                lambda module: [torch.randn(5, 4, 4)],
            )


class TestCells(RecurrentTestCase):
    def call(self, module, leaves):
        x, *initial = leaves
        return module(x, tuple(initial) if len(initial) == 2 else initial[0])

    @parametrize("name", list(CELLS))
    @parametrize("bias", [False, True])
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @parametrize("batch", [(3,), ()], name_fn=lambda one: "batched" if one else "unbatched")
    def test_cell(self, name, bias, dtype, batch):
        count = 2 if name == "lstm" else 1
        self.assert_same_on_both(
            lambda: CELLS[name](4, 6, bias=bias),
            dtype,
            lambda module: [torch.randn(*batch, 4), *torch.randn(count, *batch, 6).unbind(0)],
        )


instantiate_parametrized_tests(TestNetworks)
instantiate_parametrized_tests(TestCells)

if __name__ == "__main__":
    run_tests()
