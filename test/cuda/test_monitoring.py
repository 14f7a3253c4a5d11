"""``nvidia-smi``, ``pynvml``, and the functions of ``torch.cuda`` that use NVML."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from common import (
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
    torch_openreg,
)

pytestmark = pytest.mark.sample(0.15)

TOOLS = Path(torch_openreg.__file__).resolve().parent / "extras" / "cuda" / "tools"
UUIDS = [f"GPU-00000000-0000-0000-0000-{number:012x}" for number in range(3)]

# The functions that programs call most, with their arguments after the handle.
FUNCTIONS = {
    "nvmlDeviceGetName": (),
    "nvmlDeviceGetIndex": (),
    "nvmlDeviceGetMinorNumber": (),
    "nvmlDeviceGetUUID": (),
    "nvmlDeviceGetPciInfo": (),
    "nvmlDeviceGetMemoryInfo": (),
    "nvmlDeviceGetUtilizationRates": (),
    "nvmlDeviceGetComputeRunningProcesses": (),
    "nvmlDeviceGetGraphicsRunningProcesses": (),
    "nvmlDeviceGetCudaComputeCapability": (),
    "nvmlDeviceGetComputeMode": (),
    "nvmlDeviceGetPersistenceMode": (),
}
NOT_SUPPORTED = {
    "nvmlDeviceGetTemperature": (0,),
    "nvmlDeviceGetPowerUsage": (),
    "nvmlDeviceGetEnforcedPowerLimit": (),
    "nvmlDeviceGetPowerManagementLimit": (),
    "nvmlDeviceGetFanSpeed": (),
    "nvmlDeviceGetClockInfo": (2,),
}


def nvidia_smi(*arguments, **settings):
    # Any Python may be the first on the path.
    return subprocess.run(
        [sys.executable, "-I", str(TOOLS / "bin" / "nvidia-smi"), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OPENREG_DEVICE_COUNT": "3", "OPENREG_DEVICE_MEMORY": "1GiB"} | settings,
        timeout=120,
    )


class TestProgram(OpenRegTestCase):
    def test_it_is_a_program(self):
        self.assertTrue(os.access(TOOLS / "bin" / "nvidia-smi", os.X_OK))

    @parametrize("option", ["-L", "--list-gpus"])
    def test_list(self, option):
        lines = nvidia_smi(option, CUDA_VISIBLE_DEVICES="1").stdout.splitlines()
        name = torch.cuda.get_device_name(0)
        self.assertEqual(lines, [f"GPU {i}: {name} (UUID: {UUIDS[i]})" for i in range(3)])

    def test_query(self):
        query = "--query-gpu=index, name,uuid,memory.total,temperature.gpu,compute_cap"
        name = torch.cuda.get_device_name(0)
        self.assertEqual(
            nvidia_smi(query, "--format=csv", "-i", "0,2").stdout.splitlines(),
            [
                "index, name, uuid, memory.total [MiB], temperature.gpu, compute_cap",
                f"0, {name}, {UUIDS[0]}, 1024 MiB, [N/A], 8.0",
                f"2, {name}, {UUIDS[2]}, 1024 MiB, [N/A], 8.0",
            ],
        )

    @parametrize(
        "style,expected",
        [
            ("csv,noheader", "1024 MiB\n"),
            ("csv,noheader,nounits", "1024\n"),
            ("csv,nounits", "memory.total [MiB]\n1024\n"),
        ],
    )
    def test_styles(self, style, expected):
        run = nvidia_smi("--query-gpu=memory.total", f"--format={style}", "-i", UUIDS[1])
        self.assertEqual(run.stdout, expected)

    def test_table(self):
        text = nvidia_smi(OPENREG_CUDA_VERSION="12.8").stdout
        self.assertRegex(text, r"Driver Version: 0\.\d\S* +CUDA Version: 12\.8 ")
        for number in range(3):
            self.assertRegex(text, rf"\|   {number}  OpenReg")
        self.assertIn("1024MiB", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 79)

    def test_report(self):
        text = nvidia_smi("-q", "-i", "1", OPENREG_CUDA_VERSION="12.8").stdout
        values = dict(re.findall(r"(?m)^ *(\S.*?) +: (.*)$", text))
        expected = {
            "CUDA Version": "12.8",
            "Attached GPUs": "3",
            "Product Name": torch.cuda.get_device_name(0),
            "GPU UUID": UUIDS[1],
            "Total": "1024 MiB",
            "GPU Current Temp": "N/A",
        }
        self.assertEqual(values | expected, values)
        self.assertEqual(re.findall(r"(?m)^GPU (\S+)$", text), ["00000000:01:00.0"])

    def test_report_of_parts(self):
        lines = nvidia_smi("-q", "-d", "MEMORY", "-i", "0").stdout.splitlines()
        names = [line.partition(":")[0].strip() for line in lines[8:]]
        self.assertEqual(names, ["GPU 00000000", "FB Memory Usage", "Total", "Used", "Free", ""])

    def test_report_lists_processes(self):
        x = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        text = nvidia_smi("-q", "-d", "PIDS", "-i", "0").stdout
        own = text.partition(f": {os.getpid()}\n")[2]
        size = re.search(r"Used GPU Memory +: (\d+) MiB", own)[1]
        self.assertGreaterEqual(int(size), x.nbytes >> 20)

    def test_processes_that_use_a_device_are_listed(self):
        x = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        run = nvidia_smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
        used = {}
        for line in run.stdout.splitlines():
            pid, size = line.split(", ")
            used[int(pid)] = used.get(int(pid), 0) + int(size)
        self.assertGreaterEqual(used[os.getpid()], x.nbytes >> 20)

    @parametrize(
        "arguments,status,text",
        [
            (("--query-gpu=watts", "--format=csv"), 2, 'Field "watts" is not a valid field'),
            (("--query-gpu=index", "--format=xml"), 2, "expected csv[,noheader][,nounits]"),
            (("--query-gpu=index",), 2, "expected csv[,noheader][,nounits]"),
            (("-d", "MEMORY"), 2, "-d: expected -q as well"),
            (("-q", "-d", "FAN"), 2, "-d: expected parts of MEMORY, COMPUTE"),
            (("-L", "-i", "3"), 6, "expected a number below 3"),
            (("-L", "-i", "x"), 6, "expected a number below 3"),
        ],
    )
    def test_bad_arguments(self, arguments, status, text):
        run = nvidia_smi(*arguments)
        self.assertEqual(run.returncode, status)
        self.assertIn(text, run.stdout + run.stderr)

    @parametrize(
        "variable,value", [("OPENREG_DEVICE_COUNT", "99"), ("OPENREG_CUDA_CAPABILITY", "8")]
    )
    def test_bad_setting(self, variable, value):
        run = nvidia_smi("-L", **{variable: value})
        self.assertEqual(run.returncode, 9)
        self.assertIn("a setting is invalid", run.stdout)


class TestModule(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        torch.cuda.init()
        self.nvml = importlib.import_module("torch_openreg.extras.cuda.tools.pynvml")
        self.nvml.nvmlInit()
        self.handle = self.nvml.nvmlDeviceGetHandleByIndex(0)

    def tearDown(self):
        self.nvml.nvmlShutdown()
        super().tearDown()

    def test_devices_are_those_of_torch(self):
        self.assertEqual(self.nvml.nvmlDeviceGetCount(), torch.cuda.device_count())
        for index in range(torch.cuda.device_count()):
            handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
            properties = torch.cuda.get_device_properties(index)
            uuid = self.nvml.nvmlDeviceGetUUID(handle)
            self.assertEqual(uuid, f"GPU-{properties.uuid}")
            self.assertEqual(bytes(properties.uuid.bytes).hex(), properties.uuid.replace("-", ""))
            self.assertEqual(self.nvml.nvmlDeviceGetName(handle), properties.name)
            self.assertEqual(
                self.nvml.nvmlDeviceGetMemoryInfo(handle).total, properties.total_memory
            )
            self.assertEqual(
                self.nvml.nvmlDeviceGetCudaComputeCapability(handle),
                torch.cuda.get_device_capability(index),
            )
            bus = self.nvml.nvmlDeviceGetPciInfo(handle).busId
            for found in (
                self.nvml.nvmlDeviceGetHandleByUUID(uuid),
                self.nvml.nvmlDeviceGetHandleByPciBusId(bus),
            ):
                self.assertEqual(self.nvml.nvmlDeviceGetIndex(found), index)

    def test_functions_answer(self):
        for name, arguments in FUNCTIONS.items():
            with self.subTest(name=name):
                self.assertIsNotNone(getattr(self.nvml, name)(self.handle, *arguments))
        for name in ("DriverVersion", "NVMLVersion", "CudaDriverVersion"):
            self.assertIsNotNone(getattr(self.nvml, f"nvmlSystemGet{name}")())

    def test_what_needs_a_sensor_says_so(self):
        for name, arguments in NOT_SUPPORTED.items():
            with (
                self.subTest(name=name),
                self.assertRaisesRegex(self.nvml.NVMLError_NotSupported, "Not Supported"),
            ):
                getattr(self.nvml, name)(self.handle, *arguments)

    def test_errors_are_nvml_s(self):
        for index in (-1, self.nvml.nvmlDeviceGetCount()):
            with self.assertRaises(self.nvml.NVMLError_InvalidArgument):
                self.nvml.nvmlDeviceGetHandleByIndex(index)
        with self.assertRaises(self.nvml.NVMLError_NotFound):
            self.nvml.nvmlDeviceGetHandleByUUID("GPU-1")
        error = self.nvml.NVMLError(self.nvml.NVML_ERROR_NOT_FOUND)
        self.assertIsInstance(error, self.nvml.NVMLError_NotFound)
        self.assertEqual((error.value, str(error)), (6, "Not Found"))

    def test_it_is_used_between_init_and_shutdown(self):
        program = f"""
        import sys
        sys.path.append({str(TOOLS)!r})
        import pynvml
        for function in (pynvml.nvmlDeviceGetCount, pynvml.nvmlShutdown):
            try:
                function()
            except pynvml.NVMLError_Uninitialized as error:
                print(error)
        pynvml.nvmlInit()
        print(pynvml.nvmlDeviceGetCount(), "torch" in sys.modules)
        """
        output = run_program(program, {"OPENREG_DEVICE_COUNT": "5"}).stdout
        self.assertEqual(output.splitlines(), ["Uninitialized", "Uninitialized", "5 False"])

    def test_memory_of_this_process_is_what_its_allocator_holds(self):
        before = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        after = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        self.assertGreaterEqual(after.used, x.nbytes)
        self.assertEqual(after.total, before.total)
        own = [
            one.usedGpuMemory
            for one in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
            if one.pid == os.getpid()
        ]
        self.assertEqual(own, [torch.cuda.memory_reserved()])


class TestTorch(OpenRegTestCase):
    @requires_two_devices
    def test_utilization_says_whether_work_is_under_way(self):
        torch.cuda.synchronize()
        self.assertEqual((torch.cuda.utilization(), torch.cuda.memory_usage()), (0, 0))
        with StreamGate() as gate:
            self.assertEqual((torch.cuda.utilization(0), torch.cuda.utilization(1)), (100, 0))
            gate.open()

    def test_memory_and_processes(self):
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        self.assertGreaterEqual(torch.cuda.device_memory_used(), x.nbytes)
        text = torch.cuda.list_gpu_processes()
        self.assertEqual(text.splitlines()[0], "GPU:0")
        self.assertRegex(text, rf"process +{os.getpid()} uses +\d+\.\d\d\d MB GPU memory")

    def test_sensors_that_there_are_not(self):
        for function in (torch.cuda.temperature, torch.cuda.power_draw):
            with self.assertRaisesRegex(Exception, "^Not Supported$"):
                function()

    @pytest.mark.slow
    def test_devices_are_known_by_their_number_without_the_list_of_visible_ones(self):
        program = """
        import torch
        x = torch.ones(1, device="cuda:1")
        print(torch.cuda.list_gpu_processes(1).splitlines()[0])
        print(torch.cuda.utilization(1) in (0, 100))
        """
        for variable in ("CUDA_VISIBLE_DEVICES", "OPENREG_VISIBLE_DEVICES"):
            settings = {variable: "2,1", "OPENREG_DEVICE_COUNT": "3"}
            self.assertEqual(run_program(program, settings).stdout.split(), ["GPU:1", "True"])


PROGRAM = """
import shutil, subprocess, sys
print(shutil.which("nvidia-smi"))
import pynvml
print(pynvml.__file__, "torch" in sys.modules)
print(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU "))
"""


class TestOffer(OpenRegTestCase):
    """Processes that find the program and the module."""

    @parametrize("is_installed", [False, True])
    def test_programs_that_the_package_runs_find_them(self, is_installed):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "program.py").write_text(PROGRAM)
            (folder / "site").mkdir()
            if is_installed:
                (folder / "site" / "pynvml.py").write_text("")
            run = subprocess.run(
                [sys.executable, "-m", "torch_openreg.cuda", "--devices=3", folder / "program.py"],
                capture_output=True,
                text=True,
                timeout=240,
                check=True,
                env=os.environ | {"PYTHONPATH": str(folder / "site")},
            )
            expected = folder / "site" if is_installed else TOOLS
        lines = run.stdout.splitlines()
        self.assertEqual(lines[0], str(TOOLS / "bin" / "nvidia-smi"))
        self.assertEqual(lines[1], f"{expected / 'pynvml.py'} False")
        self.assertEqual(lines[2], "3")

    def test_other_programs_do_not(self):
        run = run_program(
            "import importlib.util, os, torch\n"
            "print(importlib.util.find_spec('pynvml') is None, 'cuda/tools' in os.environ['PATH'])"
        )
        installed = importlib.util.find_spec("pynvml") is not None
        self.assertEqual(run.stdout.split(), [str(not installed), "False"])


instantiate_parametrized_tests(TestProgram)
instantiate_parametrized_tests(TestOffer)

if __name__ == "__main__":
    run_tests()
