"""flower-filfl: a Flower app with client filtering."""
