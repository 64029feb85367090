"""Tables and pictures, from the run store only."""
