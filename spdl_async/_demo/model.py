"""A small convolutional network and what trains it: the consumer of the demo's pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class SmallConvNet(nn.Module):
    """Classify pictures with four strided convolutions: about 18 million multiply-adds at 224.

    It takes the batch as the pipeline delivers it, uint8 of shape (batch, height, width, 3), and
    scales it to floats itself: on the device, where that is cheap, and after the copy, so that a
    quarter of the bytes travel. The permuted view of such a batch is already in the
    ``channels_last`` layout that convolutions like best. GroupNorm instead of BatchNorm, so that
    a last batch of one picture trains too.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(3, 16, kernel=7, stride=4),
            *_block(16, 32, kernel=3, stride=2),
            *_block(32, 64, kernel=3, stride=2),
            *_block(64, 128, kernel=3, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classify = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes) for uint8 images (batch, height, width, 3)."""
        scaled = images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
        logits: Tensor = self.classify(self.features(scaled))
        return logits


def _block(inputs: int, outputs: int, *, kernel: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2),
        nn.GroupNorm(4, outputs),
        nn.ReLU(inplace=True),
    ]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How well the network did: mean loss (nats) and accuracy (0 … 1) over ``samples`` pictures."""

    loss: float
    accuracy: float
    samples: int


class Trainer:
    """Train a :class:`SmallConvNet`, one batch a call.

    The sums of loss and hits stay on the device and are read once an epoch: reading them after
    every step would make the host wait for the device each time, and the copy of the next batch
    would no longer overlap with the work on this one.

    Attributes:
        untrained: the scores of the first batch, before the first update; the starting point.
    """

    def __init__(self, classes: int, device: torch.device, *, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = SmallConvNet(classes)
        self.network = network.to(device)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=2e-3)
        self.untrained: Scores | None = None
        self._sums = torch.zeros(2, device=device)
        self._samples = 0

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Update the network once, with one batch on the network's device."""
        logits = self.network(images)
        loss = functional.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self._count(logits.detach(), loss.detach(), labels)
        if self.untrained is None:
            self.untrained = self._scores()

    def finish_epoch(self) -> Scores:
        """Return the scores since the last call, waiting for the device, and start anew."""
        scores = self._scores()
        self._sums.zero_()
        self._samples = 0
        return scores

    def _count(self, logits: Tensor, loss: Tensor, labels: Tensor) -> None:
        hits = (logits.argmax(dim=1) == labels).sum()
        self._sums += torch.stack([loss * len(labels), hits])
        self._samples += len(labels)

    def _scores(self) -> Scores:
        loss, hits = self._sums.tolist()
        samples = self._samples
        count = max(samples, 1)
        return Scores(loss=loss / count, accuracy=hits / count, samples=samples)
