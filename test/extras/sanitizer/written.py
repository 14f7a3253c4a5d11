"""Correct programs that allocate memory without filling it, and graphs that fork and join.

They run with ``uninitialized=True``, as do those of correct.py.
"""

import io

import torch
from extras.sanitizer.correct import _graph, correct
from extras.sanitizer.graphs import _capture
from extras.sanitizer.programs import SIZE, Event, Stream, _module, _ready, current, device, stream

__all__: list[str] = []


@correct
def empty_tensor_is_filled_in_each_way():
    source = _ready()
    for fill in (
        lambda x: x.fill_(1),
        lambda x: x.fill_(source[0]),
        lambda x: x.zero_(),
        lambda x: x.copy_(source),
        lambda x: x.copy_(torch.ones(SIZE)),
        lambda x: x.copy_(torch.ones(SIZE).pin_memory(), non_blocking=True),
        lambda x: x.copy_(torch.ones(SIZE, dtype=torch.float64)),
        lambda x: x.normal_(),
        lambda x: x.uniform_(),
        lambda x: x.bernoulli_(0.5),
        lambda x: x.exponential_(),
        lambda x: x.random_(10),
        lambda x: x.set_(source),
        lambda x: x.__setitem__(slice(None), 3),
        lambda x: torch.nn.init.trunc_normal_(x),
        lambda x: torch.add(source, 1, out=x),
        lambda x: torch.cummax(source, 0, out=(x, torch.empty_like(x, dtype=torch.long))),
        lambda x: torch.arange(SIZE, out=x),
        lambda x: x.index_copy_(0, torch.arange(SIZE, device=device), source),
        lambda x: x.scatter_(0, torch.arange(SIZE, device=device), source),
        lambda x: x.masked_fill_(torch.ones(SIZE, dtype=torch.bool, device=device), 1),
        lambda x: torch._foreach_copy_([x], [source]),
    ):
        x = torch.empty(SIZE, device=device)
        fill(x)
        x.add(1).cpu()


@correct
def empty_tensor_is_filled_piece_by_piece():
    rows = torch.empty(10, SIZE, device=device)
    for row in rows:
        row.fill_(1)
    columns = torch.empty(10, SIZE, device=device)
    for column in range(SIZE):
        columns[:, column].copy_(rows[:, column])
    halves = torch.empty(100, SIZE, device=device)
    halves[:, : SIZE // 2].fill_(1)
    halves[:, SIZE // 2 :].fill_(2)
    (rows + columns).sum().item()
    halves.t().contiguous().cpu()


@correct
def only_the_filled_part_is_read():
    x = torch.empty(SIZE, SIZE, device=device)
    x[:10, ::2].fill_(1)
    x[:10, ::2].sum().item()
    x[3, 4].item()
    cache, kept = torch.empty(4, 100, 8, device=device), []
    for step in range(5):
        cache[:, step] = step
        kept.append(cache[:, : step + 1].sum())
    torch.stack(kept).cpu()


@correct
def gaps_between_rows_are_never_read():
    x = torch.empty_strided((8, 8), (16, 1), device=device)
    x.zero_()
    x.add_(1).sum().item()
    y = x.new_empty(8, 8).copy_(x)
    y.clone().cpu()


@correct
def tensor_that_grows_is_filled():
    x = _ready()
    x.resize_(2 * SIZE)
    x[:SIZE].sum()
    x[SIZE:].fill_(1)
    x.sum().item()
    out = torch.empty(0, device=device)
    torch.add(x, 1, out=out)
    out.sum().item()
    empty = torch.empty(SIZE, device=device)
    empty.resize_(3 * SIZE)
    empty.fill_(0).sum().item()


@correct
def results_of_operators_with_several_are_read():
    x = torch.randn(8, SIZE, device=device)
    for result in (
        x.sort(),
        x.topk(3),
        x.max(0),
        torch.cummax(x, 1),
        torch.unique(x, return_inverse=True, return_counts=True),
        torch.linalg.qr(x),
        torch.linalg.svd(x),
        torch.std_mean(x),
        x.split(3, 1),
        (torch.nonzero(x > 0), x[x > 0], x.histc(4)),
        (torch.cat([x, x]), torch.stack([x, x]), x.index_put((x > 1,), x.new_tensor(0.0))),
        (x.to(torch.float64), x.bfloat16(), x.t().contiguous(), x.fft.fft() if False else x.abs()),
        (torch.fft.fft(x).abs(), torch.fft.irfft(torch.fft.rfft(x))),
        torch._foreach_mul([x, x], 2),
    ):
        for one in result:
            (one + 1).cpu()


@correct
def products_ignore_what_they_are_not_to_add_to():
    a, x = torch.randn(4, 4, device=device), torch.empty(4, 4, device=device)
    torch.mv(a, a[0]).sum().item()
    torch.addmm(x, a, a, beta=0).sum().item()
    x.addmm_(a, a, beta=0)
    torch.empty(4, device=device).scatter_reduce(
        0, torch.arange(4, device=device), a[0], "sum", include_self=False
    ).sum().item()
    x.sum().item()


@correct
def sparse_matrix_is_written_in_place():
    sparse = torch.eye(4).to_sparse().to(device)
    sparse.mul_(2)
    sparse.add_(torch.ones(4, 4, device=device).to_sparse())
    sparse.to_dense().cpu()
    rows = torch.eye(3).to_sparse_csr().to(device)
    rows.add_(torch.ones(3, 3).to_sparse_csr().to(device))
    rows.to_dense().cpu()
    rows.col_indices().cpu()


@correct
def index_put_fills_zeros():
    x = torch.zeros(SIZE, device=device)
    x[torch.tensor([1, 5, 7], device=device)] = 2
    x.index_put_((torch.tensor([1, 1], device=device),), x[:2].clone(), accumulate=True)
    x.index_add_(0, torch.tensor([0, 2], device=device), x[:2].clone())
    x.sum().item()


@correct
def random_tensors_like_an_empty_one():
    x = torch.empty(SIZE, device=device)
    for like in (torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like):
        like(x).sum().item()
    torch.full_like(x, 2).sum().item()
    torch.bernoulli(x, 0.5).sum().item()
    x.new_zeros(3).sum().item()


@correct
def recurrent_network_is_trained():
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        layer = kind(4, 8, num_layers=2, dropout=0.1, bidirectional=True).to(device)
        output, _ = layer(torch.randn(5, 2, 4, device=device))
        output.sum().backward()
        layer.weight_hh_l0.grad.cpu()


@correct
def attention_with_dropout_is_trained():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True).to(device)
    layer(torch.randn(2, 5, 8, device=device)).sum().backward()
    query = torch.randn(2, 2, 5, 8, device=device, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(
        query, query, query, is_causal=True
    ).sum().backward()
    query.grad.cpu()


def _network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 3, groups=2, stride=2),
        torch.nn.GroupNorm(2, 8),
        torch.nn.GELU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(8, 4),
        torch.nn.LayerNorm(4),
    ).to(device)


@correct
def convolutional_network_is_trained_with_each_optimizer():
    for make in (
        torch.optim.AdamW,
        lambda all_of_it: torch.optim.AdamW(all_of_it, fused=True),
        lambda all_of_it: torch.optim.SGD(all_of_it, lr=0.1, momentum=0.9, nesterov=True),
        lambda all_of_it: torch.optim.SGD(all_of_it, lr=0.1, momentum=0.9, fused=True),
        lambda all_of_it: torch.optim.RMSprop(all_of_it, momentum=0.5, centered=True),
    ):
        network = _network()
        optimizer = make(network.parameters())
        for _ in range(2):
            images = torch.randn(4, 3, 16, 16).to(device)
            labels = torch.randint(4, (4,), device=device)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            loss.item()
        network.eval()(images).argmax(1).cpu()
        torch.save((network.state_dict(), optimizer.state_dict()), io.BytesIO())


@correct
def embeddings_are_trained_with_mixed_precision():
    table, scaler = torch.nn.Embedding(10, 4).to(device), torch.amp.GradScaler(device.type)
    bag = torch.nn.EmbeddingBag(10, 4, mode="max").to(device)
    optimizer = torch.optim.Adagrad([*table.parameters(), *bag.parameters()])
    words = torch.randint(10, (2, 3), device=device)
    with torch.autocast(device.type, torch.bfloat16):
        loss = (table(words).sum(1) @ bag(words).t()).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@correct
def graph_computes_before_it_is_read():
    x, graph = _ready(), _graph()
    with _capture(graph):
        workspace = torch.empty(2, SIZE, device=device)
        workspace[0].copy_(x)
        workspace[1].fill_(1)
        y = workspace.sum(0)
    graph.replay()
    y.cpu()


@correct
def static_input_is_filled_after_the_capture():
    x, graph = torch.empty(SIZE, device=device), _graph()
    with _capture(graph):
        y = x.mul(2)
    x.copy_(torch.ones(SIZE))
    graph.replay()
    y.cpu()


@correct
def graph_fills_its_own_input():
    x, graph = torch.empty(SIZE, device=device), _graph()
    with _capture(graph):
        x.fill_(1)
        x.add_(1)
    graph.replay()
    x.cpu()


@correct
def graph_reads_the_result_of_another():
    x, one, two = _ready(), _graph(), _graph()
    with _capture(one):
        y = x.mul(2)
    with _capture(two, pool=one.pool()):
        z = y.add(1)
    for _ in range(2):
        one.replay()
        two.replay()
    z.cpu()


@correct
def graphs_of_one_pool_take_turns_on_two_streams():
    x, one, two, side = _ready(), _graph(), _graph(), Stream()
    with _capture(one):
        x.mul(2).sum()
    with _capture(two, pool=one.pool()):
        x.mul(3).sum()
    for _ in range(2):
        one.replay()
        side.wait_stream(current())
        with stream(side):
            two.replay()
        current().wait_stream(side)
    _module.synchronize()


@correct
def graphs_of_different_pools_are_replayed_at_once():
    x, one, two, side = _ready(), _graph(), _graph(), Stream()
    with _capture(one):
        x.mul(2).sum()
    with _capture(two):
        x.mul(3).sum()
    one.replay()
    with stream(side):
        two.replay()
    _module.synchronize()


@correct
def branches_of_a_graph_write_different_halves():
    x, side = _ready(), Stream()
    with _capture():
        side.wait_stream(current())
        with stream(side):
            x[:32].add_(1)
        x[32:].mul_(2)
        current().wait_stream(side)
        x.sum()


@correct
def branches_of_a_graph_are_ordered_by_an_event():
    x, side, done = _ready(), Stream(), Event()
    with _capture():
        x.add_(1)
        done.record()
        with stream(side):
            side.wait_event(done)
            x.add_(1)
            done.record()
        current().wait_event(done)
        x.sum()


@correct
def temporary_of_a_branch_is_freed_after_the_join():
    x, side = _ready(), Stream()
    with _capture():
        side.wait_stream(current())
        with stream(side):
            y = x.mul(2)
            total = y.sum()
            del y
            x.mul(3).sum()
        current().wait_stream(side)
        total.add(1)


@correct
def stream_is_used_in_a_capture_and_outside():
    x, y, graph, side = _ready(), _ready(), _graph(), Stream()
    with stream(side):
        y.add_(1)
    with _capture(graph):
        side.wait_stream(current())
        with stream(side):
            x.mul(2).sum()
        current().wait_stream(side)
    with stream(side):
        y.add_(1)
    current().wait_stream(side)
    y.sum()
    graph.replay()
    _module.synchronize()
