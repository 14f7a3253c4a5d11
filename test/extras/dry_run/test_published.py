"""Figures that users of CUDA have published, from dry runs: to the byte where the source has bytes.

Each program is written anew from its description.
"""

from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)

DRY = {
    "OPENREG_DEVICE_TYPE": "cuda",
    "OPENREG_DRY_RUN": "1",
    "OPENREG_CUDA_NOTICE": "0",
    "OPENREG_DRY_RUN_GPU": "a100-40gb",
}

# The source, a program that prints figures, and what CUDA has printed.
PUBLISHED = {
    # https://discuss.pytorch.org/t/memory-inefficient-in-batch-matrix-multiplication/28164
    "batched_product": (
        """
        import torch
        x = torch.empty(8192, 512).requires_grad_().cuda()
        w = torch.empty(8, 64, 64).cuda()
        y = torch.matmul(x.view(8192, 8, 1, 64), w)
        torch._C._cuda_clearCublasWorkspaces()  # in 2018, cuBLAS itself allocated them
        print(torch.cuda.memory_allocated())
        """,
        "1107427328",
    ),
    "product": (
        """
        import torch
        x = torch.empty(8192, 512).requires_grad_().cuda()
        w = torch.empty(512, 512).cuda()
        y = torch.matmul(x, w)
        torch._C._cuda_clearCublasWorkspaces()
        print(torch.cuda.memory_allocated())
        """,
        "34603008",
    ),
    # https://discuss.pytorch.org/t/178671: the segments of a snapshot after X @ W + b. The sizes of
    # its tensors are not in the topic, they are those of its blocks.
    "snapshot": (
        """
        import torch
        x = torch.empty(10, 1000).cuda()
        b = torch.empty(1).cuda()
        w = torch.empty(1000, 1).cuda()
        y = x @ w + b
        for segment in torch.cuda.memory_snapshot():
            if segment["segment_type"] == "small":
                print(*(f"{block['size']} {block['state'][0]}," for block in segment["blocks"]))
        """,
        "40448 a, 512 a, 4096 a, 512 i, 512 a, 2051072 i,",
    ),
    # https://github.com/pytorch/pytorch/issues/107667: the weights of a ResNet-18, in MiB.
    "resnet18": (
        """
        import torch
        from torch import nn

        def block(inputs, outputs):
            layers = [
                nn.Conv2d(inputs, outputs, 3, bias=False), nn.BatchNorm2d(outputs),
                nn.Conv2d(outputs, outputs, 3, bias=False), nn.BatchNorm2d(outputs),
            ]
            if inputs != outputs:
                layers += [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
            return layers

        layers = [nn.Conv2d(3, 64, 7, bias=False), nn.BatchNorm2d(64)]
        for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
            layers += [*block(inputs, outputs), *block(outputs, outputs)]
        model = nn.Sequential(*layers, nn.Linear(512, 1000)).cuda()
        print(torch.cuda.memory_allocated() / 2**20)
        """,
        "44.6904296875",
    ),
    # https://github.com/pytorch/pytorch/issues/119607: the weights, in GB.
    "four_layers": (
        """
        import torch
        from torch import nn

        widths = [3000, 10000, 50000, 20000, 1234]
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in zip(widths, widths[1:])]
        model = nn.Sequential(*layers).cuda()
        print(torch.cuda.memory_allocated() / 1e9)
        """,
        "6.219729408",
    ),
    # https://huggingface.co/docs/transformers/model_memory_anatomy: a process takes 1343 MB before
    # the weights of BERT-large are on the GPU, with one small tensor there, and 2631 MB afterwards.
    "bert_large": (
        """
        import torch
        from torch import nn

        width, inner = 1024, 4096
        with torch.device("meta"):
            layers = [nn.Embedding(count, width) for count in (30522, 512, 2)]
            layers.append(nn.LayerNorm(width))
            for _ in range(24):
                layers += [nn.Linear(width, width) for _ in range(4)]
                layers += [nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)]
                layers.append(nn.LayerNorm(width))
            layers += [nn.Linear(width, width), nn.Linear(width, 2)]
            model = nn.ModuleList(layers)
        one = torch.ones((1, 1)).to("cuda")
        before = torch.cuda.memory_reserved()
        model.to_empty(device="cuda")
        print((torch.cuda.memory_reserved() - before) // 2**20)
        """,
        str(2631 - 1343),
    ),
}


class TestPublished(OpenRegTestCase):
    @parametrize("name", list(PUBLISHED))
    def test_figure_is_that_of_cuda(self, name):
        program, expected = PUBLISHED[name]
        self.assertEqual(run_program(program, DRY).stdout.strip(), expected)


instantiate_parametrized_tests(TestPublished)

if __name__ == "__main__":
    run_tests()
