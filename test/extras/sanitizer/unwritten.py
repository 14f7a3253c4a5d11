"""Kernels that read uninitialized memory: see programs.py. They run with ``uninitialized=True``."""

import torch
from extras.sanitizer.graphs import _capture, _graph
from extras.sanitizer.programs import SIZE, _ready, current, device, mistake

__all__: list[str] = []

# An operator of a library, of which only the schema is known: it uses only the sizes of `like`, and
# does not read `x`.
_LIBRARY = torch.library.Library("openreg_sanitizer", "DEF")
_LIBRARY.define("fill_like_(Tensor(a!) x, Tensor like) -> ()")


def _fill_like(x: torch.Tensor, like: torch.Tensor) -> None:
    x.fill_(like.numel())


_LIBRARY.impl("fill_like_", _fill_like, "CPU")


@mistake("uninitialized")
def empty_tensor_is_added_to(right):
    x = torch.empty(SIZE, device=device)  # <1>
    if right:
        x.zero_()
    x.add_(1)  # <2>


@mistake("uninitialized")
def empty_tensor_is_read(right):
    x = torch.empty(SIZE, device=device)  # <1>
    if right:
        x.fill_(1)
    x + 1  # <2>


@mistake("uninitialized")
def empty_tensor_goes_to_the_host(right):
    x = torch.empty(SIZE, device=device)  # <1>
    if right:
        x.normal_()
    x.cpu()  # <2>


@mistake("uninitialized")
def element_of_an_empty_tensor_is_asked_for(right):
    x = torch.empty(SIZE, device=device)  # <1>
    if right:
        x[3] = 1
    x[3].item()  # <2>


@mistake("uninitialized")
def tensor_like_another_is_accumulated_into(right):
    x = _ready()
    total = torch.zeros_like(x) if right else torch.empty_like(x)  # <1>
    total += x  # <2>


@mistake("uninitialized")
def tensor_grows_and_is_read(right):
    x = _ready()
    x.resize_(2 * SIZE)  # <1>
    if right:
        x[SIZE:].zero_()
    x.sum()  # <2>


@mistake("uninitialized")
def last_row_is_not_filled(right):
    x = torch.empty(8, SIZE, device=device)  # <1>
    for row in range(8 if right else 7):
        x[row].fill_(row)
    x.sum()  # <2>


@mistake("uninitialized")
def every_second_column_is_filled(right):
    x = torch.empty_strided((8, 8), (8, 1), device=device)  # <1>
    x[:, ::2].fill_(1)
    if right:
        x[:, 1::2].fill_(2)
    x.sum()  # <2>


@mistake("uninitialized")
def product_is_added_to_what_was_there(right):
    a, b = _ready(8, 8), _ready(8, 8)
    out = torch.empty(8, 8, device=device)  # <1>
    if right:
        torch.mm(b, a, out=out)
    out.addcmul_(a, b)  # <2>


@mistake("uninitialized")
def memory_is_used_again_and_is_not_what_it_was(right):
    x = _ready()
    x.fill_(1)
    del x
    y = torch.empty(SIZE, device=device)  # <1>
    if right:
        y.fill_(1)
    y.mul(2)  # <2>


@mistake("uninitialized")
def fallback_reads(right):
    x = torch.empty(SIZE, device=device)  # <1>
    if right:
        x.uniform_()
    torch.cummax(x, 0)  # <2>


@mistake("uninitialized")
def result_of_a_library_is_read_where_nobody_wrote(right):
    x = torch.empty(2, SIZE, device=device)  # <1>
    torch.ops.openreg_sanitizer.fill_like_(x if right else x[0], torch.empty(SIZE, device=device))
    x.sum()  # <2>


@mistake("uninitialized")
def list_operator_reads(right):
    every = [torch.empty(SIZE, device=device) for _ in range(3)]  # <1>
    if right:
        torch._foreach_zero_(every)
    torch._foreach_add_(every, 1)  # <2>


@mistake("uninitialized")
def moving_average_starts_from_nothing(right):
    mean = torch.empty(4, device=device)  # <1>
    if right:
        mean.zero_()
    variance = torch.ones(4, device=device)
    torch.nn.functional.batch_norm(_ready(8, 4), mean, variance, training=True)  # <2>


@mistake("uninitialized")
def weight_is_never_initialized(right):
    layer = torch.nn.utils.skip_init(torch.nn.Linear, 4, 2, device=device)
    layer.weight = torch.nn.Parameter(torch.empty(2, 4, device=device))  # <1>
    torch.nn.init.zeros_(layer.bias)
    if right:
        torch.nn.init.normal_(layer.weight)
    layer(_ready(3, 4))  # <2>


@mistake("uninitialized")
def kernel_of_a_graph_reads_what_the_graph_did_not_write(right):
    x, graph = _ready(), _graph()
    with _capture(graph):
        total = torch.empty(SIZE, device=device)  # <1>
        if right:
            total.zero_()
        total.add_(x)  # <2>


@mistake("uninitialized")
def input_of_a_graph_is_not_filled(right):
    x, graph = torch.empty(SIZE, device=device), _graph()  # <1>
    with _capture(graph):
        x.mul(2)
    if right:
        x.fill_(1)
    graph.replay()  # <2>
    current().synchronize()
