"""What a kernel warns of is a Python warning of the call, once, and nothing is printed."""

from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_tests,
    subtest,
)

# Each in a process of its own, since some warnings are given once per process.
PROGRAM = """
    import warnings
    import torch

    def call(D):
        return {call}

    def texts(device, times):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(times):
                call(device)
        torch.openreg.synchronize()
        return [str(one.message).splitlines()[0].split(" (Triggered")[0] for one in caught]

    torch.set_warn_always({always})
    torch.zeros(1, device="openreg").item()
    print("actual", texts("openreg", 3))
    torch.set_warn_always(True)
    print("expected", texts("cpu", 3))
"""
EACH_TIME = {
    "index_put_of_expanded": (
        "torch.ones(1, device=D).expand(3).index_put_((torch.tensor([0], device=D),),"
        " torch.ones(1, device=D))"
    ),
    "random_out_of_bounds": "torch.empty(2, dtype=torch.float16, device=D).random_(2**12)",
    "arange_into_other_sizes": "torch.arange(5, out=torch.empty(2, device=D))",
}
ONCE = {
    "triangular_solve": (
        "torch.triangular_solve(torch.ones(2, 1, device=D), torch.eye(2, device=D))"
    ),
    "index_reduce": (
        "torch.ones(3, device=D).index_reduce_(0, torch.tensor([0], device=D),"
        " torch.ones(1, device=D), 'prod')"
    ),
    "complex_to_real": "torch.ones(2, device=D).copy_(torch.ones(2, dtype=torch.cfloat, device=D))",
}


def outcome(call, always):
    output = run_child(PROGRAM.format(call=call, always=always))
    lines = dict(line.split(" ", 1) for line in output.splitlines())
    if set(lines) != {"actual", "expected"}:
        raise AssertionError(f"a kernel printed something\n{output}")
    return eval(lines["actual"]), eval(lines["expected"])


class TestKernelWarnings(OpenRegTestCase):
    @parametrize("call", [subtest(one, name=name) for name, one in EACH_TIME.items()])
    def test_each_call_warns_that_warns_on_the_cpu(self, call):
        actual, expected = outcome(call, always=False)
        self.assertEqual(len(expected), 3)
        self.assertEqual(actual, expected)

    @parametrize("call", [subtest(one, name=name) for name, one in ONCE.items()])
    def test_a_warning_that_is_given_once_is_given_at_the_first_call(self, call):
        actual, expected = outcome(call, always=False)
        self.assertEqual(actual, expected[:1])

    @parametrize("call", [subtest(one, name=name) for name, one in ONCE.items()])
    def test_with_warn_always_it_is_given_at_each_call(self, call):
        actual, expected = outcome(call, always=True)
        self.assertEqual(len(expected), 3)
        self.assertEqual(actual, expected)


instantiate_parametrized_tests(TestKernelWarnings)

if __name__ == "__main__":
    run_tests()
