"""What a dry run skips, what it makes up, and what the host learns of that."""

import json

import pytest
from common import DEVICE_TYPE, run_child, run_children, run_program, run_tests
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
)

pytestmark = pytest.mark.sample(0.5)

_BEGIN = """
import json, os, warnings
import torch
from torch_openreg import _C
from torch_openreg.extras import dry_run
dry_run.start(False)
assert _C._dry_run_is_on()
device = torch.accelerator.current_accelerator()

def reads():
    return _C._dry_run_counts()["made_up_reads"]

"""
_DRY = {"OPENREG_DRY_RUN": "1", "OPENREG_DRY_RUN_SUMMARY": "0"}


def dry(code, **settings):
    """Runs a program in a dry run, without its warnings; returns what it prints, read as JSON."""
    quiet = 'warnings.simplefilter("ignore")\n'
    return json.loads(run_child(_BEGIN + quiet + code, _DRY | settings))


class TestSkippedWork(TestCase):
    def test_large_kernels_are_skipped_and_small_ones_run(self):
        counts = dry("""
before = _C._dry_run_counts()
small = torch.ones(100, device=device) + 1
large = torch.ones(100_000, device=device) + 1
after = _C._dry_run_counts()
print(json.dumps([after[name] - before[name] for name in ("launches_run", "launches_skipped")]))
""")
        self.assertEqual(counts, [2, 2])

    def test_small_values_are_real_and_large_ones_are_zeros_on_the_host(self):
        values = dry("""
small = torch.arange(5).to(device) * 2
large = torch.full((100_000,), 3.0).to(device)
equal = torch.equal(large, large + 1), torch.equal(large, large[1:])
print(json.dumps([small.tolist(), large.cpu().unique().tolist(), large[7].item(), equal]))
""")
        self.assertEqual(values, [[0, 2, 4, 6, 8], [0.0], 0.0, [True, False]])

    @parametrize("is_pinned", [False, True])
    def test_a_large_copy_to_the_host_writes_zeros(self, is_pinned):
        values = dry(f"""
host = torch.ones(100_000)
host = host.pin_memory() if {is_pinned} else host
host.copy_(torch.full((100_000,), 3.0, device=device), non_blocking=True)
torch.accelerator.synchronize()
print(json.dumps(host.unique().tolist()))
""")
        self.assertEqual(values, [0.0])

    def test_a_small_result_of_skipped_work_is_zero_whatever_the_memory_had(self):
        values = dry("""
for _ in range(3):
    old = torch.full((10,), 7.0, device=device)
    del old
    new = torch.full((100, 1000), 2.0, device=device).view(10, 10_000).sum(1)
    print(json.dumps(new.tolist()) if _ == 2 else "", end="")
""")
        self.assertEqual(values, [0.0] * 10)

    def test_a_part_of_a_small_tensor_is_filled_where_skipped_work_writes_it(self):
        values = dry("""
x = torch.arange(12.0).view(3, 4).to(device)
torch.sum(torch.ones(3, 100_000, device=device), 1, out=x[:, 1])
print(json.dumps(x.tolist()))
""")
        self.assertEqual(values, [[0, 0, 2, 3], [4, 0, 6, 7], [8, 0, 10, 11]])

    def test_copies_are_counted_in_bytes(self):
        counts = dry("""
torch.ones(100).to(device)
torch.ones(100_000).to(device).cpu()
counts = _C._dry_run_counts()
print(json.dumps([counts["bytes_copied"], counts["bytes_skipped"]]))
""")
        self.assertEqual(counts, [400, 800_000])

    def test_a_call_of_the_fallback_that_waits_is_skipped(self):
        sizes = dry("""
x = torch.rand(300, 300, device=device)
values, vectors = torch.linalg.eigh(x @ x.T)
print(json.dumps([list(values.shape), list(vectors.shape), values.cpu().unique().tolist()]))
""")
        self.assertEqual(sizes, [[300], [300, 300], [0.0]])

    def test_states_of_generators_change_with_skipped_draws(self):
        same = dry("""
module = torch.get_device_module(device)
module.manual_seed(1)
start = module.get_rng_state()
x = torch.empty(100_000, device=device)
states = []
for draw in (x.normal_, x.uniform_, lambda: torch.nn.functional.dropout(x)):
    draw()
    states.append(module.get_rng_state())
print(json.dumps([bool(torch.equal(a, b)) for a, b in zip([start, *states], states)]))
""")
        self.assertEqual(same, [False, False, False])

    def test_small_draws_are_those_of_the_real_run(self):
        code = """
torch.get_device_module(device).manual_seed(3)
print(json.dumps(torch.rand(20, device=device).tolist()))
"""
        real = run_child(
            "import json, torch\ndevice = torch.accelerator.current_accelerator()" + code
        )
        self.assertEqual(dry(code), json.loads(real))


class TestMadeUpValues(TestCase):
    def test_reading_real_values_is_not_counted(self):
        self.assertEqual(
            dry("""
x = torch.arange(10).to(device)
x.sum().item(), x.tolist(), bool((x > 3).any()), torch.equal(x, x)
print(json.dumps([reads(), _C._dry_run_made_up_reads()]))
"""),
            [0, []],
        )

    @parametrize(
        "read",
        [
            "large.sum().item()",
            "large[3].item()",
            "large.cpu()",
            "bool((large > 0).any())",
            "(torch.ones(3, device=device) * large.mean()).tolist()",
            "torch.equal(large, large)",
        ],
    )
    def test_a_made_up_value_is_counted_however_it_comes_to_the_host(self, read):
        count = dry(f"""
large = torch.ones(100_000, device=device)
{read}
print(json.dumps(reads()))
""")
        self.assertEqual(count, 1)

    def test_a_copy_from_the_host_makes_values_real_again(self):
        counts = dry("""
x = torch.ones(100_000, device=device).view(10, -1).sum(1)
x.tolist()
made_up = reads()
x[:5] = torch.ones(5)
x.tolist()
part = reads()
x.copy_(torch.ones(10))
x.tolist()
print(json.dumps([made_up, part, reads()]))
""")
        self.assertEqual(counts, [1, 2, 2])

    @parametrize(
        "change,count", [("x.add_(1)", 2), ("x.relu_()", 2), ("x.fill_(1)", 1), ("x.zero_()", 1)]
    )
    def test_a_change_in_place_keeps_a_value_made_up_unless_it_only_writes(self, change, count):
        reads = dry(f"""
x = torch.ones(100_000, device=device).view(10, -1).sum(1)
x.tolist()
{change}
x.tolist()
print(json.dumps(reads()))
""")
        self.assertEqual(reads, count)

    def test_memory_that_is_freed_is_not_made_up_for_its_next_owner(self):
        count = dry("""
x = torch.ones(100_000, device=device).view(10, -1).sum(1)
del x
torch.zeros(10, device=device).tolist()
print(json.dumps(reads()))
""")
        self.assertEqual(count, 0)

    def test_each_place_warns_once_and_is_counted(self):
        child = run_child(
            _BEGIN
            + """
x = torch.ones(100_000, device=device)
for _ in range(3):
    x.sum().item()
x.mean().item()
(name, place, count), (_, _, other) = _C._dry_run_made_up_reads()
print(name, place.rpartition(":")[0], count, other)
""",
            _DRY,
        )
        self.assertEqual(child.count("UserWarning: dry run: "), 2)
        self.assertIn("aten::_local_scalar_dense <child> 3 1", child)

    def test_the_place_is_the_program_s_line_and_not_torch_s(self):
        places = dry("""
x = torch.ones(100_000, device=device)
print_options = repr(x.sum())
print(json.dumps([place for _, place, _ in _C._dry_run_made_up_reads()]))
""")
        self.assertEqual({place.rpartition(":")[0] for place in places}, {"<child>"})

    def test_a_warning_can_be_an_error(self):
        text = dry("""
warnings.simplefilter("error")
try:
    torch.ones(100_000, device=device).sum().item()
except UserWarning as error:
    print(json.dumps(str(error)))
""")
        self.assertIn("dry run: aten::_local_scalar_dense", text)


class TestSettings(TestCase):
    def test_a_program_starts_a_dry_run_by_the_environment(self):
        output = run_program(
            "import torch\nfrom torch_openreg import _C\nprint(_C._dry_run_is_on())", settings=_DRY
        )
        self.assertEqual(output.stdout.strip(), "True")

    def test_without_the_setting_there_is_none(self):
        self.assertEqual(
            run_child("from torch_openreg import _C\nprint(_C._dry_run_is_on())"), "False\n"
        )

    @parametrize(
        "variable", ["OPENREG_SANITIZER", "OPENREG_MEMORY_POISON", "OPENREG_FALLBACK_VERIFY"]
    )
    def test_settings_that_need_kernels_are_refused(self, variable):
        text = dry(
            """
try:
    torch.ones(3, device=device)
except RuntimeError as error:
    print(json.dumps(str(error)))
""",
            **{variable: "1"},
        )
        self.assertIn(f"OPENREG_DRY_RUN=1: expected no {variable}", text)
        self.assertNotIn("\n", text.strip())

    @parametrize(
        "use,text",
        [
            ("torch_openreg.testing.StreamGate().__enter__()", "expected no StreamGate"),
            (
                "ForkingPickler.dumps(torch.ones(3, device=device))",
                "tensors cannot be sent to other processes",
            ),
            (
                "torch._C._aoti.AOTIModelPackageLoader('model.pt2', 'model', False, 1, -1)",
                "expected no program compiled by AOTInductor",
            ),
        ],
    )
    def test_what_has_no_meaning_is_refused(self, use, text):
        error = dry(f"""
import torch_openreg.testing
from multiprocessing.reduction import ForkingPickler
try:
    {use}
except RuntimeError as error:
    print(json.dumps(str(error)))
""")
        self.assertIn(text, error)


class TestTime(TestCase):
    @parametrize(
        "call",
        [
            "torch.nn.functional.layer_norm(x, x.shape[1:])",
            "torch.nn.functional.max_pool2d(x.view(1, 1, 16384, 16384), 2)",
            "torch.nn.functional.interpolate(x.view(1, 1, 16384, 16384), scale_factor=2)",
            "x.roll(1)",
            "torch.linalg.svd(x)",
        ],
    )
    def test_no_kernel_runs_on_large_dummies_either(self, call):
        used_s = dry(
            f"""
import time
torch.empty(300, 300, device=device).roll(1)  # imports torch's descriptions
x = torch.empty(16384, 16384, device=device)
start = time.process_time()
{call}
print(json.dumps(time.process_time() - start))
""",
            OPENREG_DEVICE_MEMORY="80GiB",
        )
        self.assertLess(used_s, 0.5)


class TestSizesFromData(TestCase):
    CALLS = """
x = torch.rand(200, 200, device=device)
k = torch.arange(40_000, device=device)
results = [
    x.nonzero(),
    x.masked_select(x > 0.5),
    x[x > 0.5],
    *torch._unique2(k, return_inverse=True, return_counts=True),
    *torch.unique_consecutive(k, return_inverse=True),
    *torch.unique(x, dim=0, return_counts=True),
    torch.bincount(k, minlength=30),
    torch.repeat_interleave(k),
]
print(json.dumps([list(one.shape) for one in results]))
"""

    def test_the_largest_sizes_are_guessed(self):
        n = 40_000
        self.assertEqual(
            dry(self.CALLS),
            [[n, 2], [n], [n], [n], [n], [n], [n], [n], [200, 200], [200], [n], [n]],
        )

    def test_the_smallest_sizes_are_guessed(self):
        n = 40_000
        self.assertEqual(
            dry(self.CALLS, OPENREG_DRY_RUN_SIZES="none"),
            [[0, 2], [0], [0], [1], [n], [1], [1], [n], [1, 200], [1], [30], [0]],
        )

    def test_an_error_names_the_setting(self):
        error = dry(
            """
try:
    torch.rand(200, 200, device=device).nonzero()
except RuntimeError as error:
    print(json.dumps(str(error)))
""",
            OPENREG_DRY_RUN_SIZES="error",
        )
        self.assertIn("aten::nonzero: in a dry run, the sizes of its results", error)
        self.assertIn("OPENREG_DRY_RUN_SIZES", error)

    def test_sizes_from_real_data_are_real(self):
        sizes, guesses = dry(
            """
x = torch.tensor([0, 3, 0, 5, 5]).to(device)
results = x.nonzero(), x[x > 0], torch.unique(x), torch.bincount(x), torch.repeat_interleave(x)
print(json.dumps([[list(one.shape) for one in results], _C._dry_run_guessed_sizes()]))
"""
        )
        self.assertEqual(sizes, [[3, 1], [3], [3], [6], [13]])
        self.assertEqual(guesses, [])

    # CUDA's sums have all elements of both, whatever their indices.
    @parametrize(
        "sizes, counts",
        [
            ("worst", [64, 192, 128]),
            ("none", [1, 192, 128] if DEVICE_TYPE == "cuda" else [1, 64, 64]),
        ],
    )
    def test_elements_of_sparse_tensors_are_guessed(self, sizes, counts):
        found = dry(
            """
indices = torch.randint(100, (1, 64)).to(device)
x = torch.sparse_coo_tensor(indices, torch.rand(64, 1000, device=device), (100, 1000))
y = torch.sparse_coo_tensor(indices, torch.rand(64, 1000, device=device), (100, 1000))
coalesced = x.coalesce()
x.add_(y)
print(json.dumps([coalesced._nnz(), (x + y)._nnz(), x._nnz()]))
""",
            OPENREG_DRY_RUN_SIZES=sizes,
        )
        self.assertEqual(found, counts)

    def test_sums_with_a_sparse_tensor_have_its_dtype(self):
        dtypes = dry("""
y = torch.sparse_coo_tensor(
    torch.arange(64)[None].to(device), torch.rand(64, 1000, device=device).double(), (100, 1000)
)
x = torch.zeros(100, 1000, device=device)
print(json.dumps([str((x + y).dtype), str((x.to_sparse(1) + y).dtype), str(x.add_(y).dtype)]))
""")
        self.assertEqual(dtypes, ["torch.float64", "torch.float64", "torch.float32"])

    def test_an_error_names_the_setting_for_sparse_tensors(self):
        error = dry(
            """
x = torch.sparse_coo_tensor(
    torch.zeros(1, 64, dtype=int).to(device), torch.rand(64, 1000, device=device), (100, 1000)
)
try:
    x.coalesce()
except RuntimeError as error:
    print(json.dumps(str(error)))
""",
            OPENREG_DRY_RUN_SIZES="error",
        )
        self.assertIn("aten::_coalesce: in a dry run, the sizes of its results", error)

    def test_a_small_result_of_a_large_sparse_tensor_is_made_up(self):
        (reads,) = dry("""
torch.manual_seed(0)
x = torch.sparse_coo_tensor(
    torch.arange(64)[None].to(device), torch.rand(64, 1000, device=device), (100, 1000)
)
product = torch.mv(x.to_dense().to_sparse(), torch.ones(1000, device=device))
print(json.dumps([product.tolist()]))
""")
        self.assertEqual(reads, [0.0] * 100)

    @parametrize("optimizer", ["SparseAdam", "Adagrad", "SGD"])
    def test_sparse_gradients_train(self, optimizer):
        dry(f"""
model = torch.nn.Embedding(2000, 64, sparse=True).to(device)
optimizer = torch.optim.{optimizer}(model.parameters())
for _ in range(2):
    model(torch.arange(500).to(device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(0)
""")

    def test_a_product_of_sparse_matrices_is_refused(self):
        error = dry("""
x = torch.rand(300, 300, device=device).to_sparse()
try:
    torch.sparse.mm(x, x)
except NotImplementedError as error:
    print(json.dumps(str(error)))
""")
        self.assertIn("aten::_sparse_sparse_matmul: its kernel is skipped", error)

    def test_sizes_from_made_up_data_are_guessed_and_counted(self):
        size, guesses = dry("""
small = torch.rand(100, 1000, device=device).sum(1) > 0
for _ in range(3):
    found = small.nonzero()
print(json.dumps([list(found.shape), _C._dry_run_guessed_sizes()]))
""")
        self.assertEqual(size, [100, 1])
        ((name, place, count),) = guesses
        self.assertEqual((name, place.rpartition(":")[0], count), ("aten::nonzero", "<child>", 3))

    def test_an_operator_without_sizes_is_refused(self):
        error = dry("""
library = torch.library.Library("dry_run_test", "DEF")
library.define("half(Tensor x) -> Tensor")
library.impl("half", lambda x: x[: len(x) // 2].clone(), "CPU")
try:
    torch.ops.dry_run_test.half(torch.rand(40_000, device=device))
except NotImplementedError as error:
    print(json.dumps(str(error)))
""")
        self.assertIn("dry_run_test::half: its kernel is skipped", error)
        self.assertIn("torch.library.register_fake", error)

    def test_a_registered_fake_gives_the_sizes(self):
        size = dry("""
library = torch.library.Library("dry_run_test", "DEF")
library.define("half(Tensor x) -> Tensor")
library.impl("half", lambda x: x[: len(x) // 2].clone(), "CPU")
torch.library.register_fake("dry_run_test::half", lambda x: x.new_empty(len(x) // 2), lib=library)
print(json.dumps(list(torch.ops.dry_run_test.half(torch.rand(40_000, device=device)).shape)))
""")
        self.assertEqual(size, [20_000])

    def test_wrong_arguments_raise_as_ever(self):
        errors = dry("""
x = torch.rand(200, 200, device=device)
calls = [
    lambda: x @ x[1:],
    lambda: torch.linalg.eigh(x[1:]),
    lambda: torch.cat([x, x[:, 1:]]),
    lambda: torch.histc(x, bins=-1),
]
errors = []
for call in calls:
    try:
        call()
    except RuntimeError as error:
        errors.append(str(error))
print(json.dumps(errors))
""")
        self.assertEqual(len(errors), 4)


class TestHostMemory(TestCase):
    def test_a_model_of_8_gib_is_made_on_the_host_without_its_memory(self):
        child = run_child(
            _BEGIN
            + """
import resource

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

torch.ones(10, device=device)
before = peak_mib()
model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(32)))
for layer in model:
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.trunc_normal_(layer.weight, std=0.02)
model.to(torch.bfloat16).to(device)
kept = [torch.zeros(1 << 28), torch.randn(1 << 28), torch.ones(1 << 28)]
print(json.dumps(peak_mib() - before))
""",
            _DRY | {"OPENREG_DEVICE_MEMORY": "80GiB"},
        )
        self.assertLess(float(child.splitlines()[-1]), 600)

    def test_small_and_integer_tensors_of_the_host_are_filled(self):
        values = dry("""
print(json.dumps([
    torch.ones(1000).sum().item(),
    torch.full((1 << 22,), 3, dtype=torch.int64).unique().tolist(),
    torch.arange(1 << 22).clone()[-1].item(),
    torch.zeros(1 << 23).unique().tolist(),
    bool((torch.rand(1000) > 0).any()),
]))
""")
        self.assertEqual(values, [1000, [3], (1 << 22) - 1, [0.0], True])

    def test_the_host_s_generator_changes_with_skipped_draws(self):
        same = dry("""
torch.manual_seed(1)
start = torch.get_rng_state()
torch.randn(1 << 23)
after = torch.get_rng_state()
torch.rand(1 << 23)
print(json.dumps([torch.equal(start, after), torch.equal(after, torch.get_rng_state())]))
""")
        self.assertEqual(same, [False, False])

    def test_without_a_dry_run_the_host_fills(self):
        output = run_child("import torch\nprint(torch.ones(1 << 23).sum().item())")
        self.assertEqual(float(output), 1 << 23)


class TestMemory(TestCase):
    def test_eight_devices_of_80_gib_are_filled_without_memory_of_the_host(self):
        child = run_child(
            _BEGIN
            + """
def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

torch.ones(10, device=device)
before = resident_mib()
kept = []
for index in range(8):
    with torch.device(device.type, index):
        for _ in range(7):
            x = torch.empty(10 << 30, dtype=torch.int8)
            x.fill_(1)
            x.random_()
            x.zero_()
            kept.append(x)
        kept[-1].copy_(kept[-2])
    kept[0][: 1 << 30].cpu()
torch.accelerator.synchronize()
print(json.dumps(resident_mib() - before))
""",
            _DRY | {"OPENREG_DEVICE_COUNT": "8", "OPENREG_DEVICE_MEMORY": "80GiB"},
        )
        self.assertLess(float(child.splitlines()[-1]), 40)

    @parametrize("name", ["step", "cat", "optimizer"])
    def test_memory_runs_out_at_the_line_of_the_real_run(self, name):
        code = f"""
import torch, traceback
from torch_openreg.extras import dry_run
dry_run.start(False)
device = torch.accelerator.current_accelerator()
try:
    kept = []
    for step in range(100):
        x = torch.zeros(1 << 20, device=device, requires_grad=True)
        y = x * 2
        kept.append(y)
        if "{name}" == "cat":
            kept.append(torch.cat(kept[:3]))
        if "{name}" == "optimizer":
            y.sum().backward()
            torch.optim.Adam([x]).step()
        kept.append(x)
except torch.OutOfMemoryError as error:
    print(step, traceback.extract_tb(error.__traceback__)[0].lineno, str(error).splitlines()[0])
"""
        memory = {"OPENREG_DEVICE_MEMORY": "128MiB"}
        real, dry_run = run_children([(code, memory), (code, memory | _DRY)])
        self.assertEqual(real.returncode, 0, real.output)
        self.assertTrue(real.output)
        self.assertEqual(dry_run, real)


class TestTiming(TestCase):
    @parametrize(
        "timing,reserved_mib",
        [("early", [32] * 8), ("late", [32, 64, 96, 128, 128, 128, 128, 128])],
    )
    def test_memory_of_other_streams_comes_back_by_the_rule(self, timing, reserved_mib):
        reserved = dry(
            """
side = torch.Stream(device)
sizes = []
for step in range(8):
    x = torch.ones(8 << 20, device=device)
    with side:
        x.mul_(2)
    x.record_stream(side)
    del x
    if step == 3:
        side.synchronize()
    sizes.append(torch.accelerator.memory.memory_reserved() >> 20)
print(json.dumps(sizes))
""",
            OPENREG_DRY_RUN_TIMING=timing,
        )
        self.assertEqual(reserved, reserved_mib)

    def test_late_uses_are_over_when_memory_runs_out(self):
        reserved = dry(
            """
side = torch.Stream(device)
for _ in range(8):
    x = torch.ones(8 << 20, device=device)
    with side:
        x.mul_(2)
    x.record_stream(side)
    del x
print(torch.accelerator.memory.memory_reserved() >> 20)
""",
            OPENREG_DRY_RUN_TIMING="late",
            OPENREG_DEVICE_MEMORY="80MiB",
        )
        self.assertEqual(reserved, 64)

    @parametrize("timing,answers", [("early", [True, True]), ("late", [False, True])])
    def test_a_query_answers_by_the_rule(self, timing, answers):
        code = """
event = torch.Event(device)
torch.ones(1 << 20, device=device)
event.record()
stream = torch.accelerator.current_stream()
print(json.dumps([[event.query(), event.query()], [stream.query(), stream.query()]]))
"""
        self.assertEqual(dry(code, OPENREG_DRY_RUN_TIMING=timing), [answers, answers])


for case in (
    TestTime,
    TestSizesFromData,
    TestSkippedWork,
    TestMadeUpValues,
    TestSettings,
    TestMemory,
    TestTiming,
):
    instantiate_parametrized_tests(case)

if __name__ == "__main__":
    run_tests()
