"""Operations of a group in traces: their names, arguments and groups."""

import json
import os
import tempfile

import torch
import torch.distributed as dist
from common import run_tests
from extras.distributed.ranks import NAME, RanksTestCase, device_of
from torch.profiler import ProfilerActivity, profile


def recorded(function):
    """Returns the arguments of the communication events that a function records, and its titles."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        function()
    torch.openreg.synchronize()
    titles = [event.name for event in profiler.events() if event.name.startswith(f"{NAME}:")]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    events = [event for event in events if event["name"] == "record_param_comms"]
    return [event["args"] for event in sorted(events, key=lambda event: event["ts"])], titles


def collectives(rank, size):
    """Calls each collective, and returns its recorded events."""
    device = device_of(rank)
    x = torch.arange(6, device=device).to(torch.float)
    wide = torch.zeros(12, device=device)
    parts = [torch.zeros(6, device=device) for _ in range(size)]
    half = torch.zeros(3, device=device)
    calls = {
        "allreduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 1),
        "reduce": lambda: dist.reduce(x, 1),
        "all_gather": lambda: dist.all_gather(parts, x),
        "_allgather_base": lambda: dist.all_gather_into_tensor(wide, x),
        "gather": lambda: dist.gather(x, parts if rank == 0 else None, 0),
        "scatter": lambda: dist.scatter(x, parts if rank == 0 else None, 0),
        "reduce_scatter": lambda: dist.reduce_scatter(x, parts),
        "_reduce_scatter_base": lambda: dist.reduce_scatter_tensor(half, x),
        "all_to_allv": lambda: dist.all_to_all_single(x, x + 1, [3, 3], [3, 3]),
        "all_to_all": lambda: dist.all_to_all(parts, [x, x]),
        "barrier": lambda: dist.barrier(device_ids=[device.index]),
    }
    results = {}
    for name, call in calls.items():
        records, titles = recorded(call)
        (record,) = [one for one in records if one["Collective name"] != "wait"]
        results[name] = record, titles
    return results


def wait_for_one(rank, size):
    x = torch.ones(5, dtype=torch.int32, device=device_of(rank))
    records, _ = recorded(lambda: dist.all_reduce(x, async_op=True).wait())
    return records


def send_and_receive(rank, size):
    x = torch.ones(7, device=device_of(rank))
    return recorded(lambda: dist.send(x, 1) if rank == 0 else dist.recv(x, 0))


def coalesce(rank, size):
    device = device_of(rank)
    x, y = torch.ones(2, device=device), torch.ones(3, device=device)

    def batch():
        with dist._coalescing_manager(device=device):
            dist.all_reduce(x)
            dist.all_reduce(y)

    def message_batch():
        operations = [
            dist.P2POp(dist.isend, x, 1 - rank),
            dist.P2POp(dist.irecv, torch.empty_like(x), 1 - rank),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return recorded(batch)[0], recorded(message_batch)[0]


def in_subgroup(rank, size):
    group = dist.new_group([1], group_desc="a part")
    if rank == 0:
        return None
    x = torch.ones(2, device=device_of(rank))
    records, _ = recorded(lambda: dist.all_reduce(x, group=group))
    return records[0]


class TestTraces(RanksTestCase):
    def test_collectives_say_what_nccl_says(self):
        sizes = {
            "_allgather_base": (6, 12),
            "_reduce_scatter_base": (6, 3),
            "all_gather": (6, 12),
            "all_to_all": (12, 12),
            "barrier": (0, 0),
            "gather": (6, 12),
            "reduce_scatter": (12, 6),
            "scatter": (12, 6),
        }
        titles = {
            "allreduce": "all_reduce",
            "_allgather_base": "_all_gather_base",
            "all_to_allv": "all_to_all",
        }
        for of_rank in self.run_ranks(collectives):
            for name, (record, titles_of_call) in of_rank.items():
                expected = {
                    "Collective name": name,
                    "dtype": "Byte" if name == "barrier" else "Float",
                    "Group size": 2,
                    "Process Group Name": "0",
                    "Process Group Description": "default_pg",
                    "Process Group Ranks": "[0, 1]",
                    "Global rank start": 0,
                    "Global rank stride": 1,
                }
                self.assertEqual({key: record.get(key) for key in expected}, expected)
                elements = (record["In msg nelems"], record["Out msg nelems"])
                self.assertEqual(elements, sizes.get(name, (6, 6)), name)
                self.assertEqual(titles_of_call, [f"{NAME}:{titles.get(name, name)}"])
            splits = of_rank["all_to_allv"][0]
            self.assertEqual(splits["In split size"], "[3, 3]")
            self.assertEqual(splits["Out split size"], "[3, 3]")

    def test_waits_are_recorded(self):
        for records in self.run_ranks(wait_for_one):
            names = [record["Collective name"] for record in records]
            self.assertEqual(names, ["allreduce", "wait"])
            self.assertEqual(records[0]["dtype"], "Int")

    def test_messages_name_the_other_rank(self):
        (sent, sent_titles), (received, received_titles) = self.run_ranks(send_and_receive)
        self.assertEqual(sent[0]["Collective name"], "send")
        self.assertEqual(sent[0]["Dst Rank"], 1)
        self.assertEqual(sent_titles, [f"{NAME}:send 0->1"])
        self.assertEqual(received[0]["Collective name"], "recv")
        self.assertEqual(received[0]["Src Rank"], 0)
        self.assertEqual(received_titles, [f"{NAME}:recv 1<-0"])
        self.assertEqual(received[0]["In msg nelems"], 7)

    def test_each_of_a_batch_is_recorded(self):
        for batch, message_batch in self.run_ranks(coalesce):
            batch = [one for one in batch if one["Collective name"] != "wait"]
            names = {one["Collective name"] for one in batch}
            self.assertEqual(names, {"allreduce_coalesced"})
            self.assertEqual(sum(one["In msg nelems"] for one in batch), 5)
            names = [one["Collective name"] for one in message_batch]
            self.assertEqual(names[:2], ["send", "recv"])

    def test_groups_name_their_ranks(self):
        _, record = self.run_ranks(in_subgroup)
        self.assertEqual(record["Process Group Description"], "a part")
        self.assertEqual(record["Process Group Ranks"], "[1]")
        self.assertEqual(record["Global rank start"], 1)
        self.assertEqual(record["Group size"], 1)


if __name__ == "__main__":
    run_tests()
