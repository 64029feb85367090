"""Tables, plots and pages, made from run directories only."""
