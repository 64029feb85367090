"""flower-filfl: the network, the data, training and testing, in plain PyTorch."""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

Batches = DataLoader[tuple[Tensor, ...]]


class Net(nn.Module):
    """A small CNN for digits of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        out: Tensor = self.fc2(x)
        return out


def load_digits_shuffled() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The 1,797 digits of scikit-learn, so that nothing is downloaded."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[:, None] / 16).astype(np.float32)
    return images[order], digits.target[order].astype(np.int64)


def load_partition(partition_id: int, num_partitions: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The digits of one site. Sites 1, 4, 7, ... have random labels: these are the ones to filter out."""
    x, y = load_digits_shuffled()
    mine = slice(400 + partition_id, None, num_partitions)  # the first 400 belong to the server
    x, y = x[mine], y[mine]
    if partition_id % 3 == 1:
        y = np.random.default_rng(partition_id).permutation(y)
    return x, y


def make_loader(x: NDArray[np.float32], y: NDArray[np.int64], batch_size: int, shuffle: bool = False) -> Batches:
    return DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=batch_size, shuffle=shuffle)


def split(x: NDArray[np.float32], y: NDArray[np.int64], batch_size: int) -> tuple[Batches, Batches]:
    """80 % of the samples for training, 20 % for validation."""
    cut = int(0.8 * len(y))
    return make_loader(x[:cut], y[:cut], batch_size, shuffle=True), make_loader(x[cut:], y[cut:], batch_size)


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> tuple[Batches, Batches]:
    """In simulation: the training and validation data of a partition."""
    return split(*load_partition(partition_id, num_partitions), batch_size)


def load_local_data(data_path: str, batch_size: int) -> tuple[Batches, Batches]:
    """In deployment: the data of this site, from its own file."""
    with np.load(data_path) as file:
        return split(file["x"], file["y"], batch_size)


def load_server_data() -> tuple[Batches, Batches]:
    """The filtering set and the test set of the server."""
    x, y = load_digits_shuffled()
    return make_loader(x[:100], y[:100], batch_size=100), make_loader(x[100:400], y[100:400], batch_size=100)


def train(net: nn.Module, trainloader: Batches, epochs: int, lr: float, device: torch.device) -> float:
    """Train the network, and return its mean loss during training."""
    net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))


@torch.no_grad()
def test(net: nn.Module, testloader: Batches, device: torch.device) -> tuple[float, float]:
    """The loss and the accuracy of the network."""
    net.to(device).eval()
    loss, correct, number = 0.0, 0, 0
    for images, labels in testloader:
        outputs, labels = net(images.to(device)), labels.to(device)
        loss += F.cross_entropy(outputs, labels, reduction="sum").item()
        correct += int((outputs.argmax(dim=1) == labels).sum())
        number += len(labels)
    return loss / number, correct / number
