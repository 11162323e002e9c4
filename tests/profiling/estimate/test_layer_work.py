"""The kernels of a layer: FLOPs and bytes worked out by hand, forward and backward."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.fake_tensors import ShapesMode
from deeppool.profiling.estimate import layer_work
from deeppool.profiling.estimate.layer_work import LayerWork, model_work, model_works, trace

FLOAT = 4
BATCH = 6


def work_of(build, *shape, data_gradient=True, autocast=False, forward=None) -> LayerWork:
    """The kernels of a module on one input of a shape, batch first."""
    mode = ShapesMode()
    with mode:
        module = build()
        data = torch.empty(*shape, requires_grad=data_gradient)
    run = (lambda: [module(data)]) if forward is None else (lambda: [forward(data)])
    return trace(run, lambda: [data, *module.parameters()], mode=mode, autocast=autocast)


class Shifted(nn.Module):
    """Adds a learnt vector to each sample, which has a batch of its own."""

    def __init__(self, width):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1, width))

    def forward(self, x):
        return x + self.shift


def names(kernels):
    return [kernel.operator for kernel in kernels]


# -- convolutions -----------------------------------------------------------------------------------


def test_a_convolution_and_both_halves_of_its_backward_have_the_flops_and_bytes_of_the_closed_form():
    # 7 x 5 windows of 3 x 5, from 4 to 10 channels, stride 2 and 1: 16 x 9 pixels in.
    work = work_of(lambda: nn.Conv2d(4, 10, (3, 5), stride=(2, 1), bias=False), BATCH, 4, 16, 9)
    flops = 2 * BATCH * (7 * 5) * 10 * 4 * (3 * 5)
    data, output, weight = (FLOAT * n for n in (BATCH * 4 * 16 * 9, BATCH * 10 * 7 * 5, 10 * 4 * 3 * 5))
    forward, of_data, of_weight = *work.forward, *work.backward
    assert names((forward, of_data, of_weight)) == [
        "convolution",
        "convolution_backward_data",
        "convolution_backward_weight",
    ]
    for kernel in (forward, of_data, of_weight):
        assert (kernel.kind, kernel.flops, kernel.bytes) == ("convolution", flops, data + output + weight)
        assert kernel.weight_bytes == weight
        assert not kernel.pointwise
    # What is read comes channels first.
    assert [k.layout_bytes for k in (forward, of_data, of_weight)] == [data, output, data + output]
    # The results: all output pixels by channels, all input pixels by channels, the weights.
    assert (forward.rows, forward.columns) == (BATCH * 7 * 5, 10)
    assert (of_data.rows, of_data.columns) == (BATCH * 16 * 9, 4)
    assert (of_weight.rows, of_weight.columns) == (10, 4 * 3 * 5)


def test_the_first_convolution_of_a_model_computes_no_gradient_of_the_data():
    work = work_of(lambda: nn.Conv2d(3, 8, 1, bias=False), BATCH, 3, 8, 8, data_gradient=False)
    assert names(work.backward) == ["convolution_backward_weight"]
    assert work.forward[0].pointwise


def test_a_bias_is_added_by_a_kernel_of_its_own_and_its_gradient_reads_once():
    work = work_of(lambda: nn.Conv2d(3, 8, 1), BATCH, 3, 8, 8)
    output = FLOAT * BATCH * 8 * 8 * 8
    assert [k.bytes for k in work.forward if k.operator == "convolution_bias"] == [2 * output]
    assert [k.bytes for k in work.backward if k.operator == "convolution_backward_bias"] == [output]


def test_groups_share_the_flops_and_a_depthwise_convolution_multiplies_no_matrices():
    whole, grouped = (work_of(lambda g=g: nn.Conv2d(8, 16, 3, groups=g, bias=False), BATCH, 8, 9, 9) for g in (1, 4))
    assert grouped.forward[0].count == 4
    assert grouped.forward[0].flops * 4 == whole.forward[0].flops
    depthwise = work_of(lambda: nn.Conv2d(8, 8, 3, groups=8, bias=False), BATCH, 8, 9, 9).forward[0]
    reads = 9 * BATCH * 8 * 7 * 7
    assert (depthwise.kind, depthwise.flops, depthwise.window_reads) == ("depthwise", 2 * reads, reads)


def test_a_transposed_convolution_has_the_flops_of_the_convolution_it_transposes():
    turned = work_of(lambda: nn.ConvTranspose2d(8, 4, 3, stride=2, bias=False), BATCH, 8, 7, 7)
    straight = work_of(lambda: nn.Conv2d(4, 8, 3, stride=2, bias=False), BATCH, 4, 15, 15)
    assert turned.forward[0].flops == straight.forward[0].flops
    assert (turned.forward[0].rows, turned.forward[0].columns) == (BATCH * 15 * 15, 4)


# -- products ---------------------------------------------------------------------------------------


def test_a_linear_layer_multiplies_once_forward_and_twice_backward():
    work = work_of(lambda: nn.Linear(20, 30), BATCH, 20)
    products = [k for k in (*work.forward, *work.backward) if k.kind == "product"]
    assert [k.flops for k in products] == [2 * BATCH * 20 * 30] * 3
    data, output, weight, bias = (FLOAT * n for n in (BATCH * 20, BATCH * 30, 20 * 30, 30))
    assert [k.bytes for k in products] == [data + output + weight + bias, *[data + output + weight] * 2]
    assert {(k.rows, k.columns) for k in products} == {(BATCH, 30), (BATCH, 20), (30, 20)}
    # The gradient of the bias sums over the batch.
    assert [k.bytes for k in work.backward if k.operator == "sum"] == [output + bias]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_one_kernel_of_two_products_forward_and_five_backward(causal):
    heads, length, others, size = 3, 16, 24, 8

    def attend(x):
        read = torch.cat([x, x[:, :, :8]], 2)
        return functional.scaled_dot_product_attention(x, 2 * read, 3 * read, is_causal=causal)

    work = work_of(nn.Identity, BATCH, heads, length, size, forward=attend)
    product = 2 * BATCH * heads * length * others * size
    (forward,) = [k for k in work.forward if k.kind == "product"]
    (backward,) = [k for k in work.backward if k.kind == "product"]
    assert (forward.flops, backward.flops) == (2 * product, 5 * product)
    for kernel in (forward, backward):
        assert (kernel.rows, kernel.columns, kernel.count) == (length, others, BATCH * heads)
    query, key, sums = (FLOAT * BATCH * heads * n for n in (length * size, others * size, length))
    # Query, key, value and result, and a number a row that the backward wants; never the matrix.
    assert forward.bytes == 2 * query + 2 * key + sums
    assert backward.bytes == 4 * query + 4 * key + sums


# -- everything else --------------------------------------------------------------------------------


def test_a_batch_normalisation_passes_three_times_over_its_data_forward_and_five_times_backward():
    work = work_of(lambda: nn.BatchNorm2d(8), BATCH, 8, 32, 32)
    data, channel = FLOAT * BATCH * 8 * 32 * 32, FLOAT * 8
    (forward,) = [k for k in work.forward if "batch_norm" in k.operator]
    (backward,) = [k for k in work.backward if "batch_norm" in k.operator]
    assert 3 * data < forward.bytes + forward.again_bytes <= 3 * data + 6 * channel
    assert 5 * data < backward.bytes + backward.again_bytes <= 5 * data + 7 * channel
    assert forward.row_bytes == backward.row_bytes == 0


def test_layer_normalisation_and_long_softmaxes_read_each_row_twice():
    normed = work_of(lambda: nn.LayerNorm(2000), BATCH, 50, 2000)
    rows = FLOAT * BATCH * 50 * 2000
    (forward,) = [k for k in normed.forward if k.operator == "native_layer_norm"]
    assert (forward.again_bytes, forward.row_bytes) == (rows, FLOAT * 2000)
    (backward,) = [k for k in normed.backward if k.operator == "native_layer_norm_backward"]
    assert backward.again_bytes == 2 * rows
    for size, again in ((1024, 0), (2000, 1)):
        (found,) = work_of(lambda: nn.Softmax(-1), BATCH, 50, size).forward
        assert found.again_bytes == again * FLOAT * BATCH * 50 * size


@pytest.mark.slow
def test_a_model_with_channels_last_converts_no_layouts():
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 1), nn.Flatten(), nn.Linear(196, 2))
    converted = []
    for layout in (torch.contiguous_format, torch.channels_last):
        works = model_work(capture(model.to(memory_format=layout), (8, 9, 9)), BATCH)
        found = [k for work in works for k in (*work.forward, *work.backward) if k.kind == "convolution"]
        assert len(found) == 5
        converted.append([k.layout_bytes + k.weight_bytes > 0 for k in found])
    assert converted == [[True] * 5, [False] * 5]


@pytest.mark.parametrize("directions", [1, 2])
def test_an_lstm_multiplies_as_often_as_its_steps_and_gates_require(directions):
    steps, width, hidden = 7, 12, 20

    def build():
        return nn.LSTM(width, hidden, batch_first=True, bidirectional=directions == 2)

    mode = ShapesMode()
    with mode:
        module, data = build(), torch.empty(BATCH, steps, width, requires_grad=True)
    work = trace(lambda: [module(data)[0]], lambda: [data, *module.parameters()], mode=mode)
    # Four gates, each a product with the input and with the last state; the backward has two products for each.
    flops = 2 * BATCH * steps * 4 * hidden * (width + hidden) * directions
    assert sum(k.flops for k in work.forward) == flops
    assert sum(k.flops for k in work.backward) == 2 * flops


@pytest.mark.slow
@pytest.mark.parametrize(("directions", "biases"), [(1, True), (2, True), (2, False)])
def test_a_gru_multiplies_as_often_as_its_steps_and_gates_require(directions, biases):
    steps, width, hidden = 3, 12, 20

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(width, width)
            self.layers = nn.GRU(
                width, hidden, 2, bias=biases, batch_first=True, dropout=0.5, bidirectional=directions == 2
            )

        def forward(self, x):
            return self.layers(self.inner(x))[0][:, -1]

    works = model_work(capture(Recurrent(), (steps, width)), BATCH)
    forward = [k for work in works for k in work.forward if "rnn" in k.operator]
    backward = [k for work in works for k in work.backward if "rnn" in k.operator]
    # Three gates, each a product with the input and with the last state; the second layer's input is the first's
    # output, of all directions. The backward has two products for each.
    flops = 2 * BATCH * steps * 3 * hidden * (width + hidden + directions * hidden + hidden) * directions
    assert sum(k.flops for k in forward) == flops
    assert sum(k.flops for k in backward) == 2 * flops


def test_experts_multiply_the_rows_that_they_are_given_forward_and_twice_backward():
    tokens, width, hidden, experts = 24, 8, 16, 4

    def run(x):
        weight = torch.empty(experts, width, hidden, requires_grad=True)
        offsets = torch.empty(experts, dtype=torch.int32)
        return nn.functional.grouped_mm(x.bfloat16(), weight.bfloat16(), offs=offsets)

    work = work_of(nn.Identity, tokens, width, forward=run)
    found = [k for k in (*work.forward, *work.backward) if "grouped" in k.operator]
    assert [k.flops for k in found] == [2 * tokens * width * hidden] * len(found)
    assert {k.kind for k in found} == {"product"}
    assert found[0].count == experts


def test_an_activation_reads_and_writes_forward_and_reads_twice_and_writes_backward():
    work = work_of(lambda: nn.ReLU(inplace=False), BATCH, 100)
    assert [k.bytes for k in work.forward] == [2 * FLOAT * BATCH * 100]
    assert [k.bytes for k in work.backward] == [3 * FLOAT * BATCH * 100]


def test_views_launch_no_kernel():
    assert work_of(nn.Identity, BATCH, 4, 5, forward=lambda x: x.flatten(1).reshape(-1, 5)[:, None]) == LayerWork(
        (), ()
    )


def test_pooling_reads_through_its_windows():
    (forward,) = work_of(lambda: nn.MaxPool2d(3, stride=2), BATCH, 8, 9, 9).forward
    assert (forward.kind, forward.window_reads) == ("window", 9 * BATCH * 8 * 4 * 4)
    # Two reads more for each number to find its windows.
    (backward,) = work_of(lambda: nn.AvgPool2d(3, stride=1), BATCH, 8, 9, 9).backward
    assert backward.window_reads == 9 * BATCH * 8 * 7 * 7 + 2 * BATCH * 8 * 9 * 9


def test_undoing_a_pooling_moves_its_indices_and_reads_no_windows():
    def undone(x):
        pooled, indices = functional.max_pool2d(x, 2, return_indices=True)
        return [functional.max_unpool2d(pooled, indices, 2)]

    work = work_of(nn.Identity, BATCH, 8, 4, 4, forward=undone)
    (undo,) = (kernel for kernel in work.forward if kernel.kind == "memory")
    assert undo.bytes == BATCH * 8 * ((FLOAT + 8) * 2 * 2 + FLOAT * 4 * 4)


def test_a_sparse_gradient_of_a_table_has_bytes_for_the_rows_that_it_holds():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(1000, 4, sparse=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.table(x).mean(1))

    work, _ = model_work(capture(Sparse(), (5,), input_dtype=torch.int64), BATCH)
    (gradient,) = (k.bytes for k in work.backward if "sparse" in k.operator)
    assert BATCH * 5 * 4 * 4 < gradient < 1000 * 4 * 4


def test_an_embedding_reads_the_rows_that_it_takes_and_not_its_table():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(1000, 16)

        def forward(self, x):
            return self.table(x)[:, 0]

    captured = capture(Tokens(), (5,), input_dtype=torch.int64)
    work = model_work(captured, BATCH)[0]
    assert [k.bytes for k in work.forward if k.operator == "embedding"] == [8 * BATCH * 5 + 2 * FLOAT * BATCH * 5 * 16]


class Rows(nn.Module):
    """Takes rows of a table."""

    def __init__(self, rows, taken):
        super().__init__()
        self.table, self.taken = nn.Parameter(torch.zeros(rows, 16)), taken

    def forward(self, x):
        return self.taken(self.table, x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "operators"),
    [
        (lambda rows: Rows(rows, lambda table, x: table[x][:, 0]), ["index", "index_put_"]),
        (
            lambda rows: Rows(rows, lambda table, x: table.index_select(0, x.flatten()).view(*x.shape, 16)[:, 0]),
            ["index_select", "index_add_"],
        ),
        (
            lambda rows: Rows(rows, lambda table, x: table.gather(0, x[:, :1].expand(-1, 16))),
            ["gather", "scatter_add_"],
        ),
        (lambda rows: nn.Sequential(nn.EmbeddingBag(rows, 16)), ["_embedding_bag"]),
    ],
    ids=["index", "index_select", "gather", "embedding_bag"],
)
def test_rows_of_a_table_are_read_and_added_to_without_the_rest_of_it(make, operators):
    found = []
    for rows in (1000, 100_000):
        works = model_work(capture(make(rows), (5,), input_dtype=torch.int64), BATCH)
        kernels = [kernel for work in works for kernel in (*work.forward, *work.backward)]
        found.append([kernel for kernel in kernels if kernel.operator in operators])
    first, last = found
    assert names(first) == operators
    assert first == last
    assert all(0 < kernel.bytes < FLOAT * 1000 * 16 for kernel in first)


def test_dropout_is_one_kernel_as_on_a_gpu():
    captured = capture(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)).train(), (8,))
    found = [name for work in model_work(captured, BATCH) for name in names(work.forward)]
    assert found.count("native_dropout") == 1
    assert "bernoulli_" not in found


def test_autocast_halves_what_products_read_and_counts_the_casts():
    single, half = (work_of(lambda: nn.Linear(20, 30, bias=False), BATCH, 20, autocast=on) for on in (False, True))
    (wide,), (narrow,) = ([k for k in work.forward if k.kind == "product"] for work in (single, half))
    assert (narrow.bytes, narrow.element_size, narrow.flops) == (wide.bytes / 2, 2, wide.flops)
    casts = [k.bytes for k in half.forward if k.operator == "_to_copy"]
    assert sorted(casts) == [6 * BATCH * 20, 6 * 20 * 30]


@pytest.mark.slow
def test_the_layers_of_a_model_have_the_flops_that_pytorch_counts_while_the_model_runs():
    from torchvision.models import resnet18

    model = resnet18()
    captured = capture(model, (3, 64, 64))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(BATCH, 3, 64, 64)).sum().backward()
    works = model_work(captured, BATCH)
    assert sum(k.flops for work in works for k in (*work.forward, *work.backward)) == counter.get_total_flops()


def test_the_kernels_of_a_backward_are_those_of_the_layer_whose_forward_they_differentiate():
    layers = [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 3)]
    captured = capture(nn.Sequential(*layers), (4,), granularity="operator")
    found = {layer.name: work for layer, work in zip(captured.graph.layers, model_work(captured, BATCH), strict=True)}
    backward = {name: names(work.backward) for name, work in found.items()}
    assert [name for name, kernels in backward.items() if "tanh_backward" in kernels] == ["1"]
    assert [name for name, kernels in backward.items() if "sigmoid_backward" in kernels] == ["3"]
    # The first layer's input wants no gradient.
    flops = {name: sum(k.flops for k in work.backward) for name, work in found.items()}
    sizes = {"0": (4 * 8,), "2": (8 * 16,) * 2, "4": (16 * 3,) * 2}
    assert {name: count for name, count in flops.items() if count} == {
        name: 2 * BATCH * sum(size) for name, size in sizes.items()
    }


def test_a_tensor_that_two_layers_read_is_converted_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            x = x + 1
            return self.head(self.left(x) * self.right(x))

    works = model_work(capture(Twice(), (8,), granularity="operator"), BATCH, autocast=True)
    casts = [k.bytes for work in works for k in work.forward if k.operator == "_to_copy"]
    # In 16 bits: both read x, each converted by itself, as PyTorch caches weights alone; then everything is in 16 bits.
    data, weights, biases = 6 * BATCH * 8, [6 * 64] * 2 + [6 * 16], [6 * 8] * 2 + [6 * 2]
    scores = 6 * BATCH * 2
    assert sorted(casts) == sorted([data, data, *weights, *biases, scores])


@pytest.fixture(scope="module")
def shufflenet():
    from torchvision.models import shufflenet_v2_x0_5

    return capture(shufflenet_v2_x0_5(), (3, 64, 64))


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
def test_kernels_between_two_batches_are_those_of_the_model_at_that_batch(shufflenet, autocast):
    found = model_works(shufflenet, (1, 2, 6, 16), autocast=autocast)
    assert sorted(found) == [1, 2, 6, 16]
    for batch in (2, 6):
        assert found[batch] == model_work(shufflenet, batch, autocast=autocast)


class TwoTables(nn.Module):
    """Takes rows of a table of 20 for each sample, and puts one of a table of 30 before them."""

    def __init__(self):
        super().__init__()
        self.table, self.first, self.head = nn.Embedding(20, 4), nn.Embedding(30, 4), nn.Linear(4, 2)

    def forward(self, x):
        rows = self.table.weight[x.long()]
        first = self.first.weight[:1].expand(x.shape[0], 1, 4)
        return self.head(torch.cat([first, rows], 1).mean(1))


def test_kernels_of_tables_are_those_of_each_batch_until_all_rows_are_read():
    captured = capture(TwoTables(), (3,))
    found = model_works(captured, (1, 4, 9, 40))
    assert found == {batch: model_work(captured, batch) for batch in found}
    for batch in found:
        (taken,) = (k for work in found[batch] for k in work.forward if k.operator == "index")
        # Positions, rows that are read, of which there are 20, and rows that are written.
        assert taken.bytes == 3 * batch * 8 + min(3 * batch, 20) * 16 + 3 * batch * 16
        assert taken.whole_table == (3 * batch >= 20)
    # A row that is repeated for each sample is read once.
    joined = [k.bytes for k in (k for work in found[40] for k in work.forward) if k.operator == "cat"]
    assert joined == [16 + 16 * 3 * 40 + 16 * 4 * 40]


@pytest.mark.parametrize(
    "model, expected",
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)), [1, 16]),
        # At batch 1 nothing is broadcast to the batch.
        (nn.Sequential(nn.Flatten(), Shifted(192), nn.Linear(192, 2)), [1, 16, 2]),
    ],
    ids=["same kernels", "other kernels at 1"],
)
def test_a_model_runs_at_the_ends_and_once_more_where_batch_1_has_other_kernels(monkeypatch, model, expected):
    captured = capture(model, (3, 8, 8))
    one_by_one = {batch: model_work(captured, batch) for batch in (1, 2, 6, 16)}
    ran = []

    def counted(captured, batch, **options):
        ran.append(batch)
        return model_work(captured, batch, **options)

    monkeypatch.setattr(layer_work, "model_work", counted)
    assert model_works(captured, (1, 2, 6, 16)) == one_by_one
    assert ran == expected
    assert model_works(captured, (1,)) == {1: one_by_one[1]}


def test_a_normalisation_of_one_number_a_channel_has_kernels_too():
    def normalise(x):
        # As a captured program has it; torch.nn.functional refuses.
        mean, variance, scale, shift = (torch.ones(8) for _ in range(4))
        return torch.ops.aten.batch_norm.default(x, scale, shift, mean, variance, True, 0.1, 1e-3, False)

    work = work_of(nn.Identity, 1, 8, 1, 1, forward=normalise)
    assert "native_batch_norm" in names(work.forward)
    assert "native_batch_norm_backward" in names(work.backward)


def test_operators_that_autocast_promotes_on_a_gpu_take_inputs_of_two_precisions():
    class Summed(nn.Module):
        """Sums in fp32, as CUDA's autocast does, and scatters 16-bit products into it."""

        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 8)

        def forward(self, x):
            total = x.exp()
            index = torch.zeros(x.shape, dtype=torch.int64)
            return total.scatter_add(1, index, self.head(x))

    works = model_work(capture(Summed(), (8,)), BATCH, autocast=True)
    (found,) = [k for work in works for k in work.forward if k.operator == "scatter_add"]
    # Two tensors of fp32 and the index are read, one is written.
    assert found.bytes == BATCH * 8 * (3 * 4 + 8)
