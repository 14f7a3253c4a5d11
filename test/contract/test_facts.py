"""csrc/aten/facts/operators.yaml: what it states is true, and cannot be derived.

It is compared with the schemas and registrations of the installed torch, and with the files that
read it. Each rule has a test with mistakes that it finds.
"""

import dataclasses
import functools
import re
import sys

import pytest
import torch
from source_tree import ROOT, backend_files, code_of, relative
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_openreg import _C
from torch_openreg._version import TORCH_RELEASES, release_of

pytestmark = pytest.mark.sample(0.13)

_CODEGEN = ROOT / "csrc" / "aten" / "structured" / "codegen"
sys.path.insert(0, str(_CODEGEN))
import model  # noqa: E402
from facts import Entry, FactError, load_facts, parse_facts  # noqa: E402

FACTS = load_facts()
RELEASE = release_of(str(torch.__version__))

# The layouts for which the backend has a fallback, as dispatch keys name them.
_LAYOUTS = ("", "Sparse", "SparseCsr", "NestedTensor", "Quantized")
_COMPOSITE_KEYS = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


# --- What torch shows


@functools.cache
def _overloads() -> dict[str, list[str]]:
    """Operators of ATen, and the names of their overloads."""
    operators: dict[str, list[str]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            name = name.removeprefix("aten::")
            operators.setdefault(name.split(".")[0], []).append(name)
    return operators


def _operators_of(fact, entry) -> list[str]:
    """The overloads that an entry is about."""
    if fact.names == "overload":
        return [n for n in _overloads().get(entry.name.split(".")[0], []) if n == entry.name]
    names = [entry.name, f"{entry.name}_"] if fact.names == "family" else [entry.name]
    return [overload for name in names for overload in _overloads().get(name, [])]


def _schema(overload: str):
    name, _, rest = overload.partition(".")
    return torch._C._get_schema(f"aten::{name}", rest)


def _arguments(overload: str) -> dict[str, object]:
    return {argument.name: argument for argument in _schema(overload).arguments}


def _tags(overload: str) -> set[str]:
    name, _, rest = overload.partition(".")
    return {tag.name for tag in getattr(getattr(torch.ops.aten, name), rest or "default").tags}


def _is_written(argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _has_tensor(argument) -> bool:
    return "Tensor" in str(argument.type)


def _has_kernel(overload: str, *keys: str) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(f"aten::{overload}", key) for key in keys)


@functools.cache
def _layouts_of_fallback(overload: str) -> frozenset[str]:
    """For tensors of which layouts a call of the operator runs the fallback with a CPU kernel."""
    kernels = dict(
        re.findall(
            r"^(\w+): .*\[([\w ]+)\]$",
            torch._C._dispatch_dump_table(f"aten::{overload}"),
            re.MULTILINE,
        )
    )
    registrations = torch._C._dispatch_dump(f"aten::{overload}")

    def is_ours(key: str) -> bool:
        is_boxed = re.search(rf"^{key}: .* \[ boxed \]$", registrations, re.MULTILINE)
        return kernels.get(key) == "backend fallback" or bool(is_boxed)

    return frozenset(
        layout
        for layout in _LAYOUTS
        if is_ours(f"{layout}PrivateUse1") and f"{layout}CPU" in kernels
    )


@functools.cache
def _structured() -> model.Operators:
    return model.load_operators()


# --- Rules: each returns what is wrong


def _each(facts, names=None):
    """Yields facts with their entries for this release, those of operators that torch has."""
    for fact in facts.values():
        if names is None or fact.name in names:
            for entry in fact.entries_for(RELEASE):
                if operators := _operators_of(fact, entry):
                    yield fact, entry, operators


def names_that_torch_lacks(facts):
    return [
        f"{fact.name}: torch {RELEASE} has no {entry.name}"
        for fact in facts.values()
        for entry in fact.entries_for(RELEASE)
        if not _operators_of(fact, entry)
    ]


def bad_limits(facts):
    """Limits that are no supported releases, or that limit nothing."""
    return [
        f"{fact.name}: {entry.name}: since {entry.since}, until {entry.until}"
        for fact in facts.values()
        for entry in fact.entries
        if (entry.since or entry.until)
        and (
            not {entry.since, entry.until} <= {None, *TORCH_RELEASES}
            or all(map(entry.holds_for, TORCH_RELEASES))
            or not any(map(entry.holds_for, TORCH_RELEASES))
        )
    ]


def _named_arguments(fact, entry) -> list[str]:
    if isinstance(fact.value, dict):
        choice, argument = entry.choice
        quoted = re.findall(r'"(\w+)"', fact.value[choice])
        return [*quoted, *([argument] if argument else [])]
    if fact.value == "argument":
        return [entry.value]
    if fact.value == "arguments":
        return entry.value
    if fact.value == "conditions":
        return [*entry.value, *entry.value.values()]
    return []


def arguments_that_schemas_lack(facts):
    return [
        f"{fact.name}: {entry.name} has no argument {name}"
        for fact, entry, operators in _each(facts)
        for name in _named_arguments(fact, entry)
        if not any(name in _arguments(overload) for overload in operators)
    ]


def choices_without_entry(facts):
    return [
        f"{fact.name}: no entry is {choice}"
        for fact in facts.values()
        if isinstance(fact.value, dict)
        for choice in fact.value.keys() - {entry.choice[0] for entry in fact.entries}
    ]


def entries_of_the_fallback_that_it_never_reads(facts):
    """Entries of operators that run the fallback for no layout for which the fact matters."""
    layouts = {
        "dynamic_shape": {""},
        "sizes_from_numbers": {""},
        "data_checks": {""},
        "sparse_product": {"Sparse", "SparseCsr"},
        "written_unmarked": set(_LAYOUTS),
        "cpu_tensors": set(_LAYOUTS),
        "device_arguments": {""},
    }
    return [
        f"{fact.name}: {entry.name} does not run the fallback"
        for fact, entry, operators in _each(facts, layouts)
        if not any(_layouts_of_fallback(one) & layouts[fact.name] for one in operators)
        # Inductor's pass reads these.
        and not (fact.name == "cpu_tensors" and "indices" in entry.value)
    ]


def entries_that_tags_show(facts):
    """Entries of operators that the fallback does not plan, because of their tags or results."""
    tags = {"dynamic_output_shape", "data_dependent_output"}
    return [
        f"{fact.name}: {entry.name} has the tag, or returns more than tensors"
        for fact, entry, operators in _each(facts, {"dynamic_shape", "data_checks"})
        for overload in operators
        if _tags(overload) & tags
        or not all(str(r.type) in ("Tensor", "List[Tensor]") for r in _schema(overload).returns)
    ]


def arguments_of_other_types(facts):
    found = []
    with_arguments = {"cpu_tensors", "data_checks", "device_arguments", "written_unmarked"}
    for fact, entry, operators in _each(facts, with_arguments):
        for overload in operators:
            arguments = _arguments(overload)
            if fact.value == "conditions":
                tensors, others = entry.value.keys(), entry.value.values()
            elif fact.value == "arguments":
                tensors, others = entry.value, []
            else:
                tensors, others = {entry.choice[1]} - {""}, []
            wrong = [name for name in tensors if name in arguments]
            wrong = [name for name in wrong if not _has_tensor(arguments[name])]
            wrong += [n for n in others if n in arguments and str(arguments[n].type) != "bool"]
            found += [f"{fact.name}: {overload}: {name} has another type" for name in wrong]
    return found


def written_arguments_that_schemas_mark(facts):
    return [
        f"{fact.name}: the schema of {overload} marks {name} as written"
        for fact, entry, operators in _each(facts, {"written_unmarked"})
        for overload in operators
        for name in entry.value
        if name in _arguments(overload) and _is_written(_arguments(overload)[name])
    ]


def operators_without_a_last_result(facts):
    return [
        f"{fact.name}: {overload} does not return several results, the last of which is a tensor"
        for fact, _, operators in _each(facts, {"workspace_last"})
        for overload in operators
        for returned in [_schema(overload).returns]
        if len(returned) < 2 or not _has_tensor(returned[-1])
    ]


def operators_that_run_as_a_whole_anyway(facts):
    generated = {form.overload for one in _structured().generated for form in one.forms}
    return [
        f"{fact.name}: {entry.name} is not composite, or is generated"
        for fact, entry, _ in _each(facts, {"runs_as_whole"})
        if not _has_kernel(entry.name, *_COMPOSITE_KEYS) or entry.name in generated
    ]


def reasons_that_registrations_contradict(facts):
    """A kernel of the CPU's own is one of the operator, or of its out variant."""
    found = []
    for fact, entry, _ in _each(facts, {"runs_as_whole"}):
        name = entry.name.split(".")[0].removesuffix("_")
        variants = [entry.name, *_overloads().get(name, [])]
        if entry.value == "own_kernel":
            is_right = any(_has_kernel(variant, "CPU") for variant in variants)
        else:
            is_right = not _has_kernel(entry.name, "CPU")
        if not is_right:
            found.append(f"{fact.name}: {entry.name}: {entry.value}")
    return found


def layouts_without_a_kernel(facts):
    """Dtypes of operators that have no kernel for tensors of the layout, here or on the CPU."""
    layouts = {"widened": "", "widened_sparse": "Sparse", "widened_sparse_csr": "SparseCsr"}
    return [
        f"{fact.name}: {entry.name} has no kernel"
        for fact, entry, operators in _each(facts, layouts)
        if not any(
            layouts[fact.name] in _layouts_of_fallback(overload)
            or _has_kernel(overload, f"{layouts[fact.name]}PrivateUse1")
            or (not layouts[fact.name] and _has_kernel(overload, *_COMPOSITE_KEYS))
            for overload in operators
        )
    ]


def writers_whose_schemas_write_nothing(facts):
    return [
        f"{fact.name}: {entry.name} writes no argument"
        for fact, entry, operators in _each(facts, {"only_writes", "one_kernel_for_all"})
        if not any(_schema(overload).is_mutable for overload in operators)
    ]


def readers_of_sizes_that_do_not_take_a_tensor(facts):
    return [
        f"{fact.name}: {overload} writes its first argument, or takes no tensor first"
        for fact, _, operators in _each(facts, {"may_ignore_self", "reads_only_sizes"})
        for overload in operators
        for first in _schema(overload).arguments[:1]
        if _is_written(first) or not _has_tensor(first)
    ]


def host_operators_that_registrations_show(facts):
    """Only the CPU's kernels access memory, unless the one for all devices does."""
    found = []
    for fact, entry, operators in _each(facts, {"only_metadata", "one_kernel_for_all"}):
        has_kernel = any(_has_kernel(overload, "CPU") for overload in operators)
        if has_kernel != (fact.name == "only_metadata"):
            found.append(f"{fact.name}: {entry.name}")
    return found


_OF_STRUCTURED = ("launch_mode", "kernel_check", "rewrite", "memory_format", "preparation")


def operators_that_are_not_generated(facts):
    generated = {operator.overload for operator in _structured().generated}
    skipped = set(_structured().skipped)
    return [
        f"{fact.name}: {entry.name} is {'' if fact.name == 'not_generated' else 'not '}generated"
        for fact, entry, _ in _each(facts, {*_OF_STRUCTURED, "not_generated"})
        if entry.name not in (skipped if fact.name == "not_generated" else generated)
    ]


def arguments_that_no_overload_has(facts):
    """Those of the statements in refusals."""
    return [
        f"{fact.name}: {entry.name}: {argument}"
        for fact, entry, operators in _each(facts, {"cuda_dtypes", "not_deterministic"})
        for key in ("if", "unless")
        for argument in entry.value.get(key, ())
        if not any(
            argument == one.name for overload in operators for one in _schema(overload).arguments
        )
    ]


def choices_without_code(facts):
    code = {
        "launch_mode": model.LAUNCH_MODES,
        "kernel_check": model.CHECKS,
        "rewrite": model.REWRITES,
        "preparation": model.PREPARATIONS,
    }
    return [
        f"{name}: {choice}"
        for name, texts in code.items()
        if name in facts
        for choice in texts.keys() ^ facts[name].value.keys()
    ]


def _is_mentioned(fact, path) -> bool:
    if path.suffix != ".py":
        return re.search(rf"\bfacts::k{fact.cpp_name}\b", code_of(path)) is not None
    if path.parent == _CODEGEN:
        return f'"{fact.name}"' in path.read_text()
    return re.search(rf"\b_C\._(operators_)?{fact.name}\b", path.read_text()) is not None


def readers_that_do_not_read(facts):
    return [
        f"{fact.name}: {path} does not read it"
        for fact in facts.values()
        for path in fact.read_by
        if not (ROOT / path).is_file() or not _is_mentioned(fact, ROOT / path)
    ]


def readers_that_are_not_listed(facts):
    sources = [*backend_files(), *(ROOT / "torch_openreg").rglob("*.py")]
    sources += _CODEGEN.glob("*.py")
    return [
        f"{fact.name}: {relative(path)} reads it"
        for fact in facts.values()
        for path in sources
        if relative(path) not in fact.read_by and _is_mentioned(fact, path)
    ]


def _with(fact, *entries, **changes):
    """A table of one fact, with entries of its own."""
    entries = tuple(one if isinstance(one, Entry) else Entry(*one) for one in entries)
    entries = entries or FACTS[fact].entries
    return {fact: dataclasses.replace(FACTS[fact], entries=entries, **changes)}


# Each rule, and tables with a mistake that it finds.
RULES = {
    names_that_torch_lacks: [
        _with("dynamic_shape", ("_padded_dense_to_jagged_backward",)),
        _with("runs_as_whole", ("addr.other", "own_kernel")),
        _with("widened", ("absolute_value", ["bool"])),
        _with("only_metadata", ("resize_.other",), names="overload"),
    ],
    bad_limits: [
        _with("dynamic_shape", Entry("cholesky", until="1.0")),
        _with("dynamic_shape", Entry("cholesky", since=TORCH_RELEASES[0])),
        _with("dynamic_shape", Entry("cholesky", until=TORCH_RELEASES[-1])),
        _with("dynamic_shape", Entry("mm", since=TORCH_RELEASES[-1], until=TORCH_RELEASES[0])),
    ],
    arguments_that_schemas_lack: [
        _with("data_checks", ("masked_fill.Tensor", {"if_converted": "number"})),
        _with("data_checks", ("multinomial", "if_unbounded")),
        _with("launch_mode", ("mm", "throwing_on_request")),
        _with("memory_format", ("reflection_pad3d", "input")),
        _with("cpu_tensors", ("index_put", ["values", "places"])),
        _with("written_unmarked", ("native_batch_norm", {"running_mean": "train"})),
    ],
    choices_without_entry: [_with("launch_mode", ("cat", "without_trial_run"))],
    entries_of_the_fallback_that_it_never_reads: [
        _with("dynamic_shape", ("_ctc_loss.Tensor_out",)),
        _with("sizes_from_numbers", ("arange",)),
        _with("data_checks", ("linalg_eigvals", "always")),
        _with("data_checks", ("logspace", "if_single")),
        _with("data_checks", ("index_fill.int_Tensor_out", {"if_converted": "value"})),
        _with("sparse_product", ("addmv",)),
        _with("sparse_product", ("mv.out",)),
        _with("cpu_tensors", ("_nested_view_from_buffer_copy", ["nested_size"])),
        _with("written_unmarked", ("dropout", {"input": "train"})),
    ],
    entries_that_tags_show: [
        _with("dynamic_shape", ("linalg_lstsq.out",)),
        _with("dynamic_shape", ("_ctc_loss.Tensor",)),
        _with("data_checks", ("equal", "always")),
    ],
    arguments_of_other_types: [
        _with("cpu_tensors", ("index_put", ["accumulate"])),
        _with("data_checks", ("multinomial", {"if_given": "num_samples"})),
        _with("written_unmarked", ("native_batch_norm", {"running_mean": "eps"})),
        _with("written_unmarked", ("native_batch_norm", {"eps": "training"})),
    ],
    written_arguments_that_schemas_mark: [
        _with("written_unmarked", ("native_batch_norm", {"save_mean": "training"})),
    ],
    operators_without_a_last_result: [
        _with("workspace_last", ("mm",)),
        _with("workspace_last", ("_batch_norm_impl_index",)),
    ],
    operators_that_run_as_a_whole_anyway: [
        _with("runs_as_whole", ("mode", "some_devices")),
        _with("runs_as_whole", ("mm", "own_kernel")),
    ],
    reasons_that_registrations_contradict: [
        _with("runs_as_whole", ("rot90", "own_kernel")),
        _with("runs_as_whole", ("addr", "many_kernels")),
    ],
    layouts_without_a_kernel: [
        _with("widened_sparse", ("cholesky_inverse", ["float16"])),
        _with("widened_sparse_csr", ("lerp", ["float16"])),
        _with("widened", ("_use_cudnn_ctc_loss", ["float16"])),
    ],
    writers_whose_schemas_write_nothing: [
        _with("only_writes", ("detach",), names="overload"),
        _with("one_kernel_for_all", ("clone",), names="overload"),
    ],
    readers_of_sizes_that_do_not_take_a_tensor: [
        _with("reads_only_sizes", ("uniform_",)),
        _with("may_ignore_self", ("addmm_",)),
        _with("reads_only_sizes", ("zeros",)),
    ],
    host_operators_that_registrations_show: [
        _with("only_metadata", ("resize_as_",)),
        _with("one_kernel_for_all", ("fill_",)),
    ],
    operators_that_are_not_generated: [
        _with("launch_mode", ("linalg_eig", "throwing")),
        _with("memory_format", ("mm.out", "self")),
        _with("not_generated", ("mm", "no reason")),
    ],
    arguments_that_no_overload_has: [
        _with("cuda_dtypes", ("mm", {"name": "addmm_cuda", "if": {"reduce": "sum"}})),
        _with("not_deterministic", ("histc", {"name": "_histc_cuda", "unless": {"input": "1"}})),
    ],
    choices_without_code: [_with("rewrite", value={"half_result": "the result is converted"})],
    readers_that_do_not_read: [
        _with("dynamic_shape", read_by=("csrc/aten/fallback/Fallback.cpp",)),
        _with("dynamic_shape", read_by=("csrc/aten/fallback/Missing.cpp",)),
        _with("launch_mode", read_by=("csrc/aten/structured/codegen/emit.py",)),
    ],
    readers_that_are_not_listed: [
        _with("widened", read_by=("csrc/aten/dtypes/WiderTypes.h",)),
        _with("cpu_tensors", read_by=("csrc/aten/fallback/BoxedCall.cpp",)),
    ],
}
_RULES = [subtest(rule, name=rule.__name__) for rule in RULES]
_MISTAKES = [
    subtest((rule, table), name=f"{rule.__name__}_{number}")
    for rule, tables in RULES.items()
    for number, table in enumerate(tables, 1)
]

_SOUND = """\
shape:
  meaning: It has a shape.
  names: overload
  read_by: [a.cpp]
  value: {always: in each call, if_given: if given}
  entries:
    - add.out: always
    - mm: {if_given: self}
      until: "2.13"
"""
# What is replaced, by what, and the error's text.
_MALFORMED = {
    "unsorted": ("add.out", "zero", "shape: expected mm before zero"),
    "duplicate": ("add.out", "mm", "shape: expected one entry for mm, got more"),
    "unknown_choice": ("add.out: always", "add.out: never", "add.out: expected always or if_given"),
    "unknown_choice_with_argument": ("{if_given: self}", "{unless: self}", "mm: expected always"),
    "missing_value": ("add.out: always", "add.out", "add.out: expected always or if_given"),
    "value_of_a_name": (
        "  value: {always: in each call, if_given: if given}\n",
        "",
        "no value",
    ),
    "unknown_kind_of_value": (
        "{always: in each call, if_given: if given}",
        "numbers",
        "dtype",
    ),
    "unknown_kind_of_names": ("names: overload", "names: kernel", "expected names: overload or"),
    "overload_of_an_operator": (
        "names: overload",
        "names: operator",
        "of an operator, got add.out",
    ),
    "unknown_key": ("  read_by", "  written_by: [a.cpp]\n  read_by", "expected the keys"),
    "missing_key": ("  meaning: It has a shape.\n", "", "expected the keys"),
    "no_reader": ("[a.cpp]", "[]", "expected files that read the fact"),
    "no_sentence": ("It has a shape.", "shapes", "expected a meaning that is a sentence"),
    "bad_release": ('"2.13"', '"newest"', "expected a name with a value and releases"),
    "fact_twice": ("shape:\n", "shape: {}\nshape:\n", "shape: expected one definition, got more"),
}


class TestFacts(TestCase):
    @parametrize("rule", _RULES)
    def test_rule_holds(self, rule):
        self.assertEqual(rule(FACTS), [])

    @parametrize("rule,table", _MISTAKES)
    def test_rule_finds_the_mistake(self, rule, table):
        self.assertNotEqual(rule(table), [])

    def test_a_sound_table_is_read(self):
        fact = parse_facts(_SOUND)["shape"]
        self.assertEqual(
            [entry.choice for entry in fact.entries], [("always", ""), ("if_given", "self")]
        )
        self.assertEqual(set(fact.values_for("2.13")), {"add.out", "mm"})
        self.assertEqual(set(fact.values_for("2.14")), {"add.out"})

    @parametrize("old,new,text", [subtest(one, name=name) for name, one in _MALFORMED.items()])
    def test_a_malformed_table_is_refused(self, old, new, text):
        self.assertIn(old, _SOUND)
        with self.assertRaisesRegex(FactError, re.escape(text)):
            parse_facts(_SOUND.replace(old, new))

    def test_the_build_has_the_table_of_the_sources(self):
        self.assertEqual(
            _C._operators_faked_as_on_cpu(), list(FACTS["faked_as_on_cpu"].values_for(RELEASE))
        )
        self.assertEqual(_C._cpu_tensors(), FACTS["cpu_tensors"].values_for(RELEASE))


instantiate_parametrized_tests(TestFacts)

if __name__ == "__main__":
    run_tests()
