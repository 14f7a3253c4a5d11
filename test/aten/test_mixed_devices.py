"""Calls with tensors on several devices: what CUDA refuses, and a CPU tensor without dimensions.

The table is torch's native_functions.yaml, and the calls are those that the samples of torch's
OpInfos make: each operator that is called is called again with one of its tensors on the CPU.
"""

import contextlib
import functools
import itertools
import re
import sys
from pathlib import Path

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_CODEGEN = Path(__file__).resolve().parents[2] / "csrc" / "aten" / "structured" / "codegen"
sys.path.insert(0, str(_CODEGEN))
from device_checks import device_checks  # noqa: E402
from facts import installed_release, load_facts  # noqa: E402
from model import declarations  # noqa: E402
from torchgen.gen import get_grouped_native_functions  # noqa: E402
from torchgen.model import NativeFunctionsGroup  # noqa: E402

WRAPPERS = {entry.name: entry.value for entry in device_checks().entries if entry.value}
KEY = "CUDA" if DEVICE_TYPE == "cuda" else "PrivateUse1"
# Calls of one overload that are tried: a sample may pass None for an optional tensor.
_CALLS = 2
_SAMPLES = 3


def name_of(overload):
    name = overload.name().removeprefix("aten::")
    return name.removesuffix(".default")


def on_device(value):
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def is_plain(value):
    return not isinstance(value, torch.Tensor) or (
        value.layout is torch.strided and not value.is_quantized and not value.is_nested
    )


def copied(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def moved(device, value):
    if isinstance(value, torch.device):
        return torch.device(device)
    return value.to(device) if on_device(value) else value


class Recorder(TorchDispatchMode):
    """Keeps the first calls of each operator of ATen with tensors of the device."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        known = self.calls.setdefault(function, [])
        leaves = tree_leaves((args, kwargs))
        if len(known) < _CALLS and sum(map(on_device, leaves)) > 0 and all(map(is_plain, leaves)):
            known.append(tree_map(copied, (args, kwargs)))
        return function(*args, **kwargs)


def add_out_variants(calls):
    """Calls that write given tensors, of the operators whose functional calls are known."""
    packet = torch.ops.aten
    for group in get_grouped_native_functions(declarations().native_functions):
        if not isinstance(group, NativeFunctionsGroup) or group.functional is None:
            continue
        names = [str(one.func.name) for one in (group.functional, group.out)]
        functional, out = (
            getattr(getattr(packet, name.split(".")[0]), name.partition(".")[2] or "default")
            for name in names
        )
        names = [argument.name for argument in group.out.func.arguments.out]
        if calls.get(out):
            continue
        for args, kwargs in calls.get(functional, ()):
            try:
                results = functional(*tree_map(copied, args), **tree_map(copied, kwargs))
            except RuntimeError:
                continue  # what this device refuses
            results = (results,) if isinstance(results, torch.Tensor) else tuple(results)
            if len(results) == len(names) and all(map(on_device, results)):
                given = {name: result.clone() for name, result in zip(names, results, strict=True)}
                calls.setdefault(out, []).append((args, {**kwargs, **given}))


@functools.cache
def recorded_calls():
    """Operator -> calls."""
    recorder = Recorder()
    for op in op_db:
        dtypes = sorted(op.supported_dtypes("cpu"), key=str)
        if not dtypes:
            continue  # only for CUDA
        dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
        needs_grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        samples = op.sample_inputs(DEVICE_TYPE, dtype, requires_grad=needs_grad)
        # A sample that this device refuses, or does not make, is left out.
        with contextlib.suppress(AssertionError, RuntimeError, TypeError, ValueError):
            for sample in itertools.islice(samples, _SAMPLES):
                with recorder:
                    result = op(sample.input, *sample.args, **sample.kwargs)
                    for one in tree_leaves(result):
                        if on_device(one) and one.requires_grad and one.is_floating_point():
                            one.sum().backward(retain_graph=True)
                            break
    add_out_variants(recorder.calls)
    return {
        function: calls
        for function, calls in recorder.calls.items()
        if calls and function.namespace == "aten"
    }


class Place:
    """A tensor among the arguments of a call, which another one can replace."""

    def __init__(self, argument, keys, tensor):
        self.argument = argument
        self.keys = keys
        self.tensor = tensor

    def replaced(self, call, tensor):
        args, kwargs = tree_map(copied, call)
        first, *rest = self.keys
        args = list(args)
        container = args if isinstance(first, int) else kwargs
        if rest:
            container[first] = list(container[first])
            container[first][rest[0]] = tensor
        else:
            container[first] = tensor
        return args, kwargs


def places_of(function, call):
    """The tensors on the device, those of a list one by one."""
    args, kwargs = call
    arguments = function._schema.arguments
    named = {argument.name: argument for argument in arguments}
    given = [(index, arguments[index], value) for index, value in enumerate(args)]
    given += [(name, named[name], value) for name, value in kwargs.items() if name in named]
    for key, argument, value in given:
        if on_device(value):
            yield Place(argument, (key,), value)
        elif isinstance(value, (list, tuple)):
            for index, one in enumerate(value):
                if on_device(one):
                    yield Place(argument, (key, index), one)


def is_checked(argument):
    return argument.is_out or not argument.kwarg_only


def is_composed(name):
    """Whether ATen composes the operator on this device, though CUDA has a kernel."""
    table = torch._C._dispatch_dump_table(f"aten::{name}")
    return re.search(rf"^{KEY}: .*Composite", table, re.MULTILINE) is not None


def error_of(function, call):
    args, kwargs = call
    try:
        function(*args, **kwargs)
        torch.accelerator.synchronize()
    except Exception as error:
        return error
    return None


class TestMixedDevices(OpenRegTestCase):
    def refused(self, names):
        """The operators of these names that were called, with what is wrong of them."""
        tried, wrong = set(), []
        for function, calls in recorded_calls().items():
            name = name_of(function)
            if name not in names:
                continue
            for call in calls:
                places = [p for p in places_of(function, call) if is_checked(p.argument)]
                if len(places) < 2:
                    continue
                tried.add(name)
                for place in places:
                    number = torch.zeros((), dtype=place.tensor.dtype)
                    error = error_of(function, place.replaced(call, number))
                    wrapper = f"wrapper_{KEY}_{WRAPPERS[name]})"
                    if is_composed(name) and isinstance(error, RuntimeError):
                        continue  # composed here, with the errors of its parts
                    if not isinstance(error, RuntimeError) or not (
                        str(error).startswith("Expected all tensors to be on the same device")
                        and f"in method {wrapper}" in str(error).splitlines()[0]
                    ):
                        first = str(error).splitlines()[0] if error is not None else None
                        wrong.append(f"{name}: {place.argument.name}: {type(error)} {first}")
        return tried, wrong

    def test_operators_whose_wrapper_checks_refuse_a_number_on_the_cpu(self):
        tried, wrong = self.refused(WRAPPERS)
        self.assertFalse(wrong, "\n".join(wrong))
        self.assertGreater(len(tried), 250)

    @parametrize(
        "call",
        [
            subtest(lambda x, cpu: x + cpu, name="add"),
            subtest(lambda x, cpu: cpu * x, name="mul"),
            subtest(lambda x, cpu: x[cpu.long()], name="index"),
            subtest(lambda x, cpu: x.index_put_((cpu.long(),), cpu), name="index_put"),
            subtest(lambda x, cpu: torch.where(x > 0, x, cpu), name="where"),
            subtest(lambda x, cpu: x.fill_(cpu), name="fill_"),
            subtest(lambda x, cpu: x.masked_fill(x > 0, cpu), name="masked_fill"),
            subtest(lambda x, cpu: x.masked_fill_(x > 0, cpu), name="masked_fill_"),
            subtest(lambda x, cpu: x.index_fill(0, (x > 9).long(), cpu), name="index_fill"),
            subtest(lambda x, cpu: torch._foreach_mul([x], cpu)[0], name="foreach_mul"),
            subtest(lambda x, cpu: torch._foreach_add([x], [cpu])[0], name="foreach_add"),
            subtest(lambda x, cpu: x.copy_(cpu), name="copy_"),
            subtest(lambda x, cpu: torch.ldexp(x, cpu), name="ldexp"),
            subtest(lambda x, cpu: torch.lerp(x, x, cpu), name="lerp"),
            subtest(lambda x, cpu: x.to(torch.complex64) ** cpu, name="pow"),
        ],
    )
    def test_a_number_on_the_cpu_is_taken(self, call):
        number = torch.tensor(2.0)
        expected = call(torch.arange(5.0), number)
        for _ in range(2):
            self.assert_bit_equal(call(torch.arange(5.0).to(DEVICE_TYPE), number), expected)

    @parametrize(
        "call, wrapper",
        [
            subtest((lambda x, cpu: torch.stack([cpu, x[0]]), "cat"), name="stack"),
            subtest(
                (lambda x, cpu: torch.index_select(x, 0, cpu.long()), "_index_select"),
                name="index_select",
            ),
            subtest(
                (
                    lambda x, cpu: torch.nn.functional.embedding(cpu.long(), x[:, None]),
                    "_index_select",
                ),
                name="embedding",
            ),
            subtest((lambda x, cpu: x.put_(cpu.long(), x[:1]), "_put_"), name="put_"),
            subtest(
                (lambda x, cpu: torch.searchsorted(x, cpu), "Tensor_searchsorted"),
                name="searchsorted",
            ),
            subtest((lambda x, cpu: torch.addmm(cpu, x[:, None], x[None]), "addmm"), name="addmm"),
            subtest((lambda x, cpu: torch.equal(x[0], cpu), "_equal"), name="equal"),
        ],
    )
    def test_composite_operators_refuse_what_they_call(self, call, wrapper):
        x = torch.arange(5.0, device=DEVICE_TYPE)
        for _ in range(2):
            with self.assertRaisesRegex(
                RuntimeError,
                rf"^Expected all tensors to be on the same device.* wrapper_{KEY}_{wrapper}\)",
            ):
                call(x, torch.tensor(1.0))

    @parametrize("amsgrad", [False, True])
    def test_a_fused_optimizer_refuses_steps_on_the_cpu(self, amsgrad):
        p = torch.nn.Parameter(torch.ones(3, device=DEVICE_TYPE))
        for lr in (0.1, torch.tensor(0.1), torch.tensor(0.1, device=DEVICE_TYPE)):
            optimizer = torch.optim.Adam([p], lr=lr, fused=True, amsgrad=amsgrad)
            p.grad = torch.ones_like(p)
            optimizer.step()
            optimizer.state[p]["step"] = optimizer.state[p]["step"].cpu()
            with self.assertRaisesRegex(
                RuntimeError, "^Expected all tensors to be on the same dev"
            ):
                optimizer.step()

    def test_a_mask_on_the_cpu_is_refused(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        for mask in (torch.tensor(True), torch.ones(3, dtype=torch.bool)):
            for call in (x.masked_fill, x.masked_fill_):
                for value in (2.0, torch.tensor(2.0)):
                    with self.assertRaisesRegex(
                        RuntimeError,
                        "^expected self and mask to be on the same device, but got mask on cpu and "
                        f"self on {DEVICE_TYPE}:0",
                    ):
                        call(mask, value)

    @parametrize("name", [entry.name for entry in load_facts()["device_arguments"].entries])
    def test_arguments_that_kernels_check_are_listed(self, name):
        listed = load_facts()["device_arguments"].values_for(installed_release())[name]
        tried = set()
        for function, calls in recorded_calls().items():
            if name_of(function).split(".")[0] != name or name_of(function) in WRAPPERS:
                continue
            for call in calls:
                for place in places_of(function, call):
                    if place.argument.name in listed:
                        number = torch.zeros((), dtype=place.tensor.dtype)
                        error = error_of(function, place.replaced(call, number))
                        self.assertIsInstance(error, RuntimeError)
                        self.assertIn("Expected all tensors to be on the same device", str(error))
                        tried.add(place.argument.name)
        self.assertLessEqual(tried, set(listed))

    @requires_two_devices
    def test_tensors_of_two_devices_are_refused_by_the_wrapper(self):
        x, index = (
            torch.ones(3, device=f"{DEVICE_TYPE}:0"),
            torch.tensor([0], device=f"{DEVICE_TYPE}:1"),
        )
        with self.assertRaisesRegex(
            RuntimeError, rf"^Expected all tensors.*same device.* wrapper_{KEY}__index_select\)"
        ):
            x.index_select(0, index)


def type_of(tensor):
    """The type's name as torch's C++ code writes it."""
    return re.sub(r"torch\.openreg\.(\w+)Tensor", r"openreg\1Type", tensor.type())


class TestTexts(OpenRegTestCase):
    """Errors of calls that combine the CPU and the device in another way."""

    def test_a_convolution_names_the_types_of_its_arguments(self):
        x, w = torch.ones(1, 1, 4), torch.ones(1, 1, 2)
        ours = x.to(DEVICE_TYPE)
        cases = [
            (x, w.to(DEVICE_TYPE), None, "weight"),
            (ours, w, None, "weight"),
            (ours.half(), w.to(DEVICE_TYPE), None, "weight"),
            (ours, w.to(DEVICE_TYPE), torch.ones(1), "bias"),
        ]
        for given, weight, bias, name in cases:
            other = weight if name == "weight" else bias
            text = (
                f"Input type ({type_of(given)}) and {name} type ({type_of(other)}) should be the "
                "same"
            )
            for call in (torch.conv1d, torch.nn.functional.conv_transpose1d):
                with self.assertRaisesRegex(RuntimeError, "^" + re.escape(text)):
                    call(given, weight, bias)

    def test_generators_of_another_device_type_are_named(self):
        tried = 0
        for function, calls in recorded_calls().items():
            names = [a.name for a in function._schema.arguments if "Generator" in str(a.type)]
            for call in calls if names else []:
                for here, there in (("cpu", DEVICE_TYPE), (DEVICE_TYPE, "cpu")):
                    args, kwargs = tree_map(functools.partial(moved, here), call)
                    kwargs = {**kwargs, names[0]: torch.Generator(there)}
                    error = error_of(function, (args, kwargs))
                    self.assertIsInstance(error, RuntimeError, function)
                    self.assertIn(
                        f"Expected a '{here}' device type for generator but found '{there}'",
                        str(error),
                    )
                    tried += 1
        self.assertGreater(tried, 10)


instantiate_parametrized_tests(TestMixedDevices)


if __name__ == "__main__":
    run_tests()
