"""Dry runs of several ranks: a process for each, and messages between them."""

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests

pytestmark = pytest.mark.sample(0.3)

ROOT = Path(__file__).resolve().parents[3]
BEGIN = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank % torch.cuda.device_count())
"""


def play(ranks, *arguments, size=8, options=(), folder=None):
    environment = {name: one for name, one in os.environ.items() if not name.startswith("OPENREG_")}
    # The ranks share stdout: a buffer keeps the parts of a line together.
    environment.pop("PYTHONUNBUFFERED", None)
    command = ("--dry-run", "--world-size", str(size), "--ranks", ranks, *options, *arguments)
    return subprocess.run(
        [sys.executable, "-m", "torch_openreg.cuda", *command],
        env=environment,
        cwd=folder or os.path.dirname(os.path.realpath(__file__)),
        capture_output=True,
        text=True,
        timeout=300,
    )


def play_code(ranks, body, **options):
    return play(ranks, "-c", BEGIN + textwrap.dedent(body), **options)


class TestMessages(OpenRegTestCase):
    def check(self, ranks, body, expected, **options):
        ended = play_code(ranks, body, **options)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(ended.stdout.splitlines()), expected)

    def test_small_messages_arrive_in_their_order(self):
        body = """
        if rank == 1:
            for i in range(3):
                dist.send(torch.full((4,), float(i), device="cuda"), 6)
        else:
            one = torch.empty(4, device="cuda")
            for _ in range(3):
                dist.recv(one, 1)
                print(one.tolist())
        """
        self.check("1,6", body, [str([float(i)] * 4) for i in range(3)])

    def test_large_messages_take_memory_and_are_not_moved(self):
        body = """
        one = torch.ones(2**30, device="cuda")
        if rank == 0:
            dist.send(one, 4)
        else:
            dist.recv(one, 0)
        torch.cuda.synchronize()
        print(torch.cuda.memory_allocated() >= 2**32)
        """
        self.check("0,4", body, ["True", "True"])

    def test_objects_and_both_directions(self):
        body = """
        other = 5 - rank
        def send():
            dist.send_object_list([{"from": rank}], other)
        def receive():
            objects = [None]
            dist.recv_object_list(objects, other)
            print(rank, objects)
        for one in ((send, receive) if rank == 2 else (receive, send)):
            one()
        """
        self.check("2,3", body, ["2 [{'from': 3}]", "3 [{'from': 2}]"])

    def test_batches_and_groups(self):
        body = """
        group = dist.new_group([1, 5])
        own = torch.tensor([rank], device="cuda")
        others = torch.empty_like(own)
        peer = 6 - rank
        operations = [
            dist.P2POp(dist.isend, own, peer, group), dist.P2POp(dist.irecv, others, peer, group)
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        print(rank, others.item())
        """
        self.check("1,5", body, ["1 5", "5 1"])

    def test_batch_sends_before_it_waits(self):
        body = """
        own = torch.tensor([rank], device="cuda")
        others = torch.empty_like(own)
        peer = 6 - rank
        operations = [dist.P2POp(dist.irecv, others, peer), dist.P2POp(dist.isend, own, peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        group = dist.new_group([1, 5], backend="gloo")
        on_host = torch.tensor([10 * rank])
        receipt = dist.irecv(copy := torch.empty_like(on_host), peer, group)
        dist.send(on_host, peer, group)
        receipt.wait()
        print(rank, others.item(), copy.item())
        """
        self.check("1,5", body, ["1 5 50", "5 1 10"])

    def test_thread_that_waits_does_not_keep_others_from_sending(self):
        body = """
        from threading import Thread
        store = dist.distributed_c10d._get_default_store()
        other = 3 - rank
        received = []
        for i in range(20):
            begin = f"openreg_message/{i}/"
            waiting = Thread(target=lambda: received.append(store.get(f"{begin}{other}")))
            waiting.start()
            # What the other rank's thread waits for is sent after this, which must not wait.
            store.set(f"{begin}{rank}/ready", b"")
            store.get(f"{begin}{other}/ready")
            store.set(f"{begin}{rank}", str(rank).encode())
            waiting.join()
        print(rank, set(received))
        """
        self.check("1,2", body, ["1 {b'2'}", "2 {b'1'}"])

    def test_tensors_of_the_cpu(self):
        body = """
        group = dist.new_group([0, 3], backend="gloo")
        if rank == 0:
            dist.send(torch.arange(3), 3, group=group)
        else:
            one = torch.empty(3, dtype=torch.long)
            dist.recv(one, 0, group=group)
            print(one.tolist())
        """
        self.check("0,3", body, ["[0, 1, 2]"])

    def test_message_of_an_absent_rank_ends_all(self):
        body = """
        dist.recv(torch.empty(4, device="cuda"), 7 if rank == 0 else 0)
        torch.cuda.synchronize()
        """
        ended = play_code("0,1", body)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("got one of rank 7", ended.stderr)
        self.assertIn("dry run: rank 0 ended with 1", ended.stderr)

    def test_wrong_size_is_an_error(self):
        body = """
        if rank == 0:
            dist.send(torch.empty(8, device="cuda"), 1)
        else:
            dist.recv(torch.empty(4, device="cuda"), 0)
        torch.cuda.synchronize()
        """
        ended = play_code("0,1", body)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("rank 0 sent 32 bytes with tag 0, but this rank expects 16", ended.stderr)


class TestPipeline(OpenRegTestCase):
    def test_example(self):
        (line,) = re.findall(
            r"<!-- command: dry-run-pipeline -->\n```sh\npython (.*?)\n```",
            (ROOT / "docs" / "dry_run.md").read_text(),
            re.DOTALL,
        )
        with tempfile.TemporaryDirectory() as folder:
            command = line.replace("\\\n", "").replace("examples/", f"{ROOT}/examples/").split()
            report = ["--report", f"{folder}/%r.json"]
            ended = subprocess.run(
                [sys.executable, *command[:-1], *report, command[-1]],
                capture_output=True,
                text=True,
                timeout=300,
            )
            self.assertEqual(ended.returncode, 0, ended.stderr)
            reports = [json.loads((Path(folder) / f"{i}.json").read_text()) for i in (0, 4)]
        self.assertEqual([one["rank"] for one in reports], [0, 4])
        self.assertIn("rank 4 of 8", ended.stderr)
        lines = sorted(ended.stdout.splitlines())
        self.assertEqual(
            [one.split(":")[0] for one in lines], ["rank 0, stage 0", "rank 4, stage 1"]
        )
        # Both shards are alike, but the first stage has more micro-batches at a time.
        parameters, activations = (
            [one["devices"][0]["categories"][name] for one in reports]
            for name in ("parameters", "activations")
        )
        self.assertEqual(parameters[0], parameters[1], rtol=0.05, atol=0)
        self.assertGreater(activations[0], activations[1])


class TestOptions(OpenRegTestCase):
    @parametrize(
        "ranks, options, text",
        [
            ("0,8", (), "--ranks: expected ranks below --world-size, 8, with commas"),
            ("0,0", (), "--ranks: expected ranks below --world-size, 8, with commas"),
            ("all", (), "--ranks: expected ranks below --world-size, 8, with commas"),
            ("0,1", ("--rank", "1"), "--ranks: expected no --rank with it"),
            ("0,1", ("--report", "a.json"), "--report: expected %r, which is the rank"),
        ],
        name_fn=lambda ranks, options, text: "_".join([ranks, *options[:1]]).replace(",", "_"),
    )
    def test_wrong_use_is_explained(self, ranks, options, text):
        ended = play(ranks, "-c", "pass", options=options)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn(text, ended.stderr)


instantiate_parametrized_tests(TestOptions)

if __name__ == "__main__":
    run_tests()
