"""The generator's model of torch's structured operators.

`load_operators` reads the operators that the installed torch declares, and determines for each its
C++ forms and how its arguments are passed from the calling thread to the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torchgen
from facts import installed_release, load_facts
from torchgen.api import cpp, meta, native
from torchgen.api.types import NativeSignature
from torchgen.context import native_function_manager
from torchgen.gen import ParsedYaml, get_grouped_native_functions, parse_native_yaml
from torchgen.model import (
    DeviceCheckType,
    DispatchKey,
    NativeFunction,
    NativeFunctionsGroup,
    SchemaKind,
)

# The C++ text for each choice in the table of facts, csrc/aten/facts/operators.yaml.

# Launch modes.
LAUNCH_MODES: dict[str, str] = {
    "throwing": "LaunchMode::OnCallingThread",
    "throwing_on_request": "check_errors ? LaunchMode::OnCallingThread : LaunchMode::AfterTrialRun",
    "run_of_ones": "LaunchMode::AfterRunOfOnes",
    "without_trial_run": "LaunchMode::WithoutTrialRun",
}

# Statements that check arguments.
CHECKS: dict[str, str] = {
    "approximation": "native::get_gelutype_enum(approximate);",
    "cpu_numbers": "checkAddcmulNumbers(self, tensor1);",
    "dimension": "maybe_wrap_dim(dim, self.dim());",
    "indexed_dtype": "checkIndexes(self.scalar_type());",
    "joined_dtypes": "checkJoins(*op.outputs()[0], tensors, dim);",
    "samples_2d": "native::fractional_max_pool_check_shape<2>(self, random_samples);",
    "samples_3d": "native::fractional_max_pool_check_shape<3>(self, random_samples);",
}

# Whether a result is a conjugate.
CONJUGATES: dict[str, str] = {
    "not_left": "!left",
}

# Statements before the kernel.
PREPARATIONS: dict[str, str] = {
    "unpivoted": "if (!pivot) { return decomposeWithoutPivots(A, P, L, U); }",
    "unpivoted_factors": (
        "if (!pivot) { return factorWithoutPivots(A, check_errors, LU, pivots, info); }"
    ),
    "resized_twice": "if (reduction != Reduction::None) { out.resize_({0}); }",
}


@dataclass(frozen=True)
class Rewrite:
    """A call that is not passed to the CPU's kernel, and the equivalent call that replaces it."""

    condition: str
    result: str  # of the functional form
    is_functional_only: bool = False  # `out=` is not rewritten


REWRITES: dict[str, Rewrite] = {
    "float_result": Rewrite("half_to_float", "functional(self.to(kFloat), dim, false)"),
    "input_dtype": Rewrite(
        "grad_output.scalar_type() != input_dtype",
        "functional(grad_output, output, dim, grad_output.scalar_type()).to(input_dtype)",
    ),
    # See Note [Many small tensors].
    "many_tensors": Rewrite(
        "const auto joined = catOfMany(tensors, dim); joined.has_value()",
        "*joined",
        is_functional_only=True,
    ),
}


@dataclass(frozen=True)
class Passing:
    """How an argument of one C++ type is passed. `{0}` stands for the argument's name."""

    is_operand: bool = False  # a tensor that the launch helper aliases
    kernel: str = "{0}"  # as an argument of the CPU kernel
    meta: str = "{0}"  # as an argument of the shape function


UNCHANGED = Passing()
PASSING: dict[str, Passing] = {
    "bool": UNCHANGED,
    "double": UNCHANGED,
    "int64_t": UNCHANGED,
    "ScalarType": UNCHANGED,
    "const Scalar&": UNCHANGED,
    "std::optional<bool>": UNCHANGED,
    "std::optional<double>": UNCHANGED,
    "std::optional<int64_t>": UNCHANGED,
    "std::optional<ScalarType>": UNCHANGED,
    "const std::optional<Scalar>&": Passing(meta="scalarRef({0})"),
    "c10::string_view": UNCHANGED,
    "std::optional<c10::string_view>": UNCHANGED,
    "IntArrayRef": UNCHANGED,
    "OptionalIntArrayRef": UNCHANGED,
    "const Tensor&": Passing(is_operand=True),
    "const std::optional<Tensor>&": Passing(
        is_operand=True, kernel="optionalTensor({0})", meta="tensorRef({0})"
    ),
    "const ITensorListRef&": UNCHANGED,
    "const c10::List<std::optional<Tensor>>&": UNCHANGED,
}

# Rewritten before use, by deviceIndices().
INDEX_LIST = "const c10::List<std::optional<Tensor>>&"


@dataclass(frozen=True)
class Argument:
    name: str
    type: str

    @property
    def passing(self) -> Passing:
        return PASSING[self.type]

    @property
    def on_host(self) -> str:
        """The expression for its value once the form has prepared it."""
        return f"{self.name}_on_device" if self.type == INDEX_LIST else self.name

    @property
    def for_meta(self) -> str:
        """The expression that is passed to the shape function."""
        return self.passing.meta.format(self.on_host)


@dataclass(frozen=True)
class Form:
    """One overload of an operator: functional, in-place or out."""

    kind: SchemaKind
    overload: str  # "add.out"
    native_name: str  # "add_out", as the wrapper of a structured kernel calls it
    arguments: tuple[Argument, ...]  # as in the C++ signature, outputs last
    returns: str
    same_device: tuple[str, ...]  # arguments that must be on one device, in the order to check

    @property
    def function(self) -> str:
        return str(self.kind.name)


@dataclass(frozen=True)
class Operator:
    """A group of overloads that share a shape function and a kernel."""

    schema: str  # of the functional overload
    overload: str  # "add.Tensor"
    namespace: str  # "add_Tensor"
    root: str  # "add": names the headers
    cpu_function: str  # "add_outf", in at::cpu
    inputs: tuple[Argument, ...]
    outputs: tuple[str, ...]
    forms: tuple[Form, ...]

    @property
    def signature(self) -> tuple[str, ...]:
        """The C++ type of the functional form."""
        return (self.forms[0].returns, *(argument.type for argument in self.inputs))

    @property
    def launch_mode(self) -> str | None:
        """The C++ expression of the launch mode; None for the usual one."""
        choice = fact_of(self.overload, "launch_mode")
        return None if choice is None else LAUNCH_MODES[choice]

    @property
    def has_refused_dtypes(self) -> bool:
        """Whether CUDA lacks dtypes of the operator; its forms are then templates of the launch."""
        families = load_facts()["cuda_dtypes"].values_for(installed_release())
        return self.overload.split(".")[0].removesuffix("_") in families

    @property
    def check(self) -> str | None:
        choice = fact_of(self.overload, "kernel_check")
        return None if choice is None else CHECKS[choice]

    @property
    def rewrite(self) -> Rewrite | None:
        choice = fact_of(self.overload, "rewrite")
        return None if choice is None else REWRITES[choice]

    @property
    def format_source(self) -> str | None:
        """The argument whose memory format the output gets."""
        return fact_of(self.overload, "memory_format")

    @property
    def conjugate(self) -> str | None:
        """The condition under which the output is a conjugate, if its numbers are complex."""
        choice = fact_of(self.overload, "conjugate")
        return None if choice is None else CONJUGATES[choice]

    @property
    def preparation(self) -> str | None:
        choice = fact_of(self.overload, "preparation")
        return None if choice is None else PREPARATIONS[choice]


@dataclass(frozen=True)
class Operators:
    generated: tuple[Operator, ...]  # sorted by overload
    skipped: dict[str, str]  # functional overload -> reason


def fact_of(overload: str, fact: str) -> str | None:
    """The value of an operator's entry in the table of facts; None if it has none."""
    value = load_facts()[fact].values_for(installed_release()).get(overload)
    return None if value is None else str(value)


def load_operators() -> Operators:
    """Reads the structured operators of the installed torch."""
    generated: list[Operator] = []
    skipped: dict[str, str] = {}
    for group, has_kernel in _structured_groups():
        overload = str(group.functional.func.name)
        if not has_kernel:
            skipped[overload] = "no CPU kernel"
            continue
        operator = _operator(group)
        foreign = sorted({a.type for a in operator.inputs if a.type not in PASSING})
        reason = fact_of(overload, "not_generated")
        if reason is not None:
            skipped[overload] = reason
        elif foreign:
            skipped[overload] = f"no owning form of {', '.join(foreign)}"
        else:
            generated.append(operator)
    generated.sort(key=lambda operator: operator.overload)
    return Operators(tuple(generated), dict(sorted(skipped.items())))


@cache
def declarations() -> ParsedYaml:
    """Reads native_functions.yaml of the installed torch."""
    folder = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    return parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))


def _structured_groups() -> Iterator[tuple[NativeFunctionsGroup, bool]]:
    """Yields each group with whether the CPU has a kernel of it."""
    parsed = declarations()
    cpu = parsed.backend_indices[DispatchKey.CPU]
    for group in get_grouped_native_functions(parsed.native_functions):
        if isinstance(group, NativeFunctionsGroup) and group.structured:
            yield group, cpu.has_kernel(group.out)


def _operator(group: NativeFunctionsGroup) -> Operator:
    functional = group.functional
    forms = tuple(_form(function) for function in group.functions())
    return Operator(
        schema=str(functional.func),
        overload=str(functional.func.name),
        namespace=meta.name(group),
        root=group.root_name,
        cpu_function=cpp.name(group.out.func, faithful_name_for_out_overloads=True),
        inputs=next(f.arguments for f in forms if f.kind is SchemaKind.functional),
        outputs=tuple(argument.name for argument in group.out.func.arguments.out),
        forms=forms,
    )


def _form(function: NativeFunction) -> Form:
    schema = function.func
    # Signatures without SymInt: a kernel computes with real sizes.
    with native_function_manager(function):
        signature = NativeSignature(schema, prefix="", symint=False)
        arguments = tuple(Argument(a.name, _shorten(a.type)) for a in signature.arguments())
        returns = _shorten(signature.returns_type().cpp_type())
    checked: tuple[str, ...] = ()
    if function.device_check is not DeviceCheckType.NoCheck:
        candidates = [*schema.arguments.out, *schema.arguments.flat_positional]
        checked = tuple(a.name for a in candidates if a.type.is_tensor_like())
    return Form(
        kind=schema.kind(),
        overload=str(schema.name),
        native_name=native.name(schema),
        arguments=arguments,
        returns=returns,
        same_device=checked,
    )


def _shorten(cpp_type: str) -> str:
    """A type as written inside namespace at."""
    return (
        cpp_type.replace("::std::", "std::")
        .replace("at::", "")
        .replace(" &", "&")
        .replace(",", ", ")
    )
