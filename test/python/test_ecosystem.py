"""Libraries on top of torch, used on openreg as in their own documentation.

Needs ``pip install torch_openreg[integration]``; tests of missing packages are skipped. The models
are tiny and start from random parameters: nothing is downloaded. If a library needs a setting for
the device, the test shows it, and docs/ecosystem.md has the reason.
"""

import contextlib
import copy
import logging
import os
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    needs,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from torch.utils.data import DataLoader, TensorDataset

os.environ["HF_HUB_OFFLINE"] = "1"

DEVICES = parametrize(
    "device", ["openreg:0", subtest("openreg:1", decorators=[requires_two_devices])]
)
VOCABULARY = 50
COMMON = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def tokens(*shape: int) -> torch.Tensor:
    """Returns token numbers, none of them a special one."""
    return torch.randint(3, VOCABULARY, shape)


def bert(transformers):
    config = transformers.BertConfig(
        **COMMON,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    mask = torch.ones(3, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    inputs = {"input_ids": tokens(3, 12), "attention_mask": mask, "labels": tokens(3, 12)}
    return transformers.BertForMaskedLM(config), inputs


def gpt2(transformers):
    config = transformers.GPT2Config(**COMMON, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    ids = tokens(3, 12)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def t5(transformers):
    config = transformers.T5Config(
        **COMMON,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    inputs = {"input_ids": tokens(3, 12), "labels": tokens(3, 7)}
    return transformers.T5ForConditionalGeneration(config), inputs


def vit(transformers):
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        num_labels=5,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    inputs = {"pixel_values": torch.randn(3, 3, 16, 16), "labels": torch.tensor([0, 4, 2])}
    return transformers.ViTForImageClassification(config), inputs


def whisper(transformers):
    config = transformers.WhisperConfig(
        **COMMON,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=20,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        dropout=0.1,
    )
    inputs = {"input_features": torch.randn(2, 8, 40), "labels": tokens(2, 7)}
    return transformers.WhisperForConditionalGeneration(config), inputs


class LibraryTestCase(OpenRegTestCase):
    """A test with a separate folder."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def assert_states_are_bit_equal(self, actual, expected):
        self.assertEqual(actual.keys(), expected.keys())
        for name, value in actual.items():
            self.assertTrue(torch.equal(value.cpu(), expected[name].cpu()), name)


def perceptron():
    """Returns a small classifier, the same each time. No dropout: loaders draw from the CPU's
    generator, and so would the dropout of a run on the CPU."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def points():
    """Returns sixteen points of three classes."""
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(16, 4, generator=generator), torch.arange(16) % 3)


MODELS = parametrize(
    "make", [subtest(one, name=one.__name__) for one in (bert, gpt2, t5, vit, whisper)]
)
WRITERS = parametrize("make", [subtest(one, name=one.__name__) for one in (gpt2, t5, whisper)])


def to_device(inputs, device):
    return {name: value.to(device) for name, value in inputs.items()}


def train(model, inputs, device, steps=2):
    """Trains a copy of the model; returns the losses and the state, on the CPU."""
    model = copy.deepcopy(model).to(device).train()
    inputs = to_device(inputs, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)  # for dropout, on all devices
    losses = []
    for _ in range(steps):
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    return torch.stack(losses).cpu(), state


@needs("transformers")
class TestTransformers(OpenRegTestCase):
    def make(self, make):
        import transformers

        transformers.logging.set_verbosity_error()
        torch.manual_seed(0)
        return make(transformers)

    @MODELS
    def test_training_gives_the_cpu_s_bits(self, make):
        model, inputs = self.make(make)
        expected_losses, expected_state = train(model, inputs, "cpu")
        losses, state = train(model, inputs, "openreg")
        self.assert_bit_equal(losses, expected_losses)
        self.assertEqual(state.keys(), expected_state.keys())
        for name, value in state.items():
            self.assertTrue(torch.equal(value, expected_state[name]), name)

    @MODELS
    def test_training_changes_the_model(self, make):
        model, inputs = self.make(make)
        losses, state = train(model, inputs, "openreg", steps=1)
        self.assertTrue(losses.isfinite().all())
        changed = [
            name
            for name, value in model.state_dict().items()
            if not torch.equal(value, state[name])
        ]
        self.assertGreater(len(changed), 10)

    @WRITERS
    def test_written_tokens_are_those_of_the_cpu(self, make):
        model, inputs = self.make(make)
        inputs.pop("labels")
        written = []
        for device in ("cpu", "openreg"):
            torch.manual_seed(1)
            written.append(
                copy.deepcopy(model)
                .to(device)
                .eval()
                .generate(
                    **to_device(inputs, device), do_sample=True, min_new_tokens=6, max_new_tokens=6
                )
                .cpu()
            )
        self.assertEqual(written[1].shape[0], next(iter(inputs.values())).shape[0])
        self.assert_bit_equal(written[1], written[0])


@needs("safetensors")
class TestSafetensors(LibraryTestCase):
    def tensors(self, device):
        return {
            "weight": torch.arange(6.0, device=device).view(2, 3),
            "half": torch.linspace(-1, 1, 5, device=device).to(torch.bfloat16),
            "mask": torch.tensor([True, False], device=device),
            "empty": torch.empty(0, 3, dtype=torch.int64, device=device),
        }

    @DEVICES
    def test_saved_file_is_that_of_the_cpu(self, device):
        from safetensors.torch import save

        self.assertEqual(save(self.tensors(device)), save(self.tensors("cpu")))

    @DEVICES
    def test_file_is_loaded_to_the_device_given_by_its_index(self, device):
        from safetensors.torch import load_file, save_file

        save_file(self.tensors(device), self.folder / "x.safetensors")
        loaded = load_file(self.folder / "x.safetensors", device=torch.device(device).index)
        for name, expected in self.tensors("cpu").items():
            self.assertEqual(loaded[name].device, torch.device(device))
            self.assert_bit_equal(loaded[name], expected)

    def test_device_name_is_refused_by_the_library(self):
        import safetensors.torch

        safetensors.torch.save_file(self.tensors("cpu"), self.folder / "x.safetensors")
        with self.assertRaisesRegex(safetensors.SafetensorError, "device openreg is invalid"):
            safetensors.torch.load_file(self.folder / "x.safetensors", device="openreg")

    def test_model_is_saved_and_loaded_with_its_shared_weights(self):
        from safetensors.torch import load_model, save_model

        def model():
            layers = torch.nn.Sequential(*[torch.nn.Linear(3, 3, device="openreg") for _ in "ab"])
            layers[1].weight = layers[0].weight
            return layers

        saved, loaded = model(), model()
        save_model(saved, self.folder / "model.safetensors")
        missing, unexpected = load_model(loaded, self.folder / "model.safetensors")
        self.assertEqual((list(missing), list(unexpected)), ([], []))
        self.assertEqual(loaded[0].weight.device.type, "openreg")
        self.assertIs(loaded[0].weight, loaded[1].weight)
        self.assert_states_are_bit_equal(loaded.state_dict(), saved.state_dict())


@needs("einops")
class TestEinops(OpenRegTestCase):
    @parametrize(
        "function",
        [
            subtest(lambda e, x: e.rearrange(x, "a b c d -> (a d) c b"), name="rearrange"),
            subtest(lambda e, x: e.rearrange(x, "a (p q) c d -> a p c d q", p=2), name="split"),
            subtest(lambda e, x: e.reduce(x, "a b c d -> a c", "mean"), name="mean"),
            subtest(lambda e, x: e.reduce(x, "a b c d -> b d", "max"), name="max"),
            subtest(lambda e, x: e.repeat(x, "a b c d -> a b c d n", n=3), name="repeat"),
            subtest(lambda e, x: e.einsum(x, x, "a b c d, a b k d -> a c k"), name="einsum"),
            subtest(lambda e, x: e.pack([x, x[..., 0]], "a b c *")[0], name="pack"),
        ],
    )
    def test_function_gives_the_cpu_s_bits(self, function):
        import einops

        x = torch.randn(2, 4, 3, 5)
        y = x.to("openreg").requires_grad_()
        x.requires_grad_()
        actual, expected = function(einops, y), function(einops, x)
        self.assertEqual(actual.device.type, "openreg")
        self.assert_bit_equal(actual.detach(), expected.detach())
        actual.square().sum().backward()
        expected.square().sum().backward()
        self.assert_bit_equal(y.grad, x.grad)

    def test_layers_give_the_cpu_s_bits(self):
        from einops.layers.torch import EinMix, Rearrange, Reduce

        torch.manual_seed(0)
        model = torch.nn.Sequential(
            Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2),
            EinMix("b n i -> b n o", weight_shape="i o", bias_shape="o", i=12, o=5),
            Reduce("b n o -> b o", "sum"),
        )
        x = torch.randn(2, 3, 8, 8)
        expected = model(x)
        self.assert_bit_equal(model.to("openreg")(x.to("openreg")).detach(), expected.detach())


class AccelerateTestCase(LibraryTestCase):
    """The library keeps its device for the process; each test begins without one."""

    @contextlib.contextmanager
    def accelerate_on(self, device, **settings):
        from accelerate.state import AcceleratorState, GradientState

        environment = settings if device is None else {"ACCELERATE_TORCH_DEVICE": device} | settings
        try:
            with mock.patch.dict(os.environ, environment):
                yield
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()


@needs("accelerate")
class TestAccelerate(AccelerateTestCase):
    def train(self, device, mixed_precision="no"):
        """Trains as the library's quick tour does; returns losses, state and type of a product."""
        import accelerate

        with self.accelerate_on(device):
            accelerator = accelerate.Accelerator(
                mixed_precision=mixed_precision, gradient_accumulation_steps=2
            )
            self.assertEqual(accelerator.device, torch.device(device))
            model = perceptron()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            accelerate.utils.set_seed(3)
            model, optimizer, scheduler, loader = accelerator.prepare(
                model, optimizer, scheduler, DataLoader(points(), batch_size=4, shuffle=True)
            )
            types, losses = set(), []
            model[0].register_forward_hook(lambda *args: types.add(args[2].dtype))
            for _ in range(2):
                for x, y in loader:
                    self.assertEqual(x.device.type, torch.device(device).type)
                    with accelerator.accumulate(model):
                        loss = torch.nn.functional.cross_entropy(model(x), y)
                        accelerator.backward(loss)
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
                    losses.append(accelerator.gather(loss.detach()))
            trained = {name: value.clone() for name, value in model.state_dict().items()}
            accelerator.save_state(str(self.folder))
            with torch.no_grad():
                model[0].weight.zero_()
            accelerator.load_state(str(self.folder))
            self.assert_states_are_bit_equal(model.state_dict(), trained)
            self.assertEqual(model[0].weight.device.type, torch.device(device).type)
        return torch.stack(losses).cpu(), trained, types

    @DEVICES
    def test_training_gives_the_cpu_s_bits(self, device):
        losses, state, _ = self.train(device)
        expected_losses, expected_state, _ = self.train("cpu")
        self.assert_bit_equal(losses, expected_losses)
        self.assert_states_are_bit_equal(state, expected_state)
        self.assertLess(losses[-4:].mean(), losses[:4].mean())

    def test_bfloat16_is_mixed_in(self):
        losses, state, types = self.train("openreg", "bf16")
        # accelerate gives outputs of the whole model back as float32, not those of a layer.
        self.assertEqual(types, {torch.bfloat16})
        self.assertTrue(losses.isfinite().all())
        self.assertEqual({value.dtype for value in state.values()}, {torch.float32})

    def test_float16_is_refused_by_the_library(self):
        import accelerate

        with (
            self.accelerate_on("openreg"),
            self.assertRaisesRegex(ValueError, "fp16 mixed precision requires a device in"),
        ):
            accelerate.Accelerator(mixed_precision="fp16")

    def test_device_has_to_be_named(self):
        import accelerate

        with self.accelerate_on(None):
            self.assertEqual(accelerate.Accelerator().device.type, "cpu")


@needs("transformers", "accelerate")
class TestTransformersTrainer(AccelerateTestCase):
    def trainer(self, **settings):
        import transformers

        transformers.logging.set_verbosity_error()
        config = transformers.BertConfig(
            **COMMON,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
        examples = [
            {"input_ids": tokens(8), "labels": torch.tensor(number % 2)} for number in range(12)
        ]
        defaults = {
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "save_steps": 2,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "report_to": [],
            "disable_tqdm": True,
        }
        arguments = transformers.TrainingArguments(str(self.folder), **defaults | settings)
        trainer = transformers.Trainer(
            model, arguments, train_dataset=examples, eval_dataset=examples
        )
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer

    def train(self, device, checkpoint=None, **settings):
        """Returns the logged losses, the state and the predictions."""
        with self.accelerate_on(device, **settings):
            trainer = self.trainer()
            self.assertEqual(trainer.args.device, torch.device(device))
            trainer.train(resume_from_checkpoint=checkpoint)
            history = [
                entry[name]
                for entry in trainer.state.log_history
                for name in ("loss", "eval_loss", "grad_norm")
                if name in entry
            ]
            self.assertEqual(next(trainer.model.parameters()).device.type, trainer.args.device.type)
            predictions = trainer.predict(trainer.eval_dataset).predictions
        return history, trainer.model.state_dict(), torch.from_numpy(predictions)

    @DEVICES
    def test_training_and_evaluation_give_the_cpu_s_bits(self, device):
        history, state, predictions = self.train(device)
        expected_history, expected_state, expected_predictions = self.train("cpu")
        self.assertEqual(len(history), 4 + 4 + 2)
        self.assertEqual(history, expected_history, rtol=0, atol=0)
        self.assert_states_are_bit_equal(state, expected_state)
        self.assert_bit_equal(predictions, expected_predictions)

    def test_training_goes_on_from_a_checkpoint(self):
        _, state, _ = self.train("openreg")
        checkpoint = self.folder / "checkpoint-2"
        self.assertTrue((checkpoint / "optimizer.pt").is_file())
        _, resumed, _ = self.train("openreg", checkpoint=str(checkpoint))
        self.assert_states_are_bit_equal(resumed, state)

    def test_bfloat16_is_mixed_in_by_the_setting_of_accelerate(self):
        plain, _, _ = self.train("openreg")
        mixed, _, _ = self.train("openreg", ACCELERATE_MIXED_PRECISION="bf16")
        self.assertNotEqual(mixed, plain)
        self.assertEqual(mixed, plain, rtol=0.2, atol=0.05)

    def test_bfloat16_argument_is_refused_by_the_library(self):
        with (
            self.accelerate_on("openreg"),
            self.assertRaisesRegex(ValueError, "doesn't support bf16/gpu"),
        ):
            self.trainer(bf16=True)


@needs("ignite")
class TestIgnite(LibraryTestCase):
    def train(self, device):
        from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
        from ignite.handlers import ModelCheckpoint
        from ignite.metrics import Accuracy, Loss

        model = perceptron().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        criterion = torch.nn.CrossEntropyLoss()
        loader = DataLoader(points(), batch_size=4)
        trainer = create_supervised_trainer(model, optimizer, criterion, device=device)
        evaluator = create_supervised_evaluator(
            model,
            {"accuracy": Accuracy(device=device), "loss": Loss(criterion, device=device)},
            device=device,
        )
        losses = []
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output)
        )
        checkpoint = ModelCheckpoint(self.folder, torch.device(device).type, require_empty=False)
        trainer.add_event_handler(Events.COMPLETED, checkpoint, {"model": model})
        trainer.run(loader, max_epochs=2)
        evaluator.run(loader)
        saved = torch.load(checkpoint.last_checkpoint, weights_only=True)
        self.assert_states_are_bit_equal(saved, model.state_dict())
        return losses, evaluator.state.metrics, model.state_dict()

    @DEVICES
    def test_training_and_metrics_give_the_cpu_s_bits(self, device):
        losses, metrics, state = self.train(device)
        expected_losses, expected_metrics, expected_state = self.train("cpu")
        self.assertEqual(len(losses), 8)
        self.assertEqual(losses, expected_losses, rtol=0, atol=0)
        self.assertEqual(metrics["accuracy"], expected_metrics["accuracy"], rtol=0, atol=0)
        self.assertEqual(metrics["loss"], expected_metrics["loss"])
        self.assert_states_are_bit_equal(state, expected_state)

    def types_of_scores(self, **settings):
        from ignite.engine import create_supervised_trainer

        model, types = perceptron().to("openreg"), []
        model.register_forward_hook(lambda *args: types.append(args[2].dtype))
        trainer = create_supervised_trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            lambda scores, classes: torch.nn.functional.cross_entropy(scores.float(), classes),
            device="openreg",
            **settings,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # autocast for CUDA warns that CUDA is not available
            trainer.run(DataLoader(points(), batch_size=8), max_epochs=1)
        return types

    def test_amp_mode_is_meant_for_cuda(self):
        self.assertEqual(self.types_of_scores(amp_mode="amp"), [torch.float32] * 2)

    def test_lower_precision_is_mixed_in_around_the_model(self):
        def autocast(model, x):
            with torch.autocast("openreg", dtype=torch.bfloat16):
                return model(x)

        self.assertEqual(self.types_of_scores(model_fn=autocast), [torch.bfloat16] * 2)


# docs: lightning-accelerator
def lightning_accelerator():
    """Returns an accelerator for lightning that uses the current accelerator of torch."""
    from lightning.pytorch.accelerators import Accelerator

    class TorchAccelerator(Accelerator):
        def setup_device(self, device):
            torch.accelerator.set_device_index(device)

        def get_device_stats(self, device):
            return torch.accelerator.memory_stats(device)

        def teardown(self):
            torch.accelerator.empty_cache()

        @staticmethod
        def parse_devices(devices):
            return devices if isinstance(devices, list) else list(range(int(devices)))

        @staticmethod
        def get_parallel_devices(devices):
            device = torch.accelerator.current_accelerator()
            return [torch.device(device.type, index) for index in devices]

        @staticmethod
        def auto_device_count():
            return torch.accelerator.device_count()

        @staticmethod
        def is_available():
            return torch.accelerator.is_available()

        @staticmethod
        def name():
            return "torch"

    return TorchAccelerator()


# docs: end


@needs("lightning")
class TestLightning(LibraryTestCase):
    def setUp(self):
        super().setUp()
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def tearDown(self):
        torch.openreg.set_device(0)  # lightning selects the device of its strategy for good
        super().tearDown()

    def train(self, device, **settings):
        import lightning.pytorch as lightning
        from lightning.pytorch.strategies import SingleDeviceStrategy

        class Classifier(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layers = perceptron()
                self.losses, self.types = [], set()

            def loss(self, batch):
                points, classes = batch
                scores = self.layers(points)
                self.types.add(scores.dtype)
                return torch.nn.functional.cross_entropy(scores, classes)

            def training_step(self, batch, index):
                loss = self.loss(batch)
                self.losses.append(loss.detach())
                return loss

            def validation_step(self, batch, index):
                self.log("loss", self.loss(batch))

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-2)

        model = Classifier()
        loader = DataLoader(points(), batch_size=4)
        place = {"accelerator": "cpu"}
        if device != "cpu":
            strategy = SingleDeviceStrategy(torch.device(device), lightning_accelerator())
            place = {"strategy": strategy}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on worker processes, and autocast for CUDA
            trainer = lightning.Trainer(
                **place,
                **settings,
                max_epochs=2,
                logger=False,
                default_root_dir=self.folder,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(model, loader, loader)
            self.assertEqual(trainer.strategy.root_device, torch.device(device))
            (metrics,) = trainer.validate(model, loader, verbose=False)
        self.assertEqual({loss.device for loss in model.losses}, {torch.device(device)})
        self.checkpoint = trainer.checkpoint_callback.best_model_path
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        return torch.stack(model.losses).cpu(), metrics["loss"], state, model.types

    @DEVICES
    def test_training_and_validation_give_the_cpu_s_bits(self, device):
        losses, metric, state, _ = self.train(device)
        saved = torch.load(self.checkpoint, map_location="cpu", weights_only=False)
        self.assert_states_are_bit_equal(saved["state_dict"], state)
        expected_losses, expected_metric, expected_state, _ = self.train("cpu")
        self.assertEqual(len(losses), 8)
        self.assert_bit_equal(losses, expected_losses)
        self.assertEqual(metric, expected_metric)
        self.assert_states_are_bit_equal(state, expected_state)

    @parametrize("name,dtype", [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
    def test_lower_precision_is_mixed_in_by_a_plugin_with_the_device(self, name, dtype):
        from lightning.pytorch.plugins import MixedPrecision

        losses, _, _, types = self.train("openreg:0", plugins=[MixedPrecision(name, "openreg")])
        self.assertEqual(types, {dtype})
        self.assertTrue(losses.isfinite().all())

    def test_precision_without_the_plugin_is_meant_for_cuda(self):
        *_, types = self.train("openreg:0", precision="bf16-mixed")
        self.assertEqual(types, {torch.float32})


instantiate_parametrized_tests(TestTransformers)
instantiate_parametrized_tests(TestSafetensors)
instantiate_parametrized_tests(TestEinops)
instantiate_parametrized_tests(TestAccelerate)
instantiate_parametrized_tests(TestTransformersTrainer)
instantiate_parametrized_tests(TestIgnite)
instantiate_parametrized_tests(TestLightning)

if __name__ == "__main__":
    run_tests()
