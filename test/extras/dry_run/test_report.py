"""The report of a dry run: verdict, peak, categories, the line that does not fit."""

import pytest
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)
from reports import DRY, dry_run

from torch_openreg import _C
from torch_openreg.extras.dry_run import _profiles
from torch_openreg.extras.dry_run._report import CATEGORIES

pytestmark = pytest.mark.sample(0.5)

MIB = 2**20
GIB = 2**30

TRAINING = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)
).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    x = torch.randn(8192, 4096, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


class TestReport(OpenRegTestCase):
    def test_training_is_taken_apart(self):
        _, report = dry_run(TRAINING + "print(torch.cuda.max_memory_allocated())")
        (device,) = report["devices"]
        parameters = 2 * (4096 * 4096 + 4096) * 4
        self.assertEqual(report["verdict"], "fits")
        self.assertEqual(set(device["categories"]), set(CATEGORIES))
        self.assertEqual(sum(device["categories"].values()), device["allocated"])
        self.assertEqual(device["categories"]["parameters"], parameters)
        self.assertEqual(device["categories"]["optimizer"] - 2 * parameters, 0)
        self.assertGreaterEqual(device["categories"]["activations"], 2 * 8192 * 4096 * 4)

    def test_peak_is_that_of_the_statistics(self):
        process, report = dry_run(
            TRAINING + "print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())"
        )
        (device,) = report["devices"]
        self.assertEqual(
            process.stdout.split(), [str(device["allocated"]), str(device["reserved"])]
        )

    def test_peak_survives_a_reset_of_the_statistics(self):
        process, report = dry_run(
            """
            import torch
            x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
            del x
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            y = torch.empty(2**20, dtype=torch.uint8, device="cuda")
            print(torch.cuda.max_memory_allocated())
            """
        )
        self.assertEqual(process.stdout.strip(), str(2**20))
        self.assertEqual(report["devices"][0]["allocated"], 2**30)
        self.assertEqual(report["devices"][0]["reserved"], 2**30)

    def test_largest_blocks_have_their_lines(self):
        _, report = dry_run(
            """
            import torch
            small = torch.empty(2**20, device="cuda")
            blocks = [torch.empty(2**28, device="cuda") for _ in range(3)]
            """
        )
        largest = report["devices"][0]["largest"][0]
        self.assertEqual((largest["nbytes"], largest["count"]), (3 * GIB, 3))
        self.assertEqual(largest["place"]["line"], 4)

    def test_gradients_and_temporaries_of_the_backward_pass(self):
        _, report = dry_run(
            """
            import torch
            layers = [torch.nn.Linear(8192, 8192, bias=False, device="cuda") for _ in range(4)]
            model = torch.nn.Sequential(*layers)
            optimizer = torch.optim.SGD(model.parameters())
            model(torch.randn(16, 8192, device="cuda")).sum().backward()
            optimizer.step()
            """
        )
        categories = report["devices"][0]["categories"]
        self.assertEqual(categories["parameters"], 4 * 8192 * 8192 * 4)
        self.assertEqual(categories["gradients"], 4 * 8192 * 8192 * 4)

    def test_recomputed_activations_are_activations(self):
        _, report = dry_run(
            """
            import torch
            from torch.utils.checkpoint import checkpoint

            layer = torch.nn.Linear(1024, 1024, device="cuda")
            def block(x):
                for _ in range(8):
                    x = torch.nn.functional.gelu(layer(x))
                return x
            x = torch.randn(65536, 1024, device="cuda", requires_grad=True)
            checkpoint(block, x, use_reentrant=False).sum().backward()
            """
        )
        (device,) = report["devices"]
        self.assertEqual(device["phase"], "backward")
        self.assertGreater(device["categories"]["activations"], 8 * 65536 * 1024 * 4)


class TestShortage(OpenRegTestCase):
    PROGRAM = """
    import torch

    def fill():
        blocks = []
        while True:
            blocks.append(torch.empty(2**28, device="cuda"))  # 1 GiB

    fill()
    """

    def test_line_that_does_not_fit(self):
        process, report = dry_run(self.PROGRAM, expect_success=False)
        self.assertEqual(process.returncode, 1)
        self.assertIn(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. "
            "GPU 0 has a total capacity of 79.18 GiB",
            process.stderr,
        )
        self.assertEqual(report["verdict"], "does not fit")
        self.assertEqual(report["failure"]["requested"], GIB)
        self.assertEqual(report["failure"]["allocated"], 78 * GIB)
        self.assertEqual(report["failure"]["place"]["line"], 7)
        self.assertEqual(report["failure"]["place"]["function"], "fill")
        self.assertIn("DOES NOT FIT: device 0 has no room for 1.00 GiB at", process.stderr)

    def test_beyond_the_gpu(self):
        code = """
        import torch
        blocks = [torch.empty(2**28, device="cuda") for _ in range(100)]
        """
        _, report = dry_run(code, OPENREG_DRY_RUN_BEYOND="1")
        self.assertEqual(report["devices"][0]["allocated"], 100 * GIB)
        self.assertEqual(report["verdict"], "does not fit")
        self.assertEqual(report["failure"]["allocated"], 79 * GIB)

    def test_error_that_the_program_handles_is_still_reported(self):
        process, report = dry_run(
            """
            import torch
            try:
                torch.empty(2**40, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                print("smaller")
            """
        )
        self.assertEqual(process.stdout.strip(), "smaller")
        self.assertEqual(report["verdict"], "does not fit")

    def test_interval_that_contains_the_capacity_is_unsure(self):
        profile = _profiles.profile("h100")
        nbytes = profile.total_memory - profile.context[1] + 100 * MIB
        _, report = dry_run(
            f"""
            import torch
            x = torch.empty({nbytes}, dtype=torch.uint8, device="cuda")
            """
        )
        self.assertEqual(report["verdict"], "unsure")
        self.assertLess(report["low"], report["total_memory"])
        self.assertGreater(report["high"], report["total_memory"])


class TestNothing(OpenRegTestCase):
    def test_program_without_the_device(self):
        process, report = dry_run("import torch; print(torch.ones(2).sum().item())")
        self.assertEqual(process.stdout.strip(), "2.0")
        self.assertEqual(report["verdict"], "nothing ran")

    def test_report_without_a_dry_run(self):
        process = run_program("import torch; torch.openreg.dry_run.report()", expect_success=False)
        self.assertIn("expected a dry run, got a process without one", process.stderr)

    def test_report_that_cannot_be_written(self):
        process = run_program(
            "import torch; print(1)",
            {**DRY, "OPENREG_DRY_RUN_REPORT": "/nowhere/report.json"},
            expect_success=False,
        )
        self.assertEqual((process.returncode, process.stdout), (1, ""))
        self.assertIn(
            "expected a file in an existing folder, got '/nowhere/report.json'", process.stderr
        )


class TestProfiles(OpenRegTestCase):
    def test_setting_allows_every_profile(self):
        _, _, allowed, *_ = next(row for row in _C._settings() if row[0] == "OPENREG_DRY_RUN_GPU")
        self.assertEqual(allowed.replace(" or ", ", ").split(", "), ["none", *_profiles.names()])

    def test_every_profile_has_a_source_and_less_memory_than_its_box_says(self):
        self.assertGreaterEqual(len(_profiles.names()), 15)
        for name in _profiles.names():
            with self.subTest(name=name):
                profile = _profiles.profile(name)
                self.assertTrue(profile.source)
                self.assertGreater(profile.limits.threads, 0)
                self.assertEqual(profile.total_memory % 4096, 0)
                self.assertLess(profile.context[0], profile.context[1])

    def test_names_are_forgiving_and_errors_list_them(self):
        self.assertEqual(_profiles.profile("H100_PCIE").name, "h100-pcie")
        with self.assertRaisesRegex(ValueError, "expected a GPU among v100-16gb, .*got 'tpu'"):
            _profiles.profile("tpu")

    @parametrize("name", ["t4", "h200"])
    def test_programs_see_the_gpu(self, name):
        process, _ = dry_run(
            """
            import torch
            p = torch.cuda.get_device_properties(0)
            free, total = torch.cuda.mem_get_info()
            print(p.name, p.total_memory, p.multi_processor_count, p.major, p.minor, total, sep=";")
            """,
            OPENREG_DRY_RUN_GPU=name,
        )
        profile = _profiles.profile(name)
        major, minor = profile.capability.split(".")
        expected = [profile.device, profile.total_memory, profile.multi_processor_count]
        expected += [major, minor, profile.total_memory]
        self.assertEqual(process.stdout.strip().split(";"), [str(one) for one in expected])


instantiate_parametrized_tests(TestProfiles)

if __name__ == "__main__":
    run_tests()
