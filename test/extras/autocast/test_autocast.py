"""Automatic mixed precision: which type each operator runs in, and training with scaled losses."""

import functools

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

LOWER_TYPES = [torch.bfloat16, torch.float16]

# Lists of torch's own test of autocast: the attribute, the namespaces its operators are in, and the
# type they run in; None means autocast's lower precision.
LISTS = {
    "torch_fp16": ((torch,), None),
    "torch_fp32": ((torch,), torch.float32),
    "torch_need_autocast_promote": ((torch,), torch.float32),
    "nn_fp16": ((torch._C._nn,), None),
    "nn_fp32": ((torch._C._nn, torch.nn.functional), torch.float32),
    "linalg_fp16": ((torch._C._linalg,), None),
    "methods_fp16": ((torch.Tensor,), None),
    "methods_fp32": ((torch.Tensor,), torch.float32),
}

# Not for us: operators of one vendor's library, and an equation that does not fit its operands.
LEFT_OUT = {"cudnn_convolution", "cudnn_convolution_transpose", "einsum"}

# These lists are made for float16: an operand of one lower type in a region of another raises an
# error.
FLOAT16_ONLY = {"torch_need_autocast_promote"}


def entries():
    """(list, position, operator) of each entry that applies."""
    lists = AutocastTestLists(torch.device("cpu"))
    return [
        (name, position, entry[0])
        for name in LISTS
        for position, entry in enumerate(getattr(lists, name))
        if entry[0] not in LEFT_OUT
    ]


@functools.cache
def lists_on_device():
    return AutocastTestLists(torch.device(DEVICE_TYPE))


def find(namespaces, name):
    return next(getattr(space, name) for space in namespaces if hasattr(space, name))


def cast(value, dtype):
    """Floating point tensors of a structure in another type."""
    return tree_map(
        lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x,
        value,
    )


def first_tensor(result):
    return result if isinstance(result, torch.Tensor) else result[0]


class TestLists(OpenRegTestCase):
    """Every entry of torch's lists: its type, and its bits."""

    @parametrize(
        "entry", entries(), name_fn=lambda entry: f"{entry[0]}_{entry[1]}_{entry[2].strip('_')}"
    )
    def test_entry(self, entry):
        list_name, position, _ = entry
        namespaces, run_type = LISTS[list_name]
        name, arguments, *more = getattr(lists_on_device(), list_name)[position]
        keywords = next((value for value in more if isinstance(value, dict)), {})
        operator = find(namespaces, name)
        for lower in [torch.float16] if list_name in FLOAT16_ONLY else LOWER_TYPES:
            with torch.autocast(DEVICE_TYPE, dtype=lower):
                actual = operator(*arguments, **keywords)
            self.assertEqual(first_tensor(actual).dtype, run_type or lower)
            on_cpu = tree_map(
                lambda x: x.cpu() if isinstance(x, torch.Tensor) else x,
                cast(arguments, run_type or lower),
            )
            expected = operator(*on_cpu, **keywords)
            self.assert_bit_equal(first_tensor(actual), first_tensor(expected))

    @parametrize("list_name", ["torch_expect_builtin_promote", "methods_expect_builtin_promote"])
    def test_operators_that_promote_by_themselves(self, list_name):
        space = torch if list_name.startswith("torch") else torch.Tensor
        count = 0
        for name, arguments, expected_type in getattr(lists_on_device(), list_name):
            if not hasattr(space, name):
                self.assertEqual(name, "__div__")  # removed in Python 3
                continue
            with torch.autocast(DEVICE_TYPE, dtype=torch.float16):
                result = getattr(space, name)(*arguments)
            if isinstance(result, torch.Tensor):
                self.assertEqual(result.dtype, expected_type, msg=name)
            else:
                self.assertIsInstance(result, bool)
            count += 1
        self.assertGreater(count, 7)

    def test_banned_operators_say_what_to_use(self):
        for name, arguments, space in lists_on_device().banned:
            with (
                torch.autocast(DEVICE_TYPE, dtype=torch.float16),
                self.assertRaisesRegex(RuntimeError, "(?s)unsafe to autocast.*_with_logits"),
            ):
                getattr(space, name)(*arguments)
            with torch.autocast(DEVICE_TYPE, enabled=False):
                getattr(space, name)(*arguments)


class TestAutocast(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.randn(4, 4, device=DEVICE_TYPE)

    def test_einsum_runs_in_the_lower_precision(self):
        with torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16):
            self.assertEqual(torch.einsum("ij,jk->ik", self.x, self.x).dtype, torch.bfloat16)

    def test_other_operators_keep_their_type(self):
        with torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16):
            self.assertEqual((self.x + 1).dtype, torch.float32)

    def test_default_type_is_the_first_supported_one(self):
        self.assertEqual(torch.get_autocast_dtype(DEVICE_TYPE), torch.float16)
        with torch.autocast(DEVICE_TYPE):
            self.assertEqual((self.x @ self.x).dtype, torch.float16)

    def test_default_type_can_be_set(self):
        before = torch.get_autocast_dtype(DEVICE_TYPE)
        torch.set_autocast_dtype(DEVICE_TYPE, torch.bfloat16)
        try:
            with torch.autocast(DEVICE_TYPE):
                self.assertEqual((self.x @ self.x).dtype, torch.bfloat16)
        finally:
            torch.set_autocast_dtype(DEVICE_TYPE, before)

    def test_regions_nest(self):
        def dtype():
            return (self.x @ self.x).dtype

        with torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16):
            self.assertEqual(dtype(), torch.bfloat16)
            with torch.autocast(DEVICE_TYPE, enabled=False):
                self.assertEqual(dtype(), torch.float32)
                with torch.autocast(DEVICE_TYPE, dtype=torch.float16):
                    self.assertEqual(dtype(), torch.float16)
                self.assertEqual(dtype(), torch.float32)
            self.assertEqual(dtype(), torch.bfloat16)
        self.assertEqual(dtype(), torch.float32)
        self.assertFalse(torch.is_autocast_enabled(DEVICE_TYPE))

    def test_other_devices_are_not_affected(self):
        with torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16):
            self.assertFalse(torch.is_autocast_enabled("cpu"))
            self.assertEqual((self.x.cpu() @ self.x.cpu()).dtype, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertEqual((self.x @ self.x).dtype, torch.float32)

    def test_region_decorates_functions(self):
        @torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16)
        def product(x):
            return x @ x

        self.assertEqual(product(self.x).dtype, torch.bfloat16)

    def test_region_ends_with_an_exception(self):
        with self.assertRaises(KeyError), torch.autocast(DEVICE_TYPE):
            raise KeyError
        self.assertFalse(torch.is_autocast_enabled(DEVICE_TYPE))

    def test_unsupported_type_switches_it_off_with_a_warning(self):
        with (
            self.assertWarnsRegex(UserWarning, DEVICE_TYPE),
            torch.autocast(DEVICE_TYPE, dtype=torch.float64),
        ):
            self.assertEqual((self.x @ self.x).dtype, torch.float32)

    @parametrize("is_cached", [True, False])
    def test_casts_of_parameters_are_kept_for_the_region(self, is_cached):
        weight = torch.randn(4, 4, device=DEVICE_TYPE, requires_grad=True)
        with (
            torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16, cache_enabled=is_cached),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        ):
            for _ in range(5):
                torch.mm(self.x.bfloat16(), weight)
        casts = sum(e.count for e in profile.key_averages() if e.key == "aten::_to_copy")
        self.assertEqual(casts, 5 + (1 if is_cached else 5))

    def test_changed_parameter_is_cast_again_in_the_next_region(self):
        weight = torch.ones(4, 4, device=DEVICE_TYPE, requires_grad=True)
        results = []
        for _ in range(2):
            with torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16):
                results.append(self.x @ weight)
            with torch.no_grad():
                weight.mul_(2)
        self.assert_bit_equal(results[1], results[0] * 2)

    def test_gradients_have_the_type_of_the_parameters(self):
        model = torch.nn.Linear(4, 3, device=DEVICE_TYPE)
        twin = torch.nn.Linear(4, 3)
        twin.load_state_dict(model.state_dict())
        for device, module, x in ((DEVICE_TYPE, model, self.x), ("cpu", twin, self.x.cpu())):
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = module(x).float().square().sum()
            loss.backward()
        self.assertEqual(model.weight.grad.dtype, torch.float32)
        self.assert_bit_equal(model.weight.grad, twin.weight.grad)

    def test_backward_in_another_thread_uses_the_types_of_forward(self):
        weight = torch.randn(4, 4, device=DEVICE_TYPE, requires_grad=True)
        with torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16):
            loss = checkpoint(lambda x: (x @ weight).float(), self.x, use_reentrant=False).sum()
        loss.backward()
        self.assertEqual(weight.grad.dtype, torch.float32)
        plain = self.x.cpu().bfloat16().t() @ torch.ones(4, 4, dtype=torch.bfloat16)
        self.assert_bit_equal(weight.grad, plain.float())

    @parametrize("cast_inputs", [None, torch.float32])
    def test_custom_function_runs_in_the_types_it_asks_for(self, cast_inputs):
        seen = []

        class Product(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type=DEVICE_TYPE, cast_inputs=cast_inputs)
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                seen.append((torch.is_autocast_enabled(DEVICE_TYPE), a.dtype))
                return a @ b

            @staticmethod
            @torch.amp.custom_bwd(device_type=DEVICE_TYPE)
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                seen.append((torch.is_autocast_enabled(DEVICE_TYPE), grad.dtype))
                return grad @ b.t(), a.t() @ grad

        a = torch.randn(4, 4, device=DEVICE_TYPE, dtype=torch.float16, requires_grad=True)
        with torch.autocast(DEVICE_TYPE, dtype=torch.float16):
            result = Product.apply(a, self.x)
        result.sum().backward()
        is_on = cast_inputs is None
        dtype = torch.float16 if is_on else torch.float32
        self.assertEqual(result.dtype, dtype)
        self.assertEqual(seen, [(is_on, dtype), (is_on, dtype)])

    def test_module_of_the_device_has_its_own_names(self):
        amp = torch.openreg.amp
        with amp.autocast(dtype=torch.bfloat16):
            self.assertEqual((self.x @ self.x).dtype, torch.bfloat16)
            with amp.autocast(enabled=False):
                self.assertEqual((self.x @ self.x).dtype, torch.float32)

        class Identity(torch.autograd.Function):
            @staticmethod
            @amp.custom_fwd(cast_inputs=torch.float32)
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            @amp.custom_bwd
            def backward(ctx, grad):
                return grad

        with amp.autocast():
            self.assertEqual(Identity.apply(self.x.half()).dtype, torch.float32)
        self.assertIsInstance(amp.GradScaler(), torch.amp.GradScaler)


def train(device, make_optimizer, scaler, losses, clip=False):
    """Trains a small model; a loss is multiplied by each of `losses`. Returns the model.

    Without autocast, since the CPU's has different policies.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Tanh(), torch.nn.Linear(16, 4)
    ).to(device)
    optimizer = make_optimizer(model.parameters())
    data = torch.randn(len(losses), 5, 8).to(device)
    for x, factor in zip(data, losses, strict=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), torch.ones(5, 4, device=device)) * factor
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return model


OPTIMIZERS = {
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd_single": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "adam_foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "adam_single": lambda p: torch.optim.Adam(p, foreach=False),
    "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
}


class TestGradScaler(OpenRegTestCase):
    @parametrize("name", list(OPTIMIZERS))
    @parametrize("clip", [False, True])
    def test_training_has_the_bits_of_the_cpu(self, name, clip):
        inf = float("inf")
        losses = [1.0, 2.0, inf, 1.0, 1.0, 1.0, inf, 1.0]
        results = {}
        for device in ("cpu", DEVICE_TYPE):
            scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
            model = train(device, OPTIMIZERS[name], scaler, losses, clip=clip)
            results[device] = (model, scaler.get_scale(), scaler._get_growth_tracker())
        self.assertEqual(results[DEVICE_TYPE][1:], results["cpu"][1:])
        for actual, expected in zip(
            results[DEVICE_TYPE][0].parameters(), results["cpu"][0].parameters(), strict=True
        ):
            self.assert_bit_equal(actual, expected)

    def test_training_in_mixed_precision_learns(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        ).to(DEVICE_TYPE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
        scaler = torch.amp.GradScaler(DEVICE_TYPE)
        x = torch.randn(64, 8, device=DEVICE_TYPE)
        losses = []
        for _ in range(50):
            optimizer.zero_grad()
            with torch.autocast(DEVICE_TYPE, dtype=torch.float16):
                loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        self.assertLess(losses[-1], 0.1 * losses[0])

    def test_step_with_infinite_gradients_is_skipped_and_lowers_the_scale(self):
        weight = torch.nn.Parameter(torch.ones(3, device=DEVICE_TYPE))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler(DEVICE_TYPE, init_scale=8.0, growth_interval=2)
        scales = []
        for factor in (float("inf"), 1.0, 1.0, float("nan")):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        self.assertEqual(scales, [4.0, 4.0, 8.0, 4.0])
        self.assert_bit_equal(weight.detach(), torch.full((3,), -1.0))

    def test_unscale_twice_is_refused(self):
        weight = torch.nn.Parameter(torch.ones(3, device=DEVICE_TYPE))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler(DEVICE_TYPE)
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        self.assert_bit_equal(weight.grad, torch.ones(3))
        with self.assertRaisesRegex(RuntimeError, "has already been called"):
            scaler.unscale_(optimizer)

    def test_gradients_of_lower_precision_are_refused(self):
        weight = torch.nn.Parameter(torch.ones(3, device=DEVICE_TYPE, dtype=torch.float16))
        scaler = torch.amp.GradScaler(DEVICE_TYPE, init_scale=2.0)
        scaler.scale(weight.sum().float()).backward()
        with self.assertRaisesRegex(ValueError, "unscale FP16 gradients"):
            scaler.unscale_(torch.optim.SGD([weight], lr=1.0))

    def test_state_survives_a_checkpoint(self):
        scaler = torch.amp.GradScaler(DEVICE_TYPE, init_scale=8.0, growth_interval=1)
        train(DEVICE_TYPE, OPTIMIZERS["sgd_foreach"], scaler, [1.0, 1.0])
        twin = torch.amp.GradScaler(DEVICE_TYPE)
        twin.load_state_dict(scaler.state_dict())
        self.assertEqual(twin.state_dict(), scaler.state_dict())
        self.assertEqual(twin.get_scale(), 32.0)

    def test_disabled_scaler_does_nothing(self):
        scaler = torch.amp.GradScaler(DEVICE_TYPE, enabled=False)
        loss = torch.ones(2, device=DEVICE_TYPE).sum()
        self.assertIs(scaler.scale(loss), loss)
        self.assertEqual(scaler.get_scale(), 1.0)

    @requires_two_devices
    def test_parameters_on_two_devices_share_one_scale(self):
        weights = [torch.nn.Parameter(torch.ones(3, device=f"{DEVICE_TYPE}:{i}")) for i in range(2)]
        optimizers = [torch.optim.SGD([w], lr=1.0) for w in weights]
        scaler = torch.amp.GradScaler(DEVICE_TYPE, init_scale=4.0)
        for factors in ((1.0, 1.0), (1.0, float("inf"))):
            for optimizer in optimizers:
                optimizer.zero_grad()
            for weight, factor in zip(weights, factors, strict=True):
                scaler.scale((weight * factor).sum()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        self.assertEqual(scaler.get_scale(), 2.0)
        self.assert_bit_equal(weights[0].detach(), torch.full((3,), -1.0))
        self.assert_bit_equal(weights[1].detach(), torch.zeros(3))


class Fusion(torch.nn.Module):
    """Adds features of two resolutions, as HRNet does, and classifies."""

    def __init__(self, has_casts):
        super().__init__()
        self.has_casts = has_casts
        self.high = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8))
        self.low = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, stride=3), torch.nn.BatchNorm2d(8))
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x, target):
        high = self.high(x).relu()
        low = self.low(high)
        low = torch.nn.functional.interpolate(
            low.float() if self.has_casts else low, high.shape[2:]
        )
        logits = self.head((high + low).relu().mean((2, 3)))
        if not self.has_casts:
            return torch.nn.functional.cross_entropy(logits, target)
        likelihoods = torch.log_softmax(logits, 1, logits.dtype)
        return torch.nn.functional.nll_loss(likelihoods.float(), target)


class TestTables(OpenRegTestCase):
    def losses(self, device, has_casts):
        torch.manual_seed(0)
        model, x = Fusion(has_casts).to(device), torch.randn(4, 3, 17, 17).to(device)
        target = torch.tensor([0, 1, 2, 3], device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(x, target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_what_differs_from_the_cpu_s_autocast_is_what_the_tables_say(self):
        # The CPU's tables leave interpolation in the lower type, and have cross_entropy in float32.
        actual = self.losses(DEVICE_TYPE, has_casts=False)
        self.assertNotEqual(actual, self.losses("cpu", has_casts=False))
        self.assertEqual(actual, self.losses("cpu", has_casts=True), rtol=0, atol=0)


instantiate_parametrized_tests(TestLists)
instantiate_parametrized_tests(TestAutocast)
instantiate_parametrized_tests(TestGradScaler)

if __name__ == "__main__":
    run_tests()
