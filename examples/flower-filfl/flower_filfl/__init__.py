"""FilFL on Flower: an app to start from."""
