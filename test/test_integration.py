"""Models of the library ``transformers``, trained on openreg as on the CPU.

Needs ``pip install torch_openreg[integration]``. The models are tiny and start from random
parameters: nothing is downloaded.
"""

import copy
import importlib.util
import os
import unittest

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

os.environ["HF_HUB_OFFLINE"] = "1"

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


@unittest.skipIf(
    importlib.util.find_spec("transformers") is None,
    "needs transformers: pip install torch_openreg[integration]",
)
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


instantiate_parametrized_tests(TestTransformers)

if __name__ == "__main__":
    run_tests()
