"""Libraries on top of torch, used as for CUDA: without an argument, setting or class for openreg.

Needs ``pip install torch_openreg[integration]``; tests of missing packages are skipped. The models
are tiny and start from random parameters: nothing is downloaded.
"""

import logging
import os
import tempfile

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    needs,
    parametrize,
    run_tests,
    subtest,
)
from torch.utils.data import DataLoader, TensorDataset

os.environ["HF_HUB_OFFLINE"] = "1"


def gpt2():
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


class Folder(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


@needs("transformers", "accelerate")
class TestTransformers(Folder):
    def losses(self, **settings):
        import transformers
        from accelerate.state import AcceleratorState, PartialState

        AcceleratorState._reset_state(reset_partial_state=True)
        self.addCleanup(PartialState._reset_state)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(3, 50, (16, 12), generator=generator)
        arguments = transformers.TrainingArguments(
            self.folder,
            max_steps=4,
            per_device_train_batch_size=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=0,
            disable_tqdm=True,
            **settings,
        )
        # Of several devices, Trainer would make a DataParallel model.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        trainer = transformers.Trainer(
            gpt2(), arguments, train_dataset=[{"input_ids": row, "labels": row} for row in ids]
        )
        trainer.train()
        expected = "cpu" if settings.get("use_cpu") else "cuda"
        self.assertEqual({p.device.type for p in trainer.model.parameters()}, {expected})
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    def test_trainer_gives_the_cpu_s_losses(self):
        losses = self.losses()
        self.assertEqual(len(losses), 4)
        self.assertEqual(losses, self.losses(use_cpu=True), rtol=0, atol=0)

    @parametrize(
        "settings",
        [
            subtest({"fp16": True}, name="fp16"),
            subtest({"bf16": True, "optim": "adamw_torch_fused"}, name="bf16_fused_optimizer"),
            subtest({"gradient_checkpointing": True}, name="gradient_checkpointing"),
        ],
    )
    def test_trainer_trains(self, settings):
        plain, losses = self.losses(), self.losses(**settings)
        self.assertEqual(len(losses), 4)
        self.assertEqual(losses, plain, rtol=0.02, atol=0)

    def test_generate(self):
        import transformers

        model = gpt2()
        start = torch.tensor([[3, 4, 5]])
        settings = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0)
        expected = model.generate(start, generation_config=settings)
        actual = model.cuda().generate(start.cuda(), generation_config=settings)
        self.assertTrue(actual.is_cuda)
        self.assertEqual(actual.cpu(), expected)


@needs("accelerate")
class TestAccelerate(Folder):
    @parametrize("precision", ["no", "fp16", "bf16"])
    def test_training_on_the_first_device(self, precision):
        import accelerate
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(mixed_precision=precision)
        self.assertEqual(accelerator.device.type, "cuda")
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 8))
        losses = []
        for _ in range(6):
            for inputs, labels in loader:
                self.assertTrue(inputs.is_cuda)
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])

    def test_model_is_spread_over_two_devices(self):
        import accelerate

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        x = torch.randn(4, 8)
        expected = model(x)
        model = accelerate.dispatch_model(model, {"0": 0, "1": 0, "2": 1}, main_device="cuda:0")
        self.assertEqual({str(p.device) for p in model.parameters()}, {"cuda:0", "cuda:1"})
        result = model(x.cuda())
        self.assertEqual(result.cpu(), expected, rtol=0, atol=0)


@needs("lightning")
class TestLightning(Folder):
    @parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
    def test_fit_on_a_gpu(self, precision):
        import lightning.pytorch as lightning

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

        class Classifier(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 2)
                self.losses = []

            def training_step(self, batch, _):
                assert batch[0].is_cuda
                loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
                self.losses.append(loss.detach())
                return loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.5)

        torch.manual_seed(0)
        inputs = torch.randn(64, 8)
        data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
        model = Classifier()
        trainer = lightning.Trainer(
            accelerator="gpu",
            devices=1,
            precision=precision,
            max_epochs=3,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=self.folder,
        )
        trainer.fit(model, DataLoader(data, 16, pin_memory=True))
        self.assertLess(model.losses[-1].item(), model.losses[0].item())
        self.assertEqual(trainer.strategy.root_device, torch.device("cuda:0"))


instantiate_parametrized_tests(TestTransformers)
instantiate_parametrized_tests(TestAccelerate)
instantiate_parametrized_tests(TestLightning)

if __name__ == "__main__":
    run_tests()
