"""torch.jit.trace, torch.jit.script and torch.onnx.export of models on the device.

For a new input, a traced or scripted module has to give the same bits as the module itself. A trace
that lacks an operator returns the same for each input.
"""

import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    needs,
    parametrize,
    run_tests,
)
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import addition_lstm
import char_gpt
import digits_cnn
import ring_gan


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


class Recurrent(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(16, 5, mode="mean")
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bags(x))


class Model(NamedTuple):
    make: Callable[[], nn.Module]
    size: tuple[int, ...]
    index_end: int = 0  # of inputs that are indices
    is_trained: bool = False  # whether it is in training mode


MODELS = {
    "digits_cnn": Model(digits_cnn.make_model, (3, 1, 8, 8)),
    "digits_cnn_in_training": Model(digits_cnn.make_model, (3, 1, 8, 8), is_trained=True),
    "addition_lstm": Model(addition_lstm.Adder, (2, addition_lstm.LENGTH, 2)),
    "char_gpt": Model(lambda: char_gpt.CharGPT(11), (2, 7), index_end=11),
    "ring_gan_generator": Model(ring_gan.make_generator, (4, ring_gan.NOISE)),
    "ring_gan_discriminator": Model(ring_gan.make_discriminator, (4, 2), is_trained=True),
    "convolutions": Model(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, groups=2, padding="same"),
            nn.Flatten(2),
            nn.Conv1d(4, 3, 3, dilation=2),
        ),
        (2, 2, 9, 9),
    ),
    "convolution_3d": Model(lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "transposed_convolutions": Model(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1),
            nn.Tanh(),
            nn.Flatten(2),
            nn.ConvTranspose1d(3, 2, 2),
        ),
        (2, 2, 4, 4),
    ),
    "residual_block": Model(Residual, (2, 4, 6, 6)),
    "lstm": Model(
        lambda: Recurrent(nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)),
        (2, 5, 3),
    ),
    "gru": Model(lambda: Recurrent(nn.GRU(3, 4)), (5, 2, 3)),
    "transformer_encoder_layer": Model(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)
    ),
    "perceptron_with_layer_norm": Model(
        lambda: nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 4)),
        (5, 6),
    ),
    "batch_norm": Model(lambda: nn.BatchNorm1d(5), (6, 5)),
    "batch_norm_in_training": Model(lambda: nn.BatchNorm1d(5), (6, 5), is_trained=True),
    "embedding_bag": Model(Bags, (3, 4), index_end=16),
    "attention": Model(Attention, (2, 5, 8)),
}

# What torch.jit.script does not compile, on no device.
UNSCRIPTABLE = {"char_gpt": "it unpacks a tensor"}
# What torch.onnx.export does not export, from no device.
UNEXPORTABLE = {"transformer_encoder_layer": "its trace takes a flag for a tensor"}


class TestJit(OpenRegTestCase):
    def module_and_inputs(self, name: str) -> tuple[nn.Module, Tensor, Tensor]:
        """The model, the input of its trace, and another one."""
        model = MODELS[name]
        torch.manual_seed(0)
        module = model.make().train(model.is_trained)
        if model.index_end:
            first, second = (torch.randint(model.index_end, model.size) for _ in range(2))
        else:
            first, second = torch.randn(model.size), torch.randn(model.size)
        self.assertNotEqual(first, second)
        return module.to(DEVICE_TYPE), first.to(DEVICE_TYPE), second.to(DEVICE_TYPE)

    def results(self, function: nn.Module, module: nn.Module, x: Tensor) -> list[Tensor]:
        """The result of a call, the gradients, and the buffers afterwards, which are reset."""
        before = {name: value.clone() for name, value in module.state_dict().items()}
        torch.manual_seed(1)
        if x.is_floating_point() and any(one.requires_grad for one in module.parameters()):
            x = x.clone().requires_grad_()
        # cuDNN's recurrent networks have no backward pass in evaluation.
        with torch.backends.cudnn.flags(enabled=False):
            result = function(x)
            found = [result.detach()]
            if result.requires_grad:
                wanted = [one for one in (x, *module.parameters()) if one.requires_grad]
                found += torch.autograd.grad(result.square().sum(), wanted)
        found += [value.clone() for value in module.buffers()]
        module.load_state_dict(before)
        return found

    def assert_same(self, compiled: nn.Module, module: nn.Module, x: Tensor) -> None:
        for _ in range(3):  # the first runs of a compiled module take another way than later ones
            actual = self.results(compiled, module, x)
            expected = self.results(module, module, x)
            self.assertEqual(len(actual), len(expected))
            for one, other in zip(actual, expected, strict=True):
                self.assert_bit_equal(one, other)

    def trace(self, module: nn.Module, x: Tensor) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.trace(module, x, check_trace=False)

    @parametrize("name", list(MODELS))
    def test_module_traced_with_frozen_parameters_computes_what_the_module_does(self, name):
        module, x, other = self.module_and_inputs(name)
        module.requires_grad_(False)
        self.assert_same(self.trace(module, x), module, other)

    @parametrize("name", list(MODELS))
    def test_module_traced_without_gradients_computes_what_the_module_does(self, name):
        module, x, other = self.module_and_inputs(name)
        with torch.no_grad():
            self.assert_same(self.trace(module, x), module, other)

    @parametrize("name", list(MODELS))
    def test_module_traced_with_gradients_has_those_of_the_module(self, name):
        module, x, other = self.module_and_inputs(name)
        self.assert_same(self.trace(module, x), module, other)

    @parametrize("name", [name for name in MODELS if name not in UNSCRIPTABLE])
    def test_scripted_module_computes_what_the_module_does(self, name):
        module, _, other = self.module_and_inputs(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted = torch.jit.script(module)
        self.assert_same(scripted, module, other)

    @parametrize("name", list(UNSCRIPTABLE))
    def test_what_is_not_scripted_is_not_on_the_cpu_either(self, name):
        for device in ("cpu", DEVICE_TYPE):
            with self.assertRaises(RuntimeError):
                torch.jit.script(MODELS[name].make().to(device))

    def test_a_trace_fits_other_sizes(self):
        module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).to(DEVICE_TYPE).requires_grad_(False)
        traced = self.trace(module, torch.ones(1, 1, 5, 5, device=DEVICE_TYPE))
        other = torch.randn(3, 1, 8, 7).to(DEVICE_TYPE)
        self.assert_bit_equal(traced(other), module(other))
        kinds = [node.kind() for node in traced.inlined_graph.nodes()]
        self.assertIn("aten::_convolution", kinds)

    def test_a_saved_trace_is_loaded_on_the_cpu_and_on_the_device(self):
        module, x, other = self.module_and_inputs("convolutions")
        module.requires_grad_(False)
        file = io.BytesIO()
        torch.jit.save(self.trace(module, x), file)
        for device in ("cpu", DEVICE_TYPE):
            file.seek(0)
            loaded = torch.jit.load(file, map_location=device)
            self.assert_bit_equal(loaded(other.to(device)), module(other))


@needs("onnx")
class TestOnnx(OpenRegTestCase):
    def export(self, name: str, device: str) -> bytes:
        model = MODELS[name]
        torch.manual_seed(0)
        module = model.make().train(model.is_trained)
        x = torch.randint(model.index_end, model.size) if model.index_end else None
        x = torch.randn(model.size) if x is None else x
        file = io.BytesIO()
        mode = (
            torch.onnx.TrainingMode.PRESERVE if model.is_trained else torch.onnx.TrainingMode.EVAL
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module.to(device), (x.to(device),), file, dynamo=False, training=mode)
        return file.getvalue()

    @parametrize("name", list(UNEXPORTABLE))
    def test_what_is_not_exported_is_not_from_the_cpu_either(self, name):
        for device in ("cpu", DEVICE_TYPE):
            with self.assertRaises(TypeError):
                self.export(name, device)

    @parametrize("name", [name for name in MODELS if name not in UNEXPORTABLE])
    def test_export_of_the_device_is_that_of_the_cpu(self, name):
        self.assertTrue(self.export(name, DEVICE_TYPE) == self.export(name, "cpu"))


instantiate_parametrized_tests(TestJit)
instantiate_parametrized_tests(TestOnnx)

if __name__ == "__main__":
    run_tests()
