"""What networks for images ask of the data."""

from filfl.errors import ConfigError


def image_shape(sample_shape: tuple[int, ...], at_least: int) -> tuple[int, int, int]:
    """Channels, height and width of a sample; refused if it is no image, or of fewer pixels a side than `at_least`."""
    if len(sample_shape) != 3:
        raise ConfigError(
            f"model.name: this network needs images, channels x height x width, and a sample of the data has the "
            f"shape {list(sample_shape)}: take mlp or logistic"
        )
    channels, height, width = sample_shape
    if min(height, width) < at_least:
        raise ConfigError(
            f"model.name: this network needs images of at least {at_least} x {at_least} pixels, and the data's are "
            f"{height} x {width}: take a smaller network"
        )
    return channels, height, width
