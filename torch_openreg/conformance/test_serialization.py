"""Serialization: files keep contents, layouts and shared memory, and say where tensors were."""

import copy
import io
import pickle
from typing import Any

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs
from torch_openreg.conformance.target import target

DEVICE = target().device


def loaded(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


class TestSerialization(ConformanceTestCase):
    def test_tensor_comes_back_to_its_device(self) -> None:
        x = torch.arange(12.0).view(3, 4).to(DEVICE)
        y = loaded(x)
        self.assertEqual(y.device, DEVICE)
        self.assert_bit_equal(y, x)

    def test_map_location_takes_a_tensor_to_the_cpu_and_back(self) -> None:
        x = torch.arange(5.0)
        self.assertEqual(loaded(x.to(DEVICE), map_location="cpu").device.type, "cpu")
        y = loaded(x, map_location=str(DEVICE))
        self.assertEqual(y.device, DEVICE)
        self.assert_bit_equal(y, x)

    @needs("two devices")
    def test_map_location_chooses_another_device(self) -> None:
        y = loaded(torch.ones(3, device=DEVICE), map_location={str(DEVICE): str(target().other())})
        self.assertEqual(y.device, target().other())

    def test_strides_and_shared_memory_are_kept(self) -> None:
        x = torch.arange(12.0).view(3, 4).to(DEVICE)
        y, z = loaded([x, x.t()[1:]])
        self.assertEqual(z.stride(), x.t()[1:].stride())
        y.zero_()
        self.assert_bit_equal(z, torch.zeros(3, 3))

    def test_module_and_optimizer_go_on_where_they_were(self) -> None:
        model = torch.nn.Linear(3, 2).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(4, 3, device=DEVICE)).sum().backward()
        optimizer.step()
        states = loaded([model.state_dict(), optimizer.state_dict()])
        other = torch.nn.Linear(3, 2).to(DEVICE)
        other_optimizer = torch.optim.AdamW(other.parameters())
        other.load_state_dict(states[0])
        other_optimizer.load_state_dict(states[1])
        for one in (model, other):
            one.zero_grad()
            one(torch.ones(4, 3, device=DEVICE)).pow(2).sum().backward()
        optimizer.step()
        other_optimizer.step()
        for weight, same in zip(model.parameters(), other.parameters(), strict=True):
            self.assert_bit_equal(weight.detach(), same.detach())

    def test_deep_copies_and_pickles_have_memory_of_their_own(self) -> None:
        x = torch.ones(4, device=DEVICE)
        for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
            self.assertEqual(y.device, DEVICE)
            y.zero_()
            self.assert_bit_equal(x, torch.ones(4))
