"""Settings: environment variables, read once; an invalid value is reported, not ignored."""

import re
from pathlib import Path

import pytest
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_children,
    run_program,
    run_tests,
    subtest,
    torch_openreg,
)

from torch_openreg import _C, _settings

pytestmark = pytest.mark.sample(0.12)

ROOT = Path(__file__).resolve().parents[2]
COUNT = "import torch; print(torch.openreg.device_count(), torch.openreg.is_available())"
BAD_VALUES = [
    ("OPENREG_DEVICE_COUNT", "two"),
    ("OPENREG_DEVICE_COUNT", "-1"),
    ("OPENREG_DEVICE_COUNT", "65"),
    ("OPENREG_DEVICE_COUNT", "1.5"),
    ("OPENREG_DEVICE_MEMORY", "lots"),
    ("OPENREG_DEVICE_MEMORY", "0"),
    ("OPENREG_DEVICE_MEMORY", "4XB"),
    ("OPENREG_VISIBLE_DEVICES", "0,0"),
    ("OPENREG_VISIBLE_DEVICES", "7"),
    ("OPENREG_VISIBLE_DEVICES", "a"),
    ("OPENREG_MEMORY_PROTECTION", "maybe"),
    ("OPENREG_LAUNCH_BLOCKING", "2"),
    ("OPENREG_FALLBACK", "loud"),
    ("OPENREG_FALLBACK_VERIFY", "yes"),
    ("OPENREG_MEMORY_POISON", "yes"),
    ("OPENREG_MEMORY_QUARANTINE", "much"),
    ("OPENREG_MEMORY_QUARANTINE", "-1"),
    ("OPENREG_OCCL_ON_ERROR", "ignore"),
    ("OPENREG_QUEUE_MEMORY", "much"),
    ("OPENREG_QUEUE_MEMORY", "-1"),
    ("OPENREG_SCHEDULE", "hasty"),
    ("OPENREG_SCHEDULE", "-1"),
    ("OPENREG_SCHEDULE", ""),
    ("OPENREG_DRY_RUN_BEYOND", "yes"),
    ("OPENREG_DRY_RUN_GPU", "tpu"),
    ("OPENREG_DRY_RUN_PICTURE", ""),
    ("OPENREG_DRY_RUN_RANK", "first"),
    ("OPENREG_DRY_RUN_RANKS", ""),
    ("OPENREG_DRY_RUN_REPORT", ""),
    ("OPENREG_DRY_RUN_STORE", ""),
    ("OPENREG_DRY_RUN_SUMMARY", "yes"),
    ("OPENREG_DRY_RUN_WORLD_SIZE", "all"),
    ("OPENREG_SANITIZER", "yes"),
    ("OPENREG_SANITIZER_EXIT", "yes"),
    ("OPENREG_SANITIZER_HOST", "pages"),
    ("OPENREG_SANITIZER_REPORT", ""),
    ("OPENREG_SANITIZER_SUPPRESSIONS", ""),
    ("OPENREG_SANITIZER_UNINITIALIZED", "yes"),
    ("OPENREG_DRY_RUN", "yes"),
    ("OPENREG_DRY_RUN_SIZES", "largest"),
    ("OPENREG_DRY_RUN_TIMING", "slow"),
    ("OPENREG_DRY_RUN_VALUE", "2"),
    ("OPENREG_INDUCTOR", "halide"),
    ("OPENREG_TRITON_AUTOTUNE", "none"),
    ("OPENREG_TRITON_CHECK", "storage"),
    ("OPENREG_DEVICE_TYPE", "gpu"),
    ("OPENREG_CUDA_CAPABILITY", "8"),
    ("OPENREG_CUDA_OVER_GPU", "yes"),
    ("OPENREG_CUDA_VERSION", "12"),
    ("OPENREG_CUDA_VERSION", "12.x"),
    ("OPENREG_CUDA_NOTICE", "no"),
    ("OPENREG_CUDA_STICKY_ERRORS", "yes"),
]


class TestSettings(OpenRegTestCase):
    def output_of(self, code, **settings):
        return run_child(code, settings).strip()

    def test_two_devices_by_default(self):
        self.assertEqual(self.output_of(COUNT), "2 True")

    def test_device_count_is_the_one_set(self):
        counts = (0, 1, 3, 64)
        children = run_children([(COUNT, {"OPENREG_DEVICE_COUNT": str(n)}) for n in counts])
        self.assertEqual(
            [child.output.strip() for child in children], [f"{n} {n > 0}" for n in counts]
        )

    def test_last_of_64_devices_works(self):
        output = self.output_of(
            "import torch; print(torch.ones(2, device='openreg:63').sum().item())",
            OPENREG_DEVICE_COUNT="64",
            OPENREG_DEVICE_MEMORY="64MiB",
        )
        self.assertEqual(output, "2.0")

    @parametrize(
        "text,size",
        [
            subtest(("64MiB", 64 * 2**20), name="MiB"),
            subtest(("1GiB", 2**30), name="GiB"),
            subtest((str(2**25), 2**25), name="bytes"),
        ],
    )
    def test_device_memory_is_the_one_set(self, text, size):
        output = self.output_of(
            "import torch; print(torch.openreg.mem_get_info()[1])", OPENREG_DEVICE_MEMORY=text
        )
        self.assertEqual(int(output), size)

    def test_visible_devices_select_and_order(self):
        output = self.output_of(
            """
            import torch
            o = torch.openreg
            print([o.get_device_properties(i).physical_index for i in range(o.device_count())])
            """,
            OPENREG_DEVICE_COUNT="4",
            OPENREG_VISIBLE_DEVICES="3,1",
        )
        self.assertEqual(output, "[3, 1]")

    def test_visible_devices_may_be_none(self):
        self.assertEqual(self.output_of(COUNT, OPENREG_VISIBLE_DEVICES=""), "0 False")

    def test_use_without_devices_says_why(self):
        for name, value in (("OPENREG_DEVICE_COUNT", "0"), ("OPENREG_VISIBLE_DEVICES", "")):
            output = self.output_of(
                """
                import os, torch
                for use in (
                    lambda: torch.ones(1, device="openreg"),
                    torch.openreg.init,
                    torch.openreg.current_device,
                    torch.openreg.current_stream,
                    torch.openreg.mem_get_info,
                    torch.openreg.initial_seed,
                    lambda: torch.openreg.set_device(0),
                ):
                    try:
                        use()
                    except RuntimeError as error:
                        print(os.environ["EXPECTED"] in str(error))
                """,
                EXPECTED=f"{name} is '{value}'",
                **{name: value},
            )
            self.assertEqual(output.split(), ["True"] * 7)

    def test_bad_value_does_not_disturb_programs_without_the_device(self):
        result = run_program(
            "import torch; torch.manual_seed(0); print(torch.ones(2).sum().item())",
            {"OPENREG_DEVICE_COUNT": "two"},
        )
        self.assertEqual(result.stdout.strip(), "2.0")
        self.assertEqual(result.stderr.count("\n"), 1)

    def test_settings_are_read_once(self):
        output = self.output_of(
            """
            import os, torch
            before = torch.openreg.device_count()
            os.environ["OPENREG_DEVICE_COUNT"] = "7"
            print(before == torch.openreg.device_count())
            """
        )
        self.assertEqual(output, "True")

    def test_settings_can_be_made_before_first_use(self):
        output = self.output_of(
            """
            import os, torch
            os.environ["OPENREG_DEVICE_COUNT"] = "7"
            print(torch.openreg.device_count())
            """
        )
        self.assertEqual(output, "7")

    @parametrize("device_type", ["openreg", "cuda"])
    def test_no_import_reads_the_settings(self, device_type):
        modules = [
            "torch",
            "torch_openreg",
            "torch._dynamo",
            "torch.distributed.checkpoint",
            "torch.distributed.fsdp",
            "torch.distributed.tensor",
            "torch.profiler",
            "torch.utils.checkpoint",
            "torch.utils.cpp_extension",
        ]
        if device_type == "openreg":
            # With device type cuda, what is registered with Inductor depends on OPENREG_INDUCTOR.
            modules += ["torch._inductor.compile_fx", "torch._inductor.select_algorithm"]
        run = run_program(
            f"""
            import importlib
            for module in {modules}:
                importlib.import_module(module)
                from torch_openreg import _C
                if _C._are_settings_read():
                    print(module)
                    break
            """,
            {"OPENREG_DEVICE_TYPE": device_type},
        )
        self.assertEqual(run.stdout, "")

    def test_without_protection_the_host_reads_device_memory(self):
        output = self.output_of(
            """
            import ctypes, torch
            x = torch.full((4,), 7, dtype=torch.uint8, device="openreg")
            torch.openreg.synchronize()
            print(list((ctypes.c_uint8 * 4).from_address(x.data_ptr())))
            """,
            OPENREG_MEMORY_PROTECTION="0",
        )
        self.assertEqual(output, "[7, 7, 7, 7]")

    @pytest.mark.slow
    def test_blocking_launches_are_done_when_the_call_returns(self):
        output = self.output_of(
            """
            import torch
            x = torch.ones(1000, device="openreg")
            for _ in range(100):
                x += 1
                assert torch.openreg.current_stream().query()
            print(x[0].item())
            """,
            OPENREG_LAUNCH_BLOCKING="1",
        )
        self.assertEqual(output, "101.0")

    def test_settings_of_the_backend_have_their_defaults(self):
        defaults = {row[0]: row[1] for row in _C._settings()}
        output = self.output_of(
            """
            import torch
            print(torch.openreg.get_fallback_mode())
            try:
                torch.openreg.memory.check()
            except RuntimeError as error:
                print("OPENREG_MEMORY_POISON to be 1" in str(error))
            """
        )
        self.assertEqual(
            output.split(),
            [defaults["OPENREG_FALLBACK"], str(defaults["OPENREG_MEMORY_POISON"] == "0")],
        )

    def test_table_lists_every_setting_with_all_columns(self):
        rows = {row[0]: row[1:] for row in _C._settings()}
        self.assertEqual({name for name, _ in BAD_VALUES}, set(rows))
        for default, allowed, description, value, source in rows.values():
            self.assertTrue(default)
            self.assertTrue(allowed)
            self.assertTrue(description)
            self.assertIsInstance(value, (str, type(None)))
            self.assertIsInstance(source, (str, type(None)))

    def test_table_shows_the_value_that_was_read(self):
        output = self.output_of(
            """
            import torch
            from torch_openreg import _C
            print({row[0]: row[4] for row in _C._settings()}["OPENREG_DEVICE_COUNT"])
            """,
            OPENREG_DEVICE_COUNT="3",
        )
        self.assertEqual(output, "3")


class TestBadValues(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        code = """
            import torch
            from torch_openreg import _C
            assert not torch.openreg.is_available()
            try:
                torch.ones(1, device="openreg")
            except RuntimeError as error:
                allowed = next(row[2] for row in _C._settings() if row[0] == {0!r})
                print([part in str(error) for part in ({0!r}, {1!r}, allowed)])
            """
        cases = [(code.format(name, value), {name: value}) for name, value in BAD_VALUES]
        cls.results = dict(zip(BAD_VALUES, run_children(cases), strict=True))

    @parametrize("name,value", BAD_VALUES)
    def test_first_use_names_variable_value_and_what_is_allowed(self, name, value):
        child = self.results[name, value]
        self.assertEqual((child.returncode, child.output.strip()), (0, "[True, True, True]"))


def _warning(text, line=1):
    return f"<string>:{line}: SettingWarning: {text}\n"


LOUD = {"OPENREG_FALLBACK": "loud"}
LOUD_TEXT = "OPENREG_FALLBACK is 'loud'; allowed: silent, warn or error"
BAD_AND_UNKNOWN = {**LOUD, "OPENREG_DEVICE_MEMORY": "8GB", "OPENREG_SANITISER": "1"}


class TestWarnings(OpenRegTestCase):
    @parametrize(
        "code",
        ["import torch", "import torch_openreg", "import torch, torch_openreg, torch.openreg"],
    )
    def test_bad_value_is_told_once_at_the_line_of_the_import(self, code):
        result = run_program(f"pass\n{code}\nimport torch_openreg", LOUD)
        self.assertEqual(result.stderr, _warning(LOUD_TEXT, line=2))

    def test_without_autoload_the_import_of_the_package_tells(self):
        settings = {**LOUD, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        self.assertEqual(run_program("import torch", settings).stderr, "")
        result = run_program("import torch\nimport torch_openreg", settings)
        self.assertEqual(result.stderr, _warning(LOUD_TEXT, line=2))

    def test_every_bad_value_and_unknown_name_is_told(self):
        first, second, third = run_program("import torch", BAD_AND_UNKNOWN).stderr.splitlines()
        self.assertIn("OPENREG_DEVICE_MEMORY is '8GB'; allowed: a size of at least 16MiB", first)
        self.assertIn(LOUD_TEXT, second)
        self.assertIn("OPENREG_SANITISER is no setting; did you mean OPENREG_SANITIZER?", third)

    def test_bad_count_does_not_make_the_visible_devices_bad(self):
        settings = {"OPENREG_DEVICE_COUNT": "many", "OPENREG_VISIBLE_DEVICES": "1,0"}
        text = "OPENREG_DEVICE_COUNT is 'many'; allowed: an integer from 0 to 64"
        self.assertEqual(run_program("import torch", settings).stderr, _warning(text))

    def test_good_values_and_no_values_are_silent(self):
        settings = {"OPENREG_DEVICE_COUNT": "0", "OPENREG_TEST_FULL": "1", "OPENREG_JOIN": "1"}
        self.assertEqual(run_program("import torch, torch_openreg", settings).stderr, "")
        self.assertEqual(run_program("import torch, torch_openreg").stderr, "")

    @parametrize(
        "name,text",
        [
            ("OPENREG_DEVICES", "OPENREG_DEVICE_COUNT"),
            ("OPENREG_VISIBLE_DEVICE", "did you mean OPENREG_VISIBLE_DEVICES?"),
            ("OPENREG_BLOCKING", "did you mean OPENREG_LAUNCH_BLOCKING?"),
            ("OPENREG_QQQQQQQQQQQQQQQ", "python -m torch_openreg --settings lists them"),
        ],
    )
    def test_unknown_name_is_told_with_the_nearest(self, name, text):
        code = "from torch_openreg import _settings; print(*_settings.unknown_names())"
        output = self.output_of(code, **{name: "1"})
        self.assertTrue(output.startswith(f"{name} is no setting; "), output)
        self.assertIn(text, output)

    def output_of(self, code, **settings):
        return run_child(code, settings).strip()

    def test_filter_that_raises_leaves_import_torch_alone(self):
        code = """
        import torch
        print(torch.ones(2).sum().item(), torch.openreg.is_available())
        """
        result = run_program(code, {**LOUD, "PYTHONWARNINGS": "error"})
        self.assertEqual(result.stdout.strip(), "2.0 False")
        self.assertEqual(result.stderr, f"SettingWarning: {LOUD_TEXT}\n")

    def test_filter_that_raises_applies_to_the_import_of_the_package(self):
        code = """
        import torch
        for _ in range(2):
            try:
                import torch_openreg
            except UserWarning as warning:
                print(type(warning).__name__, warning)
        """
        settings = {**LOUD, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONWARNINGS": "error"}
        self.assertEqual(run_program(code, settings).stdout, f"SettingWarning {LOUD_TEXT}\n" * 2)

    def test_filter_may_ignore_it(self):
        result = run_program("import torch", {**LOUD, "PYTHONWARNINGS": "ignore"})
        self.assertEqual(result.stderr, "")

    def test_spawned_child_tells_as_well(self):
        code = """
        import multiprocessing, subprocess, sys
        print(subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.PIPE).stderr)
        """
        self.assertIn(LOUD_TEXT, run_program(code, LOUD).stdout)

    def test_warning_keeps_no_setting(self):
        code = """
        import os, torch
        os.environ["OPENREG_FALLBACK"] = "warn"
        print(torch.openreg.get_fallback_mode(), torch.openreg.device_count())
        """
        self.assertEqual(run_program(code, LOUD).stdout, "warn 2\n")

    def test_category_can_be_imported(self):
        self.assertTrue(issubclass(torch_openreg.SettingWarning, UserWarning))


class TestNames(OpenRegTestCase):
    def test_the_runtime_names_no_setting_of_another_layer(self):
        runtime = ROOT / "third_party" / "openreg_runtime"
        files = [path for path in runtime.rglob("*") if path.suffix in (".h", ".cpp", ".c", ".py")]
        self.assertGreater(len(files), 60)
        header = (runtime / "include" / "openreg" / "setting.h").read_text()
        own = set(re.findall(r"^ *X\((OPENREG_\w+),", header, re.MULTILINE))
        others = set(_C._setting_names()) - own
        self.assertLess(len(own), 8)
        self.assertGreater(len(others), 12)
        texts = "\n".join(path.read_text() for path in files)
        named = set(re.findall(r"(?:OPENREG|CUDA)_[A-Z_]+", texts))
        self.assertEqual(named & {*others, "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING"}, set())

    def test_declarations_may_be_repeated_and_not_contradicted(self):
        row = ("OPENREG_SANITIZER_EXIT", "1", "0 1", "Another text.")
        _C._declare_setting(*row)
        with self.assertRaisesRegex(
            RuntimeError, "there is another setting OPENREG_SANITIZER_EXIT"
        ):
            _C._declare_setting(*row[:2], "0 1 2", row[3])

    def test_every_variable_that_a_program_of_the_repository_uses_is_known(self):
        uses = re.compile(
            r"""environ(?:\.get\(|\.setdefault\(|\.pop\(|\[)\s*["'](OPENREG_\w+)["']"""
            r"""|["'](OPENREG_\w+)["']\s*:|^\s*(?:export )?(OPENREG_\w+)[=:]""",
            re.MULTILINE,
        )
        folders = ("test", "tools", "torch_openreg", "bench", "examples", "docs", ".github")
        files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
        files += [*(ROOT / ".github").rglob("*.yml"), ROOT / "setup.py", ROOT / "noxfile.py"]
        used = {
            next(filter(None, names)) for path in files for names in uses.findall(path.read_text())
        }
        used -= {name for name in used if name in PLANTED}
        self.assertLessEqual(used, {*_C._setting_names(), *_settings.BUILD_AND_TEST_NAMES})
        self.assertIn("OPENREG_WERROR", used)


# Names that are those of no setting: one that the tests here set, and the first words of several.
PLANTED = {"OPENREG_SANITISER", "OPENREG_TRITON"}

instantiate_parametrized_tests(TestSettings)
instantiate_parametrized_tests(TestWarnings)
instantiate_parametrized_tests(TestBadValues)

if __name__ == "__main__":
    run_tests()
