"""Small models of many kinds that no library of the list has."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in pairwise(sizes):
        layers += [nn.Linear(i, o), activation()]
    return nn.Sequential(*layers[:-1])


def conv(i: int, o: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


def reconstruction(outputs: Any, _: torch.Tensor) -> torch.Tensor:
    """Mean squared error of a model that returns its reconstruction and what it reconstructs."""
    return (outputs[0] - outputs[1]).square().mean()


# -- one set of weights, used several times ------------------------------------------------------------


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv(3, 8, 2), conv(8, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.head((self.encoder(left) - self.encoder(right)).abs())


class Triplet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        a, p, n = (F.normalize(self.encoder(x), dim=1) for x in (anchor, positive, negative))
        return torch.stack([(a * p).sum(1), (a * n).sum(1)], dim=1)


class RecursiveResidual(nn.Module):
    """DRRN: one residual block, BatchNorm included, applied three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = conv(3, 8), conv(8, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = x + self.block(x)
        return self.head(x.mean((2, 3)))


class NeuralODE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.field, self.head = nn.Linear(6, 8), mlp(8, 16, 8, activation=nn.Tanh), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, h = self.stem(x), 0.25
        for _ in range(4):
            a = self.field(x)
            b = self.field(x + h / 2 * a)
            c = self.field(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + self.field(x + h * c))
        return self.head(x)


class DeepEquilibrium(nn.Module):
    """Iterates to a fixed point without gradients, then once with."""

    def __init__(self) -> None:
        super().__init__()
        self.inject, self.cell, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inject(x)
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(3):
                z = torch.tanh(self.cell(z) + x)
        return self.head(torch.tanh(self.cell(z) + x))


class UniversalTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for _ in range(3):
            x = self.layer(x)
        return self.head(x)


# -- images in, images out ------------------------------------------------------------------------------


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv(3, 8, 2), conv(8, 16, 2))
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, 2), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.decoder(self.encoder(x)), x


class VariationalAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(12, 16, 8), mlp(4, 16, 12)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), x


class VectorQuantised(nn.Module):
    """VQ-VAE with the straight-through estimator."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(12, 16, 4), mlp(4, 16, 12)
        self.codes = nn.Embedding(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.encoder(x)
        q = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
        return self.decoder(z + (q - z).detach()) + ((q - z.detach()) ** 2).mean(1, keepdim=True), x


class Generator(nn.Module):
    """DCGAN's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(16, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
            nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.main(z[:, :, None, None])


class StyleTransfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(8, 3, 3, 2),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x)


class SuperResolution(nn.Module):
    """ESPCN."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 12, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pixel_shuffle(self.main(x), 2)


class DiffusionUNet(nn.Module):
    """Predicts noise from a noisy image and its time step."""

    def __init__(self) -> None:
        super().__init__()
        self.time = mlp(16, 16, 8, activation=nn.SiLU)
        self.down, self.middle = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.up, self.out = nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(11, 3, 1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(8, device=x.device, dtype=x.dtype) / 8)
        angles = step.to(x.dtype)[:, :1] * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        y = F.silu(self.norm(self.down(x) + time[:, :, None, None]))
        return self.out(torch.cat([self.up(self.middle(y)), x], dim=1))


class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.locate, self.head = nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), nn.Linear(192, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(self.locate(x).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.head(F.grid_sample(x, grid, align_corners=False).flatten(1))


class BilinearCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = conv(3, 6), nn.Linear(36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x).flatten(2)
        gram = torch.bmm(x, x.transpose(1, 2)).flatten(1) / x.shape[2]
        return self.head(F.normalize(gram.sign() * (gram.abs() + 1e-5).sqrt()))


class Capsules(nn.Module):
    """Dynamic routing between capsules, three iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.primary = nn.Conv2d(3, 8, 3, 2)
        self.weight = nn.Parameter(torch.randn(18, 4, 4, 6) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.primary(x).flatten(1).view(x.shape[0], 18, 4)
        votes = torch.einsum("bic,icjd->bijd", u, self.weight)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            s = (logits.softmax(2)[..., None] * votes).sum(1)
            norm = s.square().sum(-1, keepdim=True)
            v = s * norm.sqrt() / (1 + norm)
            logits = logits + (votes * v[:, None]).sum(-1)
        return v.square().sum(-1)


class RotationEquivariant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turns = [torch.rot90(self.first(torch.rot90(x, k, (2, 3))), -k, (2, 3)) for k in range(4)]
        return self.head(torch.stack(turns, dim=1).relu().amax(1).mean((2, 3)))


class UNet3D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 4, 3, 2, 1), nn.BatchNorm3d(4), nn.ReLU())
        self.up, self.out = nn.ConvTranspose3d(4, 4, 2, 2), nn.Conv3d(5, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.up(self.down(x)), x], dim=1))


# -- sequences --------------------------------------------------------------------------------------------


class BidirectionalGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(30, 8), nn.GRU(8, 8, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.embedding(tokens))[0].mean(1))


class ElmanLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(5, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 8)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class SequenceFirstLSTM(nn.Module):
    """Turns its input once, as code from before ``batch_first`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.transpose(0, 1))[0][-1])


class SequenceFirstTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.body = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0)
        self.head = nn.Linear(16, 30)

    def forward(self, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        source, destination = (self.embedding(x).transpose(0, 1) for x in (source, destination))
        mask = nn.Transformer.generate_square_subsequent_mask(destination.shape[0], dtype=source.dtype)
        return self.head(self.body(source, destination, tgt_mask=mask, tgt_is_causal=True)).transpose(0, 1)


class AttentionSeq2Seq(nn.Module):
    """Bahdanau's attention over an encoder's states, one step after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True)
        self.cell, self.score, self.head = nn.GRUCell(16, 8), nn.Linear(16, 1), nn.Linear(8, 20)

    def forward(self, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        states, last = self.encoder(self.embedding(source))
        state, found = last[0], []
        for word in self.embedding(destination).unbind(1):
            both = torch.cat([states, state[:, None].expand_as(states)], dim=2)
            context = (self.score(torch.tanh(both)).softmax(1) * states).sum(1)
            state = self.cell(torch.cat([word, context], dim=1), state)
            found.append(self.head(state))
        return torch.stack(found, dim=1)


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 8, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=d) for d in (1, 2, 4))
        self.mix = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.head = nn.Conv1d(8, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, skips = self.stem(x), 0
        for gate, mix in zip(self.gates, self.mix, strict=True):
            a, b = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, dim=1)
            y = mix(a.tanh() * b.sigmoid())
            x, skips = x + y, skips + y
        return self.head(torch.relu(skips))


class Spectrogram(nn.Module):
    """A convolutional net on the magnitude of a short-time Fourier transform."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.net = nn.Sequential(conv(1, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = torch.stft(x, 16, 8, window=self.window, return_complex=True)
        return self.net(waves.abs().clamp_min(1e-6).log()[:, None])


class StateSpace(nn.Module):
    """S4D: a diagonal state space applied as a long convolution by FFT."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, 8), nn.Linear(8, 4)
        self.log_step, self.decay = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.rand(8, 4))
        self.mix = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        u = self.stem(x).transpose(1, 2)
        times = torch.arange(length, device=x.device, dtype=x.dtype)
        rates = -(self.decay.exp() * self.log_step.exp()[:, None])
        kernel = torch.einsum("hn,hnl->hl", self.mix, (rates[..., None] * times).exp())
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length))[..., :length]
        return self.head(F.gelu(y).mean(2))


class SelectiveScan(nn.Module):
    """Mamba's recurrence, as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.select, self.head = nn.Linear(3, 8), nn.Linear(8, 9), nn.Linear(8, 4)
        self.rates = nn.Parameter(torch.rand(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        steps, b, c = self.select(x).split([1, 4, 4], dim=2)
        decay = torch.exp(-F.softplus(steps)[..., None] * self.rates.exp())
        state, found = x.new_zeros(x.shape[0], 8, 4), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + x[:, t, :, None] * b[:, t, None]
            found.append((state * c[:, t, None]).sum(2))
        return self.head(torch.stack(found, dim=1).mean(1))


class LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(30, 8), nn.Linear(8, 24), nn.Linear(8, 30)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.embedding(tokens)).chunk(3, dim=2)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.einsum("btd,bte->btde", k, v).cumsum(1)
        return self.head(torch.einsum("btd,btde->bte", q, memory) / (q * k.cumsum(1)).sum(2, keepdim=True))


class FourierMixer(nn.Module):
    """FNet's token mixing."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(30, 8), nn.LayerNorm(8), nn.Linear(8, 30)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return self.head(self.norm(x + torch.fft.fft2(x, dim=(1, 2)).real))


class ConvLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Conv2d(9, 32, 3, padding=1), nn.Linear(8, 4)

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        h = c = video.new_zeros(video.shape[0], 8, *video.shape[3:])
        for frame in video.unbind(1):
            i, f, o, g = self.gates(torch.cat([frame, h], dim=1)).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.head(h.mean((2, 3)))


# -- vision without convolutions, sets, graphs, fields --------------------------------------------------------


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.tokens, self.channels = mlp(4, 8, 4, activation=nn.GELU), mlp(8, 16, 8, activation=nn.GELU)
        self.norms, self.head = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)]), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.norms[1](x))).mean(1))


class GatedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.norm = nn.Embedding(30, 8), nn.Linear(8, 16), nn.LayerNorm(8)
        self.spatial, self.down, self.head = nn.Conv1d(6, 6, 1), nn.Linear(8, 8), nn.Linear(8, 30)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        u, v = F.gelu(self.up(self.embedding(tokens))).chunk(2, dim=-1)
        return self.head(self.down(u * self.spatial(self.norm(v))))


class Perceiver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, 16))
        self.stem, self.cross = nn.Linear(5, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.own = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, z = self.stem(x), self.latents.expand(x.shape[0], -1, -1)
        return self.head(self.own(z + self.cross(z, x, x, need_weights=False)[0]).mean(1))


class PointNet(nn.Module):
    """With a learnt transformation of the points, and BatchNorm over them."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveMaxPool1d(1))
        self.matrix, self.points = nn.Linear(8, 9), nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix(self.turn(x).flatten(1)).view(-1, 3, 3) + torch.eye(3, dtype=x.dtype, device=x.device)
        return self.head(self.points(torch.bmm(matrix, x)).amax(2))


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = mlp(3, 16, 8), mlp(8, 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.all(self.each(x).sum(1))


class GraphConvolution(nn.Module):
    """GCN on dense adjacency matrices, one graph a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, nodes: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        a = adjacency.abs() + torch.eye(adjacency.shape[1], dtype=nodes.dtype, device=nodes.device)
        scale = a.sum(2).rsqrt()
        a = scale[:, :, None] * a * scale[:, None]
        return self.head((a @ self.second((a @ self.first(nodes)).relu())).mean(1))


class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.left, self.right = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, nodes: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        h = self.project(nodes)
        scores = F.leaky_relu(self.left(h) + self.right(h).transpose(1, 2), 0.2)
        scores = scores.masked_fill(adjacency < -1, float("-inf"))
        return self.head(F.elu(scores.softmax(2) @ h).mean(1))


class MessagePassing(nn.Module):
    """Messages along listed edges, summed by ``scatter_add``."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update, self.head = mlp(8, 8), nn.GRUCell(8, 4), nn.Linear(4, 3)

    def forward(self, nodes: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor) -> torch.Tensor:
        def at(index: torch.Tensor) -> torch.Tensor:
            return nodes.gather(1, index[..., None].expand(-1, -1, nodes.shape[2]))

        messages = self.message(torch.cat([at(sources), at(destinations)], dim=2))
        summed = nodes.new_zeros(nodes.shape[0], nodes.shape[1], 8)
        summed = summed.scatter_add(1, destinations[..., None].expand_as(messages), messages)
        return self.head(self.update(summed.flatten(0, 1), nodes.flatten(0, 1)).view_as(nodes).mean(1))


class KolmogorovArnold(nn.Module):
    """KAN: learnt univariate functions, in a basis of Gaussians."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 6))
        self.first = nn.Parameter(torch.randn(8, 5, 6) * 0.1)
        self.second = nn.Parameter(torch.randn(4, 8, 6) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in (self.first, self.second):
            basis = torch.exp(-((x[..., None] - self.grid) ** 2) * 2)
            x = torch.einsum("big,oig->bo", basis, weight)
        return x


class Siren(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Linear(2, 16), nn.Linear(16, 16)]), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(30 * layer(x))
        return self.head(x)


class RadianceField(nn.Module):
    """NeRF: positional encoding, a skip connection, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.colour = mlp(18, 16, 16), mlp(34, 16, 16), nn.Linear(19, 3)
        self.density = nn.Linear(16, 1)

    def forward(self, points: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        angles = torch.cat([points * 2.0**k for k in range(3)], dim=1)
        encoded = torch.cat([angles.sin(), angles.cos()], dim=1)
        x = self.second(torch.cat([self.first(encoded).relu(), encoded], dim=1)).relu()
        return torch.cat([self.colour(torch.cat([x, directions], dim=1)).sigmoid(), self.density(x).relu()], dim=1)


class PhysicsInformed(nn.Module):
    """A field u(t, x) and the residual of the heat equation by finite differences."""

    def __init__(self) -> None:
        super().__init__()
        self.field = mlp(2, 16, 16, 1, activation=nn.Tanh)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        t, x, h = points[:, :1], points[:, 1:], 1e-2

        def u(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.field(torch.cat([t, x], dim=1))

        here = u(t, x)
        in_time = (u(t + h, x) - u(t - h, x)) / (2 * h)
        return torch.cat([here, in_time - (u(t, x + h) - 2 * here + u(t, x - h)) / h**2], dim=1)


class DeepONet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch, self.trunk = mlp(10, 16, 8), mlp(2, 16, 8)

    def forward(self, function: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bd,bpd->bp", self.branch(function), self.trunk(points))


class FourierOperator(nn.Module):
    """FNO in one dimension: complex weights on the lowest frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.head = nn.Linear(1, 8), nn.Linear(8, 2)
        self.weight = nn.Parameter(torch.randn(8, 8, 4, 2) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.lift(x).transpose(1, 2)
        waves = torch.fft.rfft(u)
        low = torch.einsum("bil,iol->bol", waves[..., :4], torch.view_as_complex(self.weight))
        u = u + torch.fft.irfft(F.pad(low, (0, waves.shape[-1] - 4)), n=u.shape[-1])
        return self.head(F.gelu(u).transpose(1, 2)).transpose(1, 2)


# -- tables, recommendation, experts ------------------------------------------------------------------------


class DLRM(nn.Module):
    """Embeddings and dense features that interact by inner products."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.bottom, self.top = mlp(4, 16, 8), mlp(14, 16, 2)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        all_of = torch.stack([x, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], dim=1)
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([x, torch.bmm(all_of, all_of.transpose(1, 2))[:, rows, columns]], dim=1))


class FactorisationMachine(nn.Module):
    """DeepFM."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors, self.deep = nn.Embedding(50, 2), nn.Embedding(50, 8), mlp(32, 16, 2)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        v = self.factors(fields)
        pairs = (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True) / 2
        return self.linear(fields).sum(1) + pairs + self.deep(v.flatten(1))


class BagOfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(50, 8, mode="mean"), nn.Linear(8, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(words))


class TabularAttention(nn.Module):
    """TabNet's idea: masks that select features, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.masks = nn.BatchNorm1d(8), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.steps, self.head = nn.ModuleList(mlp(8, 16, 8) for _ in range(2)), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        prior, total = torch.ones_like(x), torch.zeros_like(x)
        for mask, step in zip(self.masks, self.steps, strict=True):
            chosen = (mask(x) * prior).softmax(1)
            prior = prior * (1.3 - chosen)
            total = total + step(x * chosen).relu()
        return self.head(total)


class MixtureOfExperts(nn.Module):
    """The two best of four experts by a dense mask."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(8, 4), nn.Linear(8, 3)
        self.experts = nn.ModuleList(mlp(8, 16, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.gate(x).topk(2, dim=1)
        weights = torch.zeros(x.shape[0], 4, dtype=x.dtype, device=x.device).scatter(1, chosen, scores.softmax(1))
        return self.head(sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)))


class HyperNetwork(nn.Module):
    """Weights of one layer, computed per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.head = mlp(3, 16, 40), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self.head(torch.bmm(self.weights(condition).view(-1, 8, 5), x[..., None]).squeeze(2).relu())


class ManyTasks(nn.Module):
    """Outputs in a dictionary, for a loss of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.size = mlp(6, 16, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.body(x)
        return {"kind": self.kind(x), "size": self.size(x)}


def tasks_loss(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs["kind"], target) + (outputs["size"][:, 0] - target).square().mean()


class ArcFace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = mlp(6, 16, 8), nn.Parameter(torch.randn(5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cosine = F.linear(F.normalize(self.body(x)), F.normalize(self.centres)).clamp(-0.999, 0.999)
        return 8 * torch.cos(torch.acos(cosine) + 0.1)


# -- parts that are not trained, or not as usual ------------------------------------------------------------


class FrozenBackbone(nn.Module):
    """Features without gradients, whose BatchNorm still updates its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Sequential(conv(3, 8, 2), conv(8, 8, 2)), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.backbone(x)
        return self.head(x.mean((2, 3)))


class StopGradient(nn.Module):
    """SimSiam: each view predicts the other's projection, through which no gradient goes."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.predict = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), mlp(8, 4, 8)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.project(first), self.project(second)
        return torch.cat([self.predict(a), self.predict(b)], dim=1), torch.cat([b.detach(), a.detach()], dim=1)


class Adapted(nn.Module):
    """LoRA: a frozen layer and a trained one of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(6, 8).requires_grad_(False), nn.Linear(6, 2), nn.Linear(2, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.base(x) + self.up(self.down(x))).relu())


class FullPrecisionRegion(nn.Module):
    """An attention that leaves autocast, as linear attentions do."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 24), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        with torch.autocast(x.device.type, enabled=False):
            y = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.head(y.mean(1))


class WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        self.head = nn.utils.parametrizations.orthogonal(nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(x).relu())


class SpectrallyNormed(nn.Module):
    """Every forward takes a step of the power iteration that its norm needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(x).relu())


class GumbelSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.choose, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.gumbel_softmax(self.choose(x), tau=0.5))


class EarlyExit(nn.Module):
    """Leaves out its second half where the first is sure: its graph depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return self.head(x) if x.amax() > 3 else self.head(self.rest(x))


FLOAT, INT = torch.float64, torch.int64
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
IMAGE: Shapes = {"": ((3, 8, 8), FLOAT)}


def inputs(**shapes: tuple[int, ...]) -> Shapes:
    return {name: (shape, FLOAT) for name, shape in shapes.items()}


def vector(*shape: int) -> Shapes:
    return {"": (shape, FLOAT)}


def tokens(*names: str, length: int = 6) -> Shapes:
    return dict.fromkeys(names or ("",), ((length,), INT))


WRITTEN: dict[type[nn.Module], tuple[Shapes, Callable[[Any, torch.Tensor], torch.Tensor] | None]] = {
    Siamese: (inputs(left=(3, 8, 8), right=(3, 8, 8)), None),
    Triplet: (inputs(anchor=(12,), positive=(12,), negative=(12,)), None),
    RecursiveResidual: (IMAGE, None),
    NeuralODE: (vector(6), None),
    DeepEquilibrium: (vector(6), None),
    UniversalTransformer: (tokens(), None),
    Autoencoder: (IMAGE, reconstruction),
    VariationalAutoencoder: (vector(12), reconstruction),
    VectorQuantised: (vector(12), reconstruction),
    Generator: (vector(16), None),
    StyleTransfer: (IMAGE, None),
    SuperResolution: (IMAGE, None),
    DiffusionUNet: ({"x": ((3, 8, 8), FLOAT), "step": ((1,), INT)}, None),
    SpatialTransformer: (IMAGE, None),
    BilinearCNN: (IMAGE, None),
    Capsules: (IMAGE, None),
    RotationEquivariant: (IMAGE, None),
    UNet3D: (vector(1, 4, 4, 4), None),
    BidirectionalGRU: (tokens(), None),
    ElmanLoop: (vector(6, 5), None),
    SequenceFirstLSTM: (vector(6, 5), None),
    SequenceFirstTransformer: (tokens("source", "destination"), None),
    AttentionSeq2Seq: (tokens("source", "destination"), None),
    WaveNet: (vector(2, 12), None),
    Spectrogram: (vector(64), None),
    StateSpace: (vector(6, 3), None),
    SelectiveScan: (vector(6, 3), None),
    LinearAttention: (tokens(), None),
    FourierMixer: (tokens(), None),
    ConvLSTM: (vector(3, 1, 6, 6), None),
    Mixer: (IMAGE, None),
    GatedMLP: (tokens(), None),
    Perceiver: (vector(7, 5), None),
    PointNet: (vector(3, 10), None),
    DeepSets: (vector(7, 3), None),
    GraphConvolution: (inputs(nodes=(6, 4), adjacency=(6, 6)), None),
    GraphAttention: (inputs(nodes=(6, 4), adjacency=(6, 6)), None),
    MessagePassing: ({"nodes": ((6, 4), FLOAT), "sources": ((9,), INT), "destinations": ((9,), INT)}, None),
    KolmogorovArnold: (vector(5), None),
    Siren: (vector(2), None),
    RadianceField: (inputs(points=(3,), directions=(3,)), None),
    PhysicsInformed: (vector(2), None),
    DeepONet: (inputs(function=(10,), points=(5, 2)), None),
    FourierOperator: (vector(16, 1), None),
    DLRM: ({"dense": ((4,), FLOAT), "sparse": ((3,), INT)}, None),
    FactorisationMachine: (tokens(length=4), None),
    BagOfWords: (tokens(), None),
    TabularAttention: (vector(8), None),
    MixtureOfExperts: (vector(8), None),
    HyperNetwork: (inputs(x=(5,), condition=(3,)), None),
    ManyTasks: (vector(6), tasks_loss),
    ArcFace: (vector(6), None),
    FrozenBackbone: (IMAGE, None),
    StopGradient: (inputs(first=(6,), second=(6,)), reconstruction),
    Adapted: (vector(6), None),
    FullPrecisionRegion: (vector(5, 6), None),
    WeightNormed: (vector(6), None),
    SpectrallyNormed: (vector(6), None),
    GumbelSoftmax: (vector(6), None),
    EarlyExit: (vector(6), None),
}
"""Models with the shapes and types of a sample, and their loss where it is not the default."""
