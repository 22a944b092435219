"""PyTorch's side of benchmarks/throughput.py: a process that trains a ResNet for CIFAR.

The same network, batch and optimiser as ours, on images that never change, with the
layout that is fastest on CPUs (channels last). It reads a task as a line of JSON; then
each line is a number of steps, and the answer is their seconds.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

from benchmarks import crew as crews


def start(python: str, depth: int, batch: int) -> crews.Crew:
    """Start the process and wait until it has warmed up.

    Args:
      python: an interpreter with torch.
      depth: of the ResNet, 6n+2.
      batch: images of a step.
    """
    crew = crews.start("PyTorch", [[python, "-m", "benchmarks.peers_training"]])
    crew.ask([{"depth": depth, "batch": batch}])
    return crew


def serve() -> None:
    """Read a task, warm up, then train as many steps as each line says."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    task = json.loads(sys.stdin.readline())
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count() or 1)
    model = _resnet(torch, task["depth"]).to(memory_format=torch.channels_last)
    images = torch.randn(task["batch"], 3, 32, 32)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (task["batch"],))
    rule = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)

    def run(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            rule.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            rule.step()
        return time.perf_counter() - began

    def say(message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    run(3)
    say("ready")
    for line in sys.stdin:
        say(run(json.loads(line)))


def _resnet(torch: Any, depth: int) -> Any:
    """Three groups of basic blocks with 16, 32 and 64 channels; shortcuts of zeros."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, before: int, features: int) -> None:
            super().__init__()
            self.stride = 1 if before == features else 2
            self.extra = features - before
            how = {"padding": 1, "bias": False}
            self.conv1 = nn.Conv2d(before, features, 3, self.stride, **how)
            self.bn1 = nn.BatchNorm2d(features)
            self.conv2 = nn.Conv2d(features, features, 3, **how)
            self.bn2 = nn.BatchNorm2d(features)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            if self.extra:
                sides = (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2)
                x = nn.functional.pad(x[:, :, ::2, ::2], sides)
            return torch.relu(x + y)

    layers = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for features in (16, 32, 64):
        for _ in range((depth - 2) // 6):
            layers.append(Block(before, features))
            before = features
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


if __name__ == "__main__":
    serve()
