"""The demo program: its output, its exit code, and that it detects results that differ."""

import contextlib
import importlib.metadata
import io
import itertools
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

import torch_openreg
from torch_openreg import _C
from torch_openreg import __main__ as program
from torch_openreg.demo import overlap, training
from torch_openreg.demo.digits import load_digits
from torch_openreg.demo.report import Progress, Report, are_steady

pytestmark = pytest.mark.sample(0.12)


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_openreg", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the program quick, where its own sizes do not matter."""
    monkeypatch.setattr(overlap, "_LAUNCH_SIZE", 64)
    monkeypatch.setattr(overlap, "_LANE_SIZE", 32)
    monkeypatch.setattr(overlap, "_REPETITIONS", 1)


def _main(*arguments: str) -> tuple[int, str]:
    """Runs the program in this process; returns its exit code and output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exit_code = program.main(arguments)
    return exit_code, output.getvalue()


def test_program_shows_all_sections_and_succeeds() -> None:
    completed = _run(["--epochs", "2"])
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stderr == ""
    for line in (
        r"openreg:0  .*GiB of memory",
        r"openreg:1  .*GiB of memory",
        r"matmul 2048x2048: launch returned after [\d.]+ ms, done after [\d.]+ ms",
        r"two streams of one device: [\d.]+ \([\d.]+ to [\d.]+\) of the time of one after",
        r"two devices: [\d.]+ \([\d.]+ to [\d.]+\) of the time of one after the other",
        r"\[ok\]     the losses of all 46 steps are bit-equal",
        r"\[ok\]     all parameters are bit-equal after training",
        r"time per epoch: [\d.]+ \([\d.]+ to [\d.]+\) of the CPU's",
        r"openreg and the CPU agree",
    ):
        assert re.search(line, completed.stdout), f"{line!r} is missing in:\n{completed.stdout}"


def test_what_torch_warns_of_missing_is_installed_with_the_package() -> None:
    requirements = importlib.metadata.requires("torch_openreg") or []
    names = {re.match(r"[\w-]+", text)[0] for text in requirements if "extra ==" not in text}
    assert names == {"torch", "numpy"}


def test_output_without_a_terminal_has_no_control_characters() -> None:
    completed = _run(["--epochs", "1"])
    assert completed.returncode == 0
    assert completed.stdout.replace("\n", "").isprintable()


@pytest.mark.usefixtures("small_problems")
def test_device_option_selects_the_training_device() -> None:
    exit_code, output = _main("--epochs", "1", "--device", "openreg:1")
    assert exit_code == 0
    assert "Training on openreg:1 and on the CPU" in output


@pytest.mark.parametrize(
    "arguments",
    [["--epochs", "0"], ["--epochs", "x"], ["--device", "cpu"], ["--device", "nonsense"]],
    ids=" ".join,
)
def test_bad_option_is_refused_with_its_value(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        program.main(arguments)
    assert exit_.value.code == 2
    assert repr(arguments[1]) in capsys.readouterr().err


@pytest.mark.usefixtures("small_problems")
@pytest.mark.parametrize("busy_device", ["openreg", "cpu"])
def test_times_on_a_busy_machine_are_not_compared(
    busy_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_epoch = training.Training.run_epoch
    seconds = itertools.cycle([0.01, 0.3, 0.02])

    def timed(self: training.Training, order: torch.Tensor) -> training.Epoch:
        losses = run_epoch(self, order).losses
        return training.Epoch(losses, next(seconds) if self.device.type == busy_device else 0.01)

    monkeypatch.setattr(training.Training, "run_epoch", timed)
    exit_code, output = _main("--epochs", "7")
    assert exit_code == 0
    assert "time per epoch: not compared, as other programs use the processors: 10 to " in output
    assert "of the CPU's" not in output


@pytest.mark.usefixtures("small_problems")
def test_one_flipped_bit_in_a_loss_fails_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_epoch = training.Training.run_epoch

    def tampered(self: training.Training, order: torch.Tensor) -> training.Epoch:
        epoch = run_epoch(self, order)
        if self.device.type == "openreg":
            epoch.losses.view(torch.int32)[7] ^= 1
        return epoch

    monkeypatch.setattr(training.Training, "run_epoch", tampered)
    exit_code, output = _main("--epochs", "1")
    assert exit_code == 1
    assert re.search(r"\[FAILED\] the losses .* bit-equal: 1 differ, the first at step 7", output)
    assert "1 of the checks failed" in output


@pytest.mark.usefixtures("small_problems")
def test_a_changed_parameter_fails_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = training.Training.parameters

    def tampered(self: training.Training) -> dict[str, torch.Tensor]:
        values = parameters(self)
        if self.device.type == "openreg":
            values["0.bias"][3] += 1
        return values

    monkeypatch.setattr(training.Training, "parameters", tampered)
    exit_code, output = _main("--epochs", "1")
    assert exit_code == 1
    assert "[FAILED] all parameters are bit-equal after training: 0.bias differ" in output


@pytest.mark.usefixtures("small_problems")
def test_a_wrong_result_of_a_stream_fails_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = overlap._Lane.launch

    def launch_and_add(self: overlap._Lane) -> torch.Tensor:
        with self.stream:
            return launch(self) + 1

    monkeypatch.setattr(overlap._Lane, "launch", launch_and_add)
    exit_code, output = _main("--epochs", "1")
    assert exit_code == 1
    assert "[FAILED] the results on two streams of one device equal the CPU's" in output


def test_no_visible_device_fails_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENREG_VISIBLE_DEVICES", "")
    completed = _run([])
    assert completed.returncode == 1
    assert (
        "[FAILED] at least one device is visible: 0 devices: OPENREG_VISIBLE_DEVICES is ''"
        in completed.stdout
    )


def test_bad_setting_fails_the_program_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENREG_DEVICE_MEMORY", "8GB")
    completed = _run([])
    assert completed.returncode == 1
    assert "0 devices: OPENREG_DEVICE_MEMORY is '8GB'; allowed: a size of" in completed.stdout


def test_settings_are_listed_with_their_values_and_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENREG_DEVICE_COUNT", "3")
    completed = _run(["--settings"])
    assert completed.returncode == 0, completed.stderr
    for text in (
        "OPENREG_DEVICE_COUNT = 3  (environment)\n    Number of devices.\n"
        "    Default: 2. Allowed: an integer from 0 to 64.\n",
        "OPENREG_FALLBACK = silent  (default)\n",
    ):
        assert text in completed.stdout
    for row in _C._settings():
        assert f"{row[0]} = " in completed.stdout
    assert "BAD" not in completed.stdout


def test_list_of_settings_marks_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENREG_DEVICE_COUNT", "99")
    monkeypatch.setenv("OPENREG_SANITISER", "1")
    monkeypatch.setenv("OPENREG_DEVICE_TYPE", "cuda")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "yes")
    completed = _run(["--settings"])
    assert completed.returncode == 1
    assert "OPENREG_DEVICE_COUNT = 99  (environment)  BAD\n" in completed.stdout
    assert "LAUNCH_BLOCKING = 0  (from CUDA_LAUNCH_BLOCKING=yes)\n" in completed.stdout
    assert "No device is available: OPENREG_DEVICE_COUNT is '99'; allowed:" in completed.stdout
    assert "OPENREG_SANITISER is no setting; did you mean" in completed.stdout


def test_version_is_told() -> None:
    text = f"torch_openreg {torch_openreg.__version__}, torch {torch.__version__}\n"
    assert _run(["--version"]).stdout == text


def test_digits_are_all_there() -> None:
    digits = load_digits()
    assert digits.images.shape == (1797, 64)
    assert digits.images.dtype == torch.float32
    assert digits.images.min() == 0
    assert digits.images.max() == 1
    # From the description of the data set.
    assert digits.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line() -> None:
    terminal = _Terminal()
    progress = Progress(terminal, total=3)
    for _ in range(3):
        progress.advance("loss")
    assert terminal.getvalue().count("\r") == 3
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("3/3  loss\n")


@pytest.mark.parametrize(("total", "line_count"), [(1, 1), (3, 3), (10, 10), (25, 10)])
def test_progress_elsewhere_is_ten_lines_at_most(total: int, line_count: int) -> None:
    stream = io.StringIO()
    progress = Progress(stream, total)
    for _ in range(total):
        progress.advance("loss")
    lines = stream.getvalue().splitlines()
    assert len(lines) == line_count
    assert lines[-1] == f"{total}/{total}  loss"


@pytest.mark.parametrize(
    ("times", "expected"),
    [([1] * 7 + [90], True), ([1, 1.5, 2, 1.2], True), ([1, 9, 1, 9], False), ([1, 9, 9], True)],
)
def test_times_are_steady_if_most_are_alike(times: list[float], expected: bool) -> None:
    assert are_steady(times) == expected


def test_failed_check_is_kept_with_its_detail() -> None:
    report = Report(io.StringIO())
    report.check(True, "one is one")
    report.check(False, "one is two", "it is 1")
    assert report.failures == ["one is two: it is 1"]


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
