"""Recurrent networks follow the rules of cuDNN where CUDA runs them by it."""

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

NETWORKS = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnn": torch.nn.RNN,
}
DTYPES = [torch.float32, torch.float64, torch.float16]
EVALUATION = "^cudnn RNN backward can only be called in training mode"


def state_of(module, make=torch.zeros):
    states = [make(1, 2, 4, device="cuda"), make(1, 2, 4, device="cuda")]
    return tuple(states) if isinstance(module, torch.nn.LSTM) else states[0]


def not_contiguous(*sizes, device):
    return torch.zeros(*sizes[:-2], sizes[-1], sizes[-2], device=device).mT


@instantiate_parametrized_tests
class TestRulesOfCudnn(OpenRegTestCase):
    def module_of(self, name, dtype=torch.float32):
        return NETWORKS[name](3, 4).to("cuda", dtype)

    def input_of(self, is_packed=False, dtype=torch.float32):
        x = torch.ones(5, 2, 3, device="cuda", dtype=dtype, requires_grad=True)
        return torch.nn.utils.rnn.pack_padded_sequence(x, [5, 3]) if is_packed else x

    def output_of(self, module, is_packed=False, **options):
        output, last = module(self.input_of(is_packed, **options))
        last = last[0] if isinstance(last, tuple) else last
        return (output.data if is_packed else output), last

    @parametrize("name", list(NETWORKS))
    @parametrize("is_packed", [False, True])
    @parametrize("result", [0, 1])
    def test_a_backward_pass_in_evaluation_mode_is_refused(self, name, is_packed, result):
        outputs = self.output_of(self.module_of(name).eval(), is_packed)
        with self.assertRaisesRegex(RuntimeError, EVALUATION):
            outputs[result].sum().backward()

    @parametrize("dtype", DTYPES)
    def test_a_backward_pass_is_refused_in_each_dtype_of_cudnn(self, dtype):
        output, _ = self.output_of(self.module_of("lstm", dtype).eval(), dtype=dtype)
        with self.assertRaisesRegex(RuntimeError, EVALUATION):
            output.sum().backward()

    @parametrize("name", list(NETWORKS))
    @parametrize("is_packed", [False, True])
    def test_a_backward_pass_in_training_mode_runs(self, name, is_packed):
        module = self.module_of(name)
        self.output_of(module, is_packed)[0].sum().backward()
        self.assertIsNotNone(module.weight_hh_l0.grad)

    @parametrize("name", list(NETWORKS))
    def test_without_cudnn_a_backward_pass_in_evaluation_mode_runs(self, name):
        module = self.module_of(name).eval()
        with torch.backends.cudnn.flags(enabled=False):
            output, _ = self.output_of(module)
        output.sum().backward()
        self.assertIsNotNone(module.weight_hh_l0.grad)

    def test_a_backward_pass_in_evaluation_mode_runs_in_a_dtype_that_cudnn_does_not_take(self):
        module = self.module_of("lstm", torch.bfloat16).eval()
        output, _ = self.output_of(module, dtype=torch.bfloat16)
        output.sum().backward()
        self.assertIsNotNone(module.weight_hh_l0.grad)

    @parametrize("name", list(NETWORKS))
    def test_an_output_in_evaluation_mode_may_be_written(self, name):
        output, _ = self.output_of(self.module_of(name).eval())
        output += 1
        with self.assertRaisesRegex(RuntimeError, EVALUATION):
            output.sum().backward()

    @parametrize("name", list(NETWORKS))
    @parametrize("is_packed", [False, True])
    def test_a_state_that_is_not_contiguous_is_refused(self, name, is_packed):
        module = self.module_of(name)
        x = self.input_of(is_packed)
        with self.assertRaisesRegex(RuntimeError, "^rnn: hx is not contiguous"):
            module(x, state_of(module, not_contiguous))
        if name == "lstm":
            mixed = state_of(module)[0], state_of(module, not_contiguous)[0]
            with self.assertRaisesRegex(RuntimeError, "^rnn: cx is not contiguous"):
                module(x, mixed)

    @parametrize("name", list(NETWORKS))
    def test_without_cudnn_a_state_may_have_any_strides(self, name):
        module = self.module_of(name)
        with torch.backends.cudnn.flags(enabled=False):
            output, _ = module(self.input_of(), state_of(module, not_contiguous))
        self.assertEqual(output, module(self.input_of(), state_of(module))[0])

    @parametrize("name", list(NETWORKS))
    def test_a_state_of_another_dtype_is_refused(self, name):
        module = self.module_of(name)
        make = lambda *sizes, device: torch.zeros(*sizes, device=device).double()  # noqa: E731
        with self.assertRaisesRegex(
            RuntimeError, "^Input and hidden tensors are not the same dtype, found input tensor"
        ):
            module(self.input_of(), state_of(module, make))


if __name__ == "__main__":
    run_tests()
